"""Sync tasks that block their thread: whether `worker_num * concurrency` of them run at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from bench.executors import LIMIT, WORKERS
from bench.measure import Contender, Measurement, Run, Target
from bench.simple_agents import blocking_nap
from paragent import LocalRuntime, RunConfig, Runners, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS", "most_at_once"]

_CONCURRENCY = 50
_AT_ONCE = WORKERS * _CONCURRENCY
_SECONDS = 0.1


@contextmanager
def _naps(size: int) -> Iterator[Callable[[], list[tuple[float, float]]]]:
    """Yield a function that runs `size` blocking naps and returns the start and the end of each."""
    with LocalRuntime(RunConfig(worker_num=WORKERS, concurrency=_CONCURRENCY)) as engine:

        def run() -> list[tuple[float, float]]:
            tasks = [Task(input=_SECONDS, agent=blocking_nap) for _ in range(size)]
            return [response.unwrap() for response in Runners.sync_run_task(tasks, engine=engine).values()]

        yield run


@contextmanager
def _seconds(size: int) -> Iterator[Run]:
    with _naps(size) as spans:

        def run() -> float:
            started = perf_counter()
            spans()
            return perf_counter() - started

        yield run


@contextmanager
def _peak(size: int) -> Iterator[Run]:
    with _naps(size) as spans:

        def run() -> float:
            most = most_at_once(spans())
            assert most <= _AT_ONCE, f"{most} ran at once; {_AT_ONCE} are allowed"
            return most

        yield run


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """Return the largest number of intervals that overlap; intervals that only touch do not."""
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


@contextmanager
def _threads(size: int) -> Iterator[Run]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:

        def run() -> float:
            started = perf_counter()
            futures = [pool.submit(blocking_nap, _SECONDS) for _ in range(size)]
            for future in futures:
                future.result(LIMIT)
            return perf_counter() - started

        yield run


MEASUREMENTS = (
    Measurement(
        name="blocking-peak",
        title="Blocking tasks at once",
        question=f"How many blocking tasks run at once on {WORKERS} workers with concurrency={_CONCURRENCY}?",
        unit="tasks",
        size=400,
        quick_size=400,
        contenders=(Contender("paragent", _peak),),
        targets=(Target("at least", _AT_ONCE),),
    ),
    Measurement(
        name="blocking-time",
        title="400 blocking waits, 100 at once",
        question=f"How long do 400 blocking waits of 0.1 s take, {_AT_ONCE} at once? (ideal: 0.40 s)",
        unit="s",
        size=400,
        quick_size=400,
        contenders=(
            Contender("paragent", _seconds),
            Contender("ThreadPoolExecutor", _threads),
        ),
    ),
)
