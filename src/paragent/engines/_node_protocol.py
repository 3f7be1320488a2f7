"""What a station is sent out with, and what it and the driver say to each other besides work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.tasks import Ending, Outcome

if TYPE_CHECKING:
    from paragent.tasks import ErrorInfo
    from paragent.transport.auth import Token
    from paragent.worker.output import Line

__all__ = ["HEARTBEAT", "KILL", "RENEW", "SILENCE", "Posting", "Report", "Surroundings", "from_wire", "to_wire"]

KILL, RENEW = "kill", "renew"
"""Driver to station: report the worker's calls as cancelled, kill it and start another; replace an idle worker."""

HEARTBEAT = 2.0
"""Seconds after which a station that has nothing to say says so."""
SILENCE = 15 * HEARTBEAT
"""Seconds without a word after which the other end is given up; long, for nodes that swap or pause."""


class Surroundings(NamedTuple):
    """What a worker on the driver's own machine shares with the driver, as a process started by it would."""

    sys_path: tuple[str, ...]
    directory: str
    environment: dict[str, str]


class Posting(NamedTuple):
    """Everything that a station needs to know; it travels as the argument of a Ray actor or a Spark task."""

    name: str
    host: str
    port: int
    token: Token
    sync_limit: int
    async_limit: int
    shared_limit: bool
    slots: int
    log_level: int
    python: tuple[int, int]
    """The driver's Python version: pickled code does not travel between different ones."""
    surroundings: Surroundings | None
    """None: the station is on another machine and has its own."""

    def __repr__(self) -> str:
        return f"Posting({self.name!r}, {self.host}:{self.port})"  # short: it ends up in logs

    @property
    def version_problem(self) -> str | None:
        """Why a worker of this process could not understand the driver, or None."""
        ours = sys.version_info[:2]
        if ours == self.python:
            return None
        return (
            f"the workers have Python {ours[0]}.{ours[1]} and the driver has {self.python[0]}.{self.python[1]}; "
            "use the same minor version on both"
        )


_WireOutcome = tuple[int, Ending, Any, "ErrorInfo | None", float, str, bool, "dict[str, float] | None", Any]


class Report(NamedTuple):
    """What happened at a station since it last spoke; an empty one is a heartbeat."""

    outcomes: list[_WireOutcome]
    lines: list[Line]
    place: str
    """Where the worker is, as `host:pid`."""
    answered: bool
    """Whether the worker, or one before it, has said anything."""
    recalled: bool = False
    """The reply to RECALL: what had not started is among the outcomes."""
    ended: str | None = None
    """The station gives up, and why."""


def to_wire(outcome: Outcome) -> _WireOutcome:
    """Return an outcome as a tuple, which is pickled several times faster."""
    return (
        outcome.number,
        outcome.ending,
        outcome.value,
        outcome.error,
        outcome.seconds,
        outcome.worker,
        outcome.alone,
        outcome.usage,
        outcome.trajectory,
    )


def from_wire(outcome: _WireOutcome) -> Outcome:
    """Return the outcome that `to_wire` was given."""
    return Outcome(*outcome)
