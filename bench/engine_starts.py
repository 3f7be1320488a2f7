"""The start of each engine: from `python script.py` to the first answer, compared with the system that it uses."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from bench.measure import Contender, Measurement, Run
from bench.processes import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]


def _script(name: str, *arguments: str) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(_: int) -> Iterator[Run]:
        def run() -> float:
            started = time.monotonic()
            answer, moment = run_script(name, *arguments).split()
            assert answer == "42"
            return float(moment) - started

        yield run

    return opened


def _start(engine: str, peer: str, script: str, needs: str) -> Measurement:
    return Measurement(
        name=f"first-answer-{engine}",
        title=f"First answer, start of {peer}",
        question=f"How long from `python script.py` to the first answer, including the start of {peer}?",
        unit="s",
        size=1,
        quick_size=1,
        contenders=(
            Contender(f"paragent on {peer}", _script("first_answer_engine.py", engine), needs=needs),
            Contender(f"plain {peer}", _script(script), needs=needs),
            Contender("paragent, local engine", _script("first_answer_engine.py", "local"), reference=True),
            Contender("paragent, inline engine", _script("first_answer_engine.py", "inline"), reference=True),
        ),
        warm_up=False,
        most_rounds=3,
    )


MEASUREMENTS = (
    _start("ray", "Ray", "first_answer_ray.py", "ray"),
    _start("spark", "Spark", "first_answer_spark.py", "pyspark"),
)
