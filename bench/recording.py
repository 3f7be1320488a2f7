"""The cost of recording what rollouts do: activities, events, and the details and replies of model calls."""

from __future__ import annotations

import json
import tempfile
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from bench.measure import Contender, Measurement, Run, Target
from bench.processes import run_script
from bench.rollouts import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_CALL = {
    "message": {
        "content": None,
        "reasoning_content": "The sum of a whole number and one half is an odd number of halves. The calculator computes it.",
        "tool_calls": [{"function": {"name": "calculator", "arguments": '{"expression": "6*7 + 1/2"}'}}],
    }
}
_REPLIES = [_CALL] * 4 + ["The answer is \\boxed{42.5}."]
_MOST = 1.03
"""Recording may add 3 % to the cost of a rollout."""


def _recording(state: str, value: str, *, http: bool) -> Callable[[int], AbstractContextManager[Run]]:
    """Rollouts with recording `on` or `off`, in a separate process; report one of the values that it prints."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with tempfile.TemporaryDirectory() as folder, endpoint(_REPLIES, 0.0) as url:
            address = [url] if http else []
            yield lambda: float(json.loads(run_script("rollout_recording.py", size, folder, state, *address))[value])

    return opened


def _contenders(value: str, *, http: bool, compared: bool = True) -> tuple[Contender, ...]:
    return (
        Contender("paragent", _recording("on", value, http=http)),
        Contender("without recording", _recording("off", value, http=http), reference=not compared),
    )


MEASUREMENTS = (
    Measurement(
        name="recording",
        title="Recording, scripted policy",
        question="How much CPU does a rollout of the scripted policy take, with and without recording what it does?",
        unit="ms",
        size=2_000,
        quick_size=500,
        contenders=_contenders("cpu_ms", http=False),
        targets=(Target("at most", _MOST, times="without recording"),),
        warm_up=False,
        most_rounds=3,
    ),
    Measurement(
        name="recording-http",
        title="Recording, at an endpoint",
        question="How much CPU does a rollout of 5 turns take at an endpoint, with and without recording?",
        unit="ms",
        size=2_000,
        quick_size=500,
        contenders=_contenders("cpu_ms", http=True),
        targets=(Target("at most", _MOST, times="without recording"),),
        warm_up=False,
        most_rounds=3,
    ),
    Measurement(
        name="recording-size",
        title="Journal of one rollout",
        question="How large is the journal for each rollout of 5 turns at an endpoint, with and without recording?",
        unit="KB",
        size=1_000,
        quick_size=500,
        contenders=_contenders("journal_kb", http=True, compared=False),
        warm_up=False,
        most_rounds=1,
    ),
)
