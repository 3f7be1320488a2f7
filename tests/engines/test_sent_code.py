"""What workers were sent: once, for as long as it is used, and not for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paragent import RunConfig, Runners, Task
from paragent.engines._worker_handle import WorkWriter
from paragent.engines.base import Call
from paragent.serialization import Parcel
from paragent.serialization.code_cache import MODULES, known_code
from tests.engines.threads import ThreadRuntime


def call(number: int, target: Parcel, argument: Any = None) -> Call:
    return Call(number, target, argument, str(number))


def parcel(name: str) -> Parcel:
    return Parcel(name.encode(), {name: b"code of " + name.encode()})


def test_code_and_targets_travel_once() -> None:
    writer, target = WorkWriter(), parcel("f")
    first = writer.work([(0, call(0, target))])
    second = writer.work([(1, call(1, target))])
    assert (first.code, first.targets) == (target.code, {0: b"f"})
    assert (second.code, second.targets, second.forget_code) == ({}, {}, [])


def test_of_much_code_what_nobody_needs_is_forgotten_and_sent_again_when_needed() -> None:
    writer = WorkWriter()
    running = call(0, parcel("needed by a call"), parcel("needed by its input"))
    modules = Parcel(b"", {MODULES + "1": b"modules"})
    writer.work([(0, running), (1, call(1, modules))])
    old = parcel("old")
    writer.work([(2, call(2, old))])
    for number in range(3, 1000):
        writer.work([(number, call(number, parcel(f"f{number}")))])
    writer.evict([running])
    frame = writer.work([(1000, call(1000, old))])
    assert frame.code == old.code
    assert 250 < len(frame.forget_code) < 1000
    assert "f3" in frame.forget_code
    assert not {"needed by a call", "needed by its input", MODULES + "1", "f999"} & set(frame.forget_code)


def test_little_code_is_kept() -> None:
    writer = WorkWriter()
    writer.work([(number, call(number, parcel(f"f{number}"))) for number in range(300)])
    writer.evict([])
    assert writer.work([]).forget_code == []


def count_code(_: Any) -> int:
    return len(known_code())


def adder(number: int) -> Callable[[int], int]:
    return lambda given: given + number


MADE = 6000
"""Functions that the test makes, several times what a worker keeps with all that can be under way."""


@pytest.mark.parametrize("settings", [{"engine_name": "local"}, {"cls": ThreadRuntime}], ids=["local", "stations"])
def test_workers_forget_functions_that_are_made_for_one_task_each(settings: dict[str, Any]) -> None:
    def tasks() -> Iterator[Task]:
        for number in range(MADE):
            yield Task(1, adder(number), id=str(number))
        yield Task(None, count_code, id="count")

    config = RunConfig(worker_num=1, **settings)
    answers = {response.id: response.unwrap() for response in Runners.iter_tasks(tasks(), config)}
    kept = answers.pop("count")
    assert answers == {str(number): number + 1 for number in range(MADE)}
    assert kept < MADE / 2
