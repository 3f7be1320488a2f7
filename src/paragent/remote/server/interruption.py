"""Stopping a sync method from outside."""

from __future__ import annotations

from paragent._threads import raise_in_thread

__all__ = ["Interruption", "interrupt"]


class Interruption(SystemExit):
    """Raised inside a sync method whose call was cancelled; not an `Exception`, so that it is not caught by mistake."""


def interrupt(thread: int) -> None:
    """Have Python code in another thread meet an `Interruption` at its next step; native code meets it on return."""
    raise_in_thread(thread, Interruption)
