"""The overhead of a task: trivial tasks per second."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.clusters import RAY_TASKS, plain_ray
from bench.executors import LOKY, PPE, WORKERS, loky_pool, process_pool, submit_each
from bench.measure import Contender, Measurement, Run, Target
from bench.simple_agents import echo
from paragent import LocalRuntime, RunConfig, Runners, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

__all__ = ["MEASUREMENTS"]


@contextmanager
def _paragent(size: int) -> Iterator[Run]:
    with LocalRuntime(RunConfig(worker_num=WORKERS)) as engine:

        def answers() -> list[Any]:
            tasks = [Task(input=number, agent=echo) for number in range(size)]
            return [response.unwrap() for response in Runners.sync_run_task(tasks, engine=engine).values()]

        yield lambda: _rate(size, answers)


def _pool(opening: Callable[[], AbstractContextManager[Executor]]) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with opening() as pool:
            yield lambda: _rate(size, lambda: submit_each(pool, echo, range(size)))

    return opened


@contextmanager
def _joblib(size: int) -> Iterator[Run]:
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    with Parallel(n_jobs=WORKERS) as parallel:
        yield lambda: _rate(size, lambda: parallel(delayed(echo)(number) for number in range(size)))
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _rate(size: int, answers: Callable[[], list[Any]]) -> float:
    """Return answers per second, including the creation of the tasks and the reading of the answers."""
    started = perf_counter()
    got = answers()
    seconds = perf_counter() - started
    assert got == list(range(size)), "an answer is missing or wrong"
    return size / seconds


MEASUREMENTS = (
    Measurement(
        name="trivial-tasks",
        title="10,000 trivial tasks",
        question="How many trivial tasks per second, with a full response for each?",
        unit="tasks/s",
        size=10_000,
        quick_size=2_000,
        contenders=(
            Contender("paragent", _paragent),
            Contender(PPE, _pool(process_pool)),
            Contender(LOKY, _pool(loky_pool), needs="joblib"),
            Contender("joblib, automatic batches", _joblib, needs="joblib"),
            Contender(RAY_TASKS, plain_ray, needs="ray"),
        ),
        targets=(
            Target("at least", 4, times=PPE),
            Target("at least", 5, times=LOKY),
            Target("at least", 10, times=RAY_TASKS),
        ),
    ),
)
