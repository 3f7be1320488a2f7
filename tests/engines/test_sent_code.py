"""Code and targets are sent to a worker once, and evicted when they are not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paragent import RunConfig, Runners, Task
from paragent.engines._worker_handle import BatchWriter
from paragent.engines.base import Call
from paragent.serialization import Payload
from paragent.serialization.code_cache import MODULES, known_code
from tests.engines.thread_cluster import ThreadRuntime


def call(number: int, target: Payload, argument: Any = None) -> Call:
    return Call(number, target, argument, str(number))


def payload(name: str) -> Payload:
    return Payload(name.encode(), {name: b"code of " + name.encode()})


def test_code_and_targets_are_sent_once() -> None:
    writer, target = BatchWriter(), payload("f")
    first = writer.batch([0], [call(0, target)])
    second = writer.batch([1], [call(1, target)])
    assert (first.code, first.targets) == (target.code, {0: b"f"})
    assert (second.code, second.targets, second.dropped_code) == ({}, {}, [])


def test_unused_code_is_evicted_and_sent_again_when_needed() -> None:
    writer = BatchWriter()
    running = call(0, payload("needed by a call"), payload("needed by its input"))
    modules = Payload(b"", {MODULES + "1": b"modules"})
    writer.batch([0, 1], [running, call(1, modules)])
    old = payload("old")
    writer.batch([2], [call(2, old)])
    for number in range(3, 1000):
        writer.batch([number], [call(number, payload(f"f{number}"))])
    writer.evict([running])
    batch = writer.batch([1000], [call(1000, old)])
    assert batch.code == old.code
    assert 250 < len(batch.dropped_code) < 1000
    assert "f3" in batch.dropped_code
    assert not {"needed by a call", "needed by its input", MODULES + "1", "f999"} & set(batch.dropped_code)


def test_little_code_is_not_evicted() -> None:
    writer = BatchWriter()
    writer.batch(range(300), [call(number, payload(f"f{number}")) for number in range(300)])
    writer.evict([])
    assert writer.batch([], []).dropped_code == []


def count_code(_: Any) -> int:
    return len(known_code())


def adder(number: int) -> Callable[[int], int]:
    return lambda given: given + number


MADE = 6000
"""Functions that the test creates: several times as many as a worker keeps, including calls in flight."""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"engine_name": "local"}, {"cls": ThreadRuntime}], ids=["local", "node agents"])
def test_workers_forget_functions_that_are_created_for_one_task_each(settings: dict[str, Any]) -> None:
    def tasks() -> Iterator[Task]:
        for number in range(MADE):
            yield Task(1, adder(number), id=str(number))
        yield Task(None, count_code, id="count")

    config = RunConfig(worker_num=1, **settings)
    answers = {response.id: response.unwrap() for response in Runners.iter_tasks(tasks(), config)}
    kept = answers.pop("count")
    assert answers == {str(number): number + 1 for number in range(MADE)}
    assert kept < MADE / 2
