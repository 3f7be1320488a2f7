"""Work and waiting, told apart: time that an attempt waits for an endpoint or a machine is not its own.

Whoever runs an attempt may set `current_activity`; models and environments say what the attempt is doing without knowing who
listens.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Activity", "current_activity", "doing", "waiting"]


class Activity(Protocol):
    """Listens to what one attempt is doing."""

    def doing(self, what: str) -> None:
        """The attempt works on this now."""

    def pause(self, what: str, seconds: float | None) -> None:
        """The attempt waits from now on, for about so many seconds where that is known."""

    def resume(self) -> None:
        """The waiting that began last is over."""


current_activity: ContextVar[Activity | None] = ContextVar("paragent_activity", default=None)


def doing(what: str) -> None:
    """Say what the attempt under way does now: `generating`, `calculator`, ..."""
    if activity := current_activity.get():
        activity.doing(what)


@contextlib.contextmanager
def waiting(what: str, seconds: float | None = None) -> Iterator[None]:
    """Mark a wait for something that others hold: it is shown, and does not count against the time limit of the attempt."""
    activity = current_activity.get()
    if activity is None:
        yield
        return
    activity.pause(what, seconds)
    try:
        yield
    finally:
        activity.resume()
