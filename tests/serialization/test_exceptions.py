"""Exceptions are rebuilt with class, arguments, attributes, notes and cause, without calling their constructor."""

from __future__ import annotations

import copyreg
import email.message
import io
import pickle
import threading
import urllib.error
from typing import Any

import httpx
import openai
import pytest

from paragent.serialization import pack, unpack
from paragent.serialization.exceptions import dump_data, rebuild
from paragent.serialization.packing import Packer


class MyErr(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class Slotted(OSError):
    __slots__ = ("port",)

    def __init__(self, host: str, port: int) -> None:
        super().__init__(111, "refused")
        self.filename = host
        self.port = port


class Mixed(ValueError, OSError):
    def __init__(self, *, why: str) -> None:
        super().__init__(why)
        self.why = why


class ReadOnly(Exception):
    """Has an attribute with the name of a property that cannot be set."""

    def __init__(self, *, why: str) -> None:
        super().__init__("no")
        self.__dict__["why"] = why

    @property
    def why(self) -> str:
        return str(self.__dict__["why"])


class Hostile(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise KeyError(name)


REQUEST = httpx.Request("POST", "http://host/v1", headers={"authorization": "Bearer secret"})
RESPONSE: Any = httpx.Response(429, request=REQUEST, json={"error": "slow"})


def rate_limit() -> BaseException:
    return openai.RateLimitError("slow down", response=RESPONSE, body={"code": "limit"})


def errors() -> list[BaseException]:
    return [
        rate_limit(),
        httpx.HTTPStatusError("429 from host", request=REQUEST, response=RESPONSE),
        urllib.error.HTTPError("http://host", 404, "not found", email.message.Message(), None),
        urllib.error.HTTPError("http://host", 404, "not found", email.message.Message(), io.BytesIO(b"body")),
        MyErr(7, "because"),
        Slotted("host", 80),
        Mixed(why="both"),
        ReadOnly(why="only read"),
        FileNotFoundError(2, "no such file", "a", None, "b"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ImportError("no", name="module", path="/p"),
        AttributeError("no", name="x", obj=threading.Lock()),
        ExceptionGroup("two", [MyErr(1, "first"), ValueError("second")]),
        SyntaxError("bad", ("file", 1, 2, "text")),
        StopIteration(3),
        SystemExit(4),
        KeyError("k"),
    ]


@pytest.mark.parametrize("error", errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("packer", [pack, Packer().pack], ids=["pack", "Packer"])
def test_an_exception_is_rebuilt(error: BaseException, packer: Any) -> None:
    error.__cause__ = MyErr(1, "root")
    error.__dict__["__notes__"] = ["a note"]
    copy = unpack(packer(error, "it"))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args or isinstance(error, ExceptionGroup)
    assert copy.__notes__[:1] == ["a note"]
    assert isinstance(copy.__cause__, MyErr)
    assert copy.__cause__.code == 1
    for name in ("errno", "strerror", "filename", "filename2", "name", "code", "why", "port", "status_code", "body"):
        if name in dir(error) and isinstance(getattr(error, name), str | int | dict):
            assert getattr(copy, name) == getattr(error, name), name


def test_a_response_is_pickled_with_its_error() -> None:
    copy = unpack(pack(httpx.HTTPStatusError("429", request=REQUEST, response=RESPONSE), "it"))
    assert (copy.response.status_code, copy.response.json(), copy.request.url) == (429, {"error": "slow"}, REQUEST.url)


def test_parts_that_cannot_be_pickled_are_left_out_and_named() -> None:
    error = MyErr(7, "because")
    error.args = ("text", threading.Lock())
    error.stream = threading.Lock()  # type: ignore[attr-defined]
    error.inner = MyErr(8, "inside")  # type: ignore[attr-defined]
    error.inner.stream = threading.Lock()  # type: ignore[attr-defined]
    copy = unpack(pack(error, "it"))
    assert (copy.code, copy.inner.code) == (7, 8)
    assert copy.args == ("text", "<lock, not sent>")
    assert not hasattr(copy, "stream")
    assert "args[1] (_thread.lock), stream (_thread.lock)" in copy.__notes__[0]
    assert "stream" in copy.inner.__notes__[0]


def test_an_exception_that_contains_itself_and_a_long_chain_of_causes_are_rebuilt() -> None:
    error = MyErr(1, "first")
    error.me = error  # type: ignore[attr-defined]
    error.others = [error]  # type: ignore[attr-defined]
    assert type(unpack(pack(error, "it")).me) is MyErr
    first = latest = MyErr(0, "effect")
    for number in range(200):
        latest.__cause__ = MyErr(number, "cause")
        latest = latest.__cause__
    copy, depth = unpack(pack(first, "it")), 0
    while copy.__cause__ is not None:
        copy, depth = copy.__cause__, depth + 1
    assert depth >= 10


def test_no_method_of_an_exception_is_called() -> None:
    error = Hostile("text")
    object.__setattr__(error, "__cause__", ValueError("root"))
    copy = unpack(pack(error, "it"))
    assert type(copy) is Hostile
    assert copy.args == ("text",)
    assert repr(copy.__cause__) == "ValueError('root')"


def test_dump_data_contains_no_objects() -> None:
    data = dump_data(rate_limit())
    assert b"secret" not in data
    copy = pickle.loads(data)
    assert isinstance(copy, openai.RateLimitError)
    assert (copy.status_code, copy.body) == (429, {"code": "limit"})
    assert "request (httpx.Request)" in copy.__notes__[0]


def test_only_exceptions_are_rebuilt() -> None:
    for cls in (dict, threading.Thread, "ValueError"):
        with pytest.raises(TypeError, match="not an exception class"):
            rebuild([(pickle.dumps(cls), (), {}, None, [])])


class Wrapper(Exception):
    """Contains another exception three times."""

    def __init__(self, inner: BaseException) -> None:
        super().__init__("wrapped", inner)
        self.inner = inner
        self.__cause__ = inner


def wrapped(levels: int) -> BaseException:
    error: BaseException = MyErr(7, "x" * 1000)
    for _ in range(levels):
        error = Wrapper(error)
    return error


@pytest.mark.parametrize(
    "dump", [lambda error: pack(error, "it").body, lambda error: Packer().pack(error, "it").body, dump_data]
)
def test_each_nested_exception_is_written_once(dump: Any) -> None:
    data = dump(wrapped(15))
    assert data.count(b"x" * 1000) == 1 + data.count(b": " + b"x" * 1000)  # its attribute, and its message
    assert len(data) < 20_000
    copy = pickle.loads(data)
    for _ in range(15):
        assert copy.inner is copy.args[1] is copy.__cause__
        copy = copy.inner
    assert copy.code == 7


def test_nested_exception_groups_are_written_once() -> None:
    error: Exception = MyErr(7, "x" * 1000)
    for _ in range(10):
        error = ExceptionGroup("two", [error, error])
    data = pack(error, "it").body
    assert len(data) < 10_000
    copy: Any = pickle.loads(data)
    for _ in range(10):
        assert copy.exceptions[0] is copy.exceptions[1]
        copy = copy.exceptions[0]
    assert copy.code == 7


def test_the_size_of_an_exception_is_limited() -> None:
    error = MyErr(7, "because")
    error.__cause__ = MyErr(8, "cause")
    for name in "abc":
        setattr(error.__cause__, name, [name * (3 << 20)])
    copy = unpack(pack(error, "it"))
    assert copy.code == 7
    assert copy.__cause__.b == ["b" * (3 << 20)]
    assert not hasattr(copy.__cause__, "c")
    assert "c (builtins.list)" in copy.__cause__.__notes__[0]


def test_dump_data_leaves_out_a_cause_whose_class_is_not_importable() -> None:
    class Local(Exception):
        pass

    error = MyErr(7, "because")
    error.__cause__ = Local()
    copy = pickle.loads(dump_data(error))
    assert (copy.code, copy.__cause__) == (7, None)
    assert "__cause__" in copy.__notes__[0]


def test_an_object_whose_reducer_contains_an_exception_is_packed() -> None:
    error = MyErr(7, "because")
    error.inner = Packs(MyErr(8, "inside"))  # type: ignore[attr-defined]
    assert unpack(pack(error, "it")).inner.error.code == 8


class Packs:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getstate__(self) -> Any:
        return pack(Wrapper(self.error), "it")

    def __setstate__(self, state: Any) -> None:
        self.error = unpack(state).inner


def test_reducers_of_copyreg_are_used() -> None:
    thing = Registered(1)
    assert unpack(pack([thing], "it"))[0].number == 1
    copyreg.pickle(Registered, lambda thing: (Registered, (thing.number + 1,)))
    assert unpack(pack([thing], "it"))[0].number == 2


class Registered:
    def __init__(self, number: int) -> None:
        self.number = number


class Meta(type):
    pass


class WithMeta(metaclass=Meta):
    pass


def test_classes_and_functions_are_packed_by_name() -> None:
    assert unpack(pack([WithMeta, wrapped, Meta], "it")) == [WithMeta, wrapped, Meta]
