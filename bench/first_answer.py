"""From `python script.py` to the first answer."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from bench.measure import Contender, Measurement, Run, Target
from bench.processes import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]


def _script(name: str) -> Callable[[int], AbstractContextManager[Run]]:
    """A program that prints its first answer and when it got it, by the monotonic clock, which all processes share."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        def run() -> float:
            started = time.monotonic()
            answer, moment = run_script(name, size).split()
            assert answer == "42"
            return float(moment) - started

        yield run

    return opened


_PPE_SPAWN = "ProcessPoolExecutor, spawn"

MEASUREMENTS = (
    Measurement(
        name="first-answer",
        title="First answer of a new program",
        question="How long from `python script.py` to the first answer?",
        unit="s",
        size=1,
        quick_size=1,
        contenders=(
            Contender("paragent", _script("first_answer_paragent.py")),
            Contender(_PPE_SPAWN, _script("first_answer_executor.py")),
            Contender("loky", _script("first_answer_loky.py"), needs="joblib"),
        ),
        targets=(Target("at most", 1.5, times=_PPE_SPAWN),),
    ),
)
