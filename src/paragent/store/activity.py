"""What a rollout was doing over time: the activities, and how a journal stores them in a few bytes."""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MOST_INTERVALS", "ActivityInterval", "RolloutActivity", "merged", "pack_activity", "unpack_activity"]

MOST_INTERVALS = 200
"""Intervals stored for one execution: a timeline shows no more of them, and a run of 100,000 rollouts stays below 100 MB."""
_INTERVAL = struct.Struct("<Bf")
"""The code of an activity and its seconds."""
_LONGEST = 1e9
"""Longer intervals, 32 years, come from a clock that was wrong; they are left out like negative ones."""


class RolloutActivity(StrEnum):
    """What a rollout is doing. The position of a word in this list is its code in journals: append new words at the end."""

    STARTING = "starting"
    """The worker prepares the rollout."""
    WAITING_FOR_MACHINE = "waiting for a machine"
    """All machines of the pool are in use."""
    OPENING = "opening"
    """The environment is set up for the task."""
    WORKING = "working"
    """The agent's own code runs."""
    GENERATING = "generating"
    """The model's endpoint handles a request."""
    ACTING = "acting"
    """The environment executes a tool call."""
    WAITING_FOR_ENDPOINT = "waiting for the endpoint"
    """The rate limit is used up, or a failed request is repeated after a pause."""
    SCORING = "scoring"
    """The answer is scored."""
    CLOSING = "closing"
    """The environment is closed and the machine is released."""

    @property
    def code(self) -> int:
        """The number of the activity in journals."""
        return _CODES[self]


_WORDS = tuple(RolloutActivity)
_CODES = {word: code for code, word in enumerate(_WORDS)}


class ActivityInterval(NamedTuple):
    """An activity and its duration. The intervals of an execution follow each other; the first begins when it started."""

    activity: RolloutActivity
    seconds: float


def merged(intervals: Sequence[ActivityInterval], most: int = MOST_INTERVALS) -> list[ActivityInterval]:
    """Return at most `most` intervals; the seconds of each activity stay the same.

    If there are too many, an interval is added to the previous one of the same activity. The pairs with the shortest time between
    them are chosen first, so long intervals keep their place.
    """
    joined = _without_repetitions(intervals)
    while len(joined) > most:
        shorter = _without_repetitions(_add_to_earlier(joined, len(joined) - most))
        if len(shorter) == len(joined):
            break  # every activity occurs once
        joined = shorter
    return joined


def _without_repetitions(intervals: Iterable[ActivityInterval]) -> list[ActivityInterval]:
    joined: list[ActivityInterval] = []
    last: RolloutActivity | None = None
    for interval in intervals:
        activity, seconds = interval
        if not 0 < seconds < _LONGEST:
            continue
        if activity is last:
            joined[-1] = ActivityInterval(activity, joined[-1].seconds + seconds)
        else:
            joined.append(interval)
            last = activity
    return joined


def _add_to_earlier(intervals: Sequence[ActivityInterval], number: int) -> list[ActivityInterval]:
    """Add `number` intervals to the previous ones of the same activity: those with the shortest time between."""
    earlier: dict[int, int] = {}
    gaps: list[tuple[float, int]] = []
    latest: dict[RolloutActivity, tuple[int, float]] = {}
    now = 0.0
    for position, (activity, seconds) in enumerate(intervals):
        if activity in latest:
            earlier[position], ended = latest[activity]
            gaps.append((now - ended, position))
        now += seconds
        latest[activity] = (position, now)
    kept: list[float] = [interval.seconds for interval in intervals]
    moved = sorted(position for _, position in sorted(gaps)[:number])
    for position in reversed(moved):
        kept[earlier[position]] += kept[position]
        kept[position] = 0.0
    return [ActivityInterval(interval.activity, seconds) for interval, seconds in zip(intervals, kept, strict=True)]


def pack_activity(intervals: Sequence[ActivityInterval]) -> bytes:
    """Return intervals as bytes, five for each; intervals without a positive duration are left out, too many are `merged`."""
    return b"".join(_INTERVAL.pack(_CODES[activity], seconds) for activity, seconds in merged(intervals))


def unpack_activity(body: bytes | None) -> list[ActivityInterval]:
    """Return the intervals that `pack_activity` packed; none for the `activity` None of a result.

    Raises:
        ValueError: these are not packed intervals.
    """
    if body is None:
        return []
    if len(body) % _INTERVAL.size or any(code >= len(_WORDS) for code in body[:: _INTERVAL.size]):
        raise ValueError("not packed activities")
    return [ActivityInterval(_WORDS[code], seconds) for code, seconds in _INTERVAL.iter_unpack(body)]
