"""Tasks that compute: how much CPU time the engine itself uses."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.executors import LOKY, PPE, WORKERS, loky_pool, process_pool, submit_each
from bench.measure import Contender, Measurement, Run, Target
from bench.simple_agents import burn, calibrated
from paragent import LocalRuntime, RunConfig, Runners, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

__all__ = ["MEASUREMENTS"]

_SECONDS = 0.020
_loops: list[int] = []
"""The number of loops of a task, the same for all contenders; measured once."""


def _task_loops() -> int:
    if not _loops:
        _loops.append(calibrated(_SECONDS))
    return _loops[0]


@contextmanager
def _paragent(size: int) -> Iterator[Run]:
    loops = _task_loops()
    with LocalRuntime(RunConfig(worker_num=WORKERS)) as engine:

        def answers() -> list[Any]:
            tasks = [Task(input=loops, agent=burn) for _ in range(size)]
            return [response.unwrap() for response in Runners.sync_run_task(tasks, engine=engine).values()]

        yield lambda: _rate(size, answers)


def _pool(opening: Callable[[], AbstractContextManager[Executor]]) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        loops = _task_loops()
        with opening() as pool:
            yield lambda: _rate(size, lambda: submit_each(pool, burn, [loops] * size))

    return opened


def _rate(size: int, answers: Callable[[], list[Any]]) -> float:
    started = perf_counter()
    got = answers()
    seconds = perf_counter() - started
    assert len(got) == size
    return size / seconds


MEASUREMENTS = (
    Measurement(
        name="computing",
        title="Tasks with 20 ms of CPU work",
        question="How many tasks with 20 ms of CPU work per second?",
        unit="tasks/s",
        size=200,
        quick_size=40,
        contenders=(
            Contender("paragent", _paragent),
            Contender(PPE, _pool(process_pool)),
            Contender(LOKY, _pool(loky_pool), needs="joblib"),
        ),
        targets=(Target("at least", 0.95, times=PPE),),
    ),
)
