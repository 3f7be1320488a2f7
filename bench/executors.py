"""Process pools that several measurements compare with, all with the same number of workers."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["LIMIT", "LOKY", "PPE", "WORKERS", "loky_pool", "process_pool", "submit_each"]

WORKERS = 2
"""The same for all contenders: the host of the published numbers has two cores."""
LIMIT = 300.0
"""Seconds after which a contender that has not finished counts as failed."""
PPE = "ProcessPoolExecutor"
LOKY = "loky"


@contextmanager
def process_pool() -> Iterator[Executor]:
    """The standard library's pool.

    It starts its workers with `spawn`, because forking is not safe in a process with the threads of other contenders. A warm
    pool is equally fast with both.
    """
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@contextmanager
def loky_pool() -> Iterator[Executor]:
    """The pool inside joblib."""
    from joblib.externals.loky import ProcessPoolExecutor as LokyExecutor

    pool = LokyExecutor(WORKERS)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def submit_each(pool: Executor, work: Callable[[Any], Any], inputs: Iterable[Any]) -> list[Any]:
    """Submit one call for each input and return all answers, in order."""
    futures = [pool.submit(work, given) for given in inputs]
    return [future.result(LIMIT) for future in futures]
