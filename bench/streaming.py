"""A generator of a million tasks: whether memory and speed stay constant."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from bench.measure import Contender, Measurement, Run, Target
from bench.processes import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_SHORT = 10_000


def _stream(value: str, count: int | None = None) -> Callable[[int], AbstractContextManager[Run]]:
    """Stream `count` tasks (None: the size of the measurement) in a separate process; report one of the values it prints."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        yield lambda: float(json.loads(run_script("stream_paragent.py", count or size))[value])

    return opened


_SHORT_STREAM = f"paragent, {_SHORT:,} tasks"

MEASUREMENTS = (
    Measurement(
        name="streaming-rate",
        title="Stream of 1,000,000 tasks",
        question="How many tasks per second in a stream of 1,000,000, compared with a stream of 10,000?",
        unit="tasks/s",
        size=1_000_000,
        quick_size=100_000,
        contenders=(
            Contender("paragent", _stream("rate")),
            Contender(_SHORT_STREAM, _stream("rate", _SHORT)),
        ),
        targets=(Target("at least", 0.8, times=_SHORT_STREAM),),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="streaming-memory",
        title="Memory gained in this stream",
        question="How much memory do driver and workers gain in total during a stream of 1,000,000 tasks?",
        unit="MB",
        size=1_000_000,
        quick_size=100_000,
        contenders=(Contender("paragent", _stream("growth_mb")),),
        targets=(Target("at most", 100),),
        warm_up=False,
        most_rounds=1,
    ),
)
