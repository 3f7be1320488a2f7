"""Whether an attempt that ended is the last one. No I/O, no clock.

A lost worker is nobody's fault, so two more attempts are made unless the user says otherwise. A failure of the task's own
code is an answer of a kind, so it is tried again only if the user asked for retries. A time limit is a budget: spent is
spent. An attempt that was displaced by a neighbour's end is made again and not charged.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from paragent.config import LOST_RETRIES
from paragent.tasks import Ending, Outcome

if TYPE_CHECKING:
    from paragent.runners.responses import Owed

__all__ = ["Verdict", "judge", "smaller_company"]


class Verdict(Enum):
    """What to do after an attempt."""

    SETTLE = auto()
    """It decides."""
    RETRY = auto()
    """Another attempt, charged to the task."""
    REPEAT = auto()
    """The same attempt again; it was not the task's doing."""
    NARROW = auto()
    """The same attempt again in smaller company: one of several calls killed the worker, and we do not know which."""


def judge(owed: Owed, outcome: Outcome) -> Verdict:
    """Return what to do about `owed` after this outcome of its current attempt."""
    ending = outcome.ending
    if ending is Ending.DISPLACED:
        return Verdict.REPEAT
    if ending is Ending.LOST:
        if not outcome.alone:
            return Verdict.NARROW
        allowed = LOST_RETRIES if owed.max_retries is None else owed.max_retries
        return Verdict.RETRY if owed.attempt <= allowed else Verdict.SETTLE
    if ending is Ending.RAISED and outcome.error and outcome.error.retryable:
        return Verdict.RETRY if owed.attempt <= (owed.max_retries or 0) else Verdict.SETTLE
    return Verdict.SETTLE


def smaller_company(suspects: int, company: int, workers: int) -> int:
    """Return the size of the groups in which calls run again after `suspects` of them were in a worker that died.

    Args:
        suspects: how many were running in it.
        company: the group size that was already asked for; 0: none.
        workers: how many groups can run at the same time.
    """
    size = suspects if not company else min(suspects, company)
    return max(1, size // max(2, workers))
