"""Garbage collection of a child server adapts its frequency."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from paragent.remote.children.child_main import collect_as_needed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_collector() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    collect_as_needed()
    gc.collect(0)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks


def _make_garbage(count: int) -> None:
    for _ in range(count):
        cycle: list[Any] = []
        cycle.append(cycle)


def test_collections_that_find_nothing_become_less_frequent_up_to_a_limit() -> None:
    seen = []
    for _ in range(6):
        gc.collect(0)
        seen.append(gc.get_threshold()[0])
    assert seen == sorted(seen)
    assert seen[-1] == 1_600_000


def test_collections_that_find_garbage_become_frequent_again() -> None:
    for _ in range(6):
        gc.collect(0)
    _make_garbage(20_000)
    gc.collect(0)
    assert gc.get_threshold()[0] == 100_000


def test_a_threshold_that_an_agent_sets_is_kept() -> None:
    gc.set_threshold(5_000, 7, 7)
    gc.collect(0)
    assert gc.get_threshold() == (5_000, 7, 7)
