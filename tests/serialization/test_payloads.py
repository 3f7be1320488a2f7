"""Packing of objects: state every time, code once; errors name the part that cannot be packed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.errors import Unserialisable
from paragent.serialization import Payload, pack, unpack
from paragent.serialization.packing import Packer

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(values)
def test_builtin_values_are_unpacked_unchanged(value: Any) -> None:
    payload = Packer().pack(value, "it")
    assert unpack(payload) == value
    assert payload.code == {}


def test_unpack_returns_plain_values_unchanged() -> None:
    thing = object()
    assert unpack(thing) is thing


def test_every_unpack_returns_a_new_copy() -> None:
    payload = Packer().pack({"k": []}, "it")
    first = unpack(payload)
    first["k"].append(1)
    assert unpack(payload) == {"k": []}


def make_local() -> tuple[type, Any]:
    class Base:
        def describe(self) -> str:
            return f"base {self.__class__.__name__}"

    class Local(Base):
        def __init__(self, value: int) -> None:
            self.value = value

        def describe(self) -> str:
            return f"{super().describe()} {self.value}"

        def twin(self) -> Local:
            return Local(self.value + 1)

    return Local, lambda value: Local(value).twin()


def test_code_is_sent_once_for_many_objects() -> None:
    local, _ = make_local()
    packer = Packer()
    first, second = packer.pack(local(1), "it"), packer.pack(local(2), "it")
    assert first.code.keys() == second.code.keys()
    assert all(first.code[digest] is second.code[digest] for digest in first.code)
    assert len(second.body) < 200


FAR_SIDE = """
import pickle, sys
from paragent.serialization import pack, unpack
target, argument = pickle.loads(sys.stdin.buffer.read())
answer = unpack(target)(unpack(argument))
sys.stdout.buffer.write(pickle.dumps(pack(answer, "the answer")))
"""


def on_the_far_side(target: Payload, argument: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", FAR_SIDE],
        input=pickle.dumps((target, argument)),
        capture_output=True,
        check=True,
        timeout=100,
    )
    return pickle.loads(done.stdout)


def test_an_answer_of_a_class_of_the_caller_is_an_instance_of_that_class() -> None:
    local, function = make_local()
    answer = on_the_far_side(Packer().pack(function, "it"), 4)
    assert answer.code == {}, "code that came from here need not come back"
    twin: Any = unpack(answer)
    assert twin.describe() == "base Local 5"
    assert type(twin) is local


def test_a_class_defined_in_a_worker_is_sent_with_its_code() -> None:
    def make(name: str) -> Any:
        return type(name, (), {"greet": lambda self: f"hello from {name}"})()

    answer = on_the_far_side(Packer().pack(make, "it"), "Far")
    assert answer.code
    assert unpack(answer).greet() == "hello from Far"


def test_classes_that_refer_to_each_other_are_packed() -> None:
    class Left:
        def other(self) -> Any:
            return Right()

    class Right:
        def other(self) -> Any:
            return Left()

    def round_trip(left: Any) -> str:
        return type(left.other().other()).__name__

    packer = Packer()
    answer = on_the_far_side(packer.pack(round_trip, "it"), packer.pack(Left(), "it"))
    assert unpack(answer) == "Left"


class Holder:
    def __init__(self) -> None:
        self.fine = 1
        self.deep = {"list": [0, threading.Lock()]}


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


def closure_over_a_lock() -> Any:
    lock = threading.Lock()
    return lambda: lock


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (threading.Lock(), "`input`"),
        ([1, threading.Lock()], "`input[1]`"),
        (Holder(), "`input.deep['list'][1]`"),
        (Slotted(), "`input.lock`"),
        (closure_over_a_lock(), "captured variable `lock`"),
    ],
)
def test_an_unserialisable_part_is_named(thing: Any, path: str) -> None:
    with pytest.raises(Unserialisable) as caught:
        Packer().pack(thing, "task 'a'", "input")
    assert path in str(caught.value)
    assert "task 'a'" in str(caught.value)
    assert "lock" in str(caught.value)


def test_the_fast_path_names_an_unserialisable_part_too() -> None:
    with pytest.raises(Unserialisable, match=r"answer\[1\]"):
        pack([1, threading.Lock()], "the answer", "answer")
