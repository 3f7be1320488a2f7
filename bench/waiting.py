"""Tasks that wait, as agents wait for models: how much longer a run takes than a single wait."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from bench.executors import LIMIT, PPE, WORKERS, process_pool
from bench.measure import Contender, Measurement, Run, Target
from bench.simple_agents import nap, naps
from paragent import LocalRuntime, RunConfig, Runners, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]


def _paragent(seconds: float, concurrency: int) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with LocalRuntime(RunConfig(worker_num=WORKERS, concurrency=concurrency)) as engine:

            def run() -> float:
                started = perf_counter()
                tasks = [Task(input=seconds, agent=nap) for _ in range(size)]
                responses = Runners.sync_run_task(tasks, engine=engine)
                spent = perf_counter() - started
                assert all(response.answer == seconds for response in responses.values())
                return spent

            yield run

    return opened


def _by_hand(seconds: float) -> Callable[[int], AbstractContextManager[Run]]:
    """Run one call for each worker; its event loop waits for its share of the naps concurrently."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with process_pool() as pool:

            def run() -> float:
                started = perf_counter()
                shares = [pool.submit(naps, size // WORKERS, seconds) for _ in range(WORKERS)]
                slept = sum(share.result(LIMIT) for share in shares)
                spent = perf_counter() - started
                assert slept == size
                return spent

            yield run

    return opened


def _one_process(seconds: float) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        def run() -> float:
            started = perf_counter()
            assert naps(size, seconds) == size
            return perf_counter() - started

        yield run

    return opened


_BY_HAND = f"{PPE}, event loops"
_ASYNCIO = "asyncio, one process"

MEASUREMENTS = (
    Measurement(
        name="waiting-1k",
        title="1,000 async waits of 0.1 s",
        question="How long do 1,000 async waits of 0.1 s take? (ideal: 0.10 s)",
        unit="s",
        size=1_000,
        quick_size=1_000,
        contenders=(
            Contender("paragent", _paragent(0.1, concurrency=1_000)),
            Contender(_BY_HAND, _by_hand(0.1)),
            Contender(_ASYNCIO, _one_process(0.1)),
        ),
        targets=(Target("at most", 0.18),),
    ),
    Measurement(
        name="waiting-10k",
        title="10,000 async waits of 1 s",
        question="How long do 10,000 async waits of 1 s take? (ideal: 1.00 s)",
        unit="s",
        size=10_000,
        quick_size=2_000,
        contenders=(
            Contender("paragent", _paragent(1.0, concurrency=5_000)),
            Contender(_BY_HAND, _by_hand(1.0)),
            Contender(_ASYNCIO, _one_process(1.0)),
        ),
        targets=(Target("at most", 1.8),),
    ),
)
