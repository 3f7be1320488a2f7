"""A gigabyte of answers on each engine: how much does the memory of the program grow?"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from bench.measure import Contender, Measurement, Run, Target
from bench.processes import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_TASKS = 100_000


def _growth(engine: str) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        yield lambda: float(run_script("answers_paragent.py", engine, size))

    return opened


def _answers(engine: str, needs: str = "") -> Measurement:
    return Measurement(
        name=f"answers-{engine}",
        title=f"Memory for 1 GB of answers, {engine}",
        question=f"How much memory does the driver gain while it receives {_TASKS:,} answers of 10 kB (1 GB) from {engine}?",
        unit="MB",
        size=_TASKS,
        quick_size=_TASKS // 20,
        contenders=(Contender(f"paragent on {engine}", _growth(engine), needs=needs),),
        targets=(Target("at most", 100),),
        warm_up=False,
        most_rounds=1,
    )


MEASUREMENTS = (_answers("local"), _answers("ray", "ray"), _answers("spark", "pyspark"))
