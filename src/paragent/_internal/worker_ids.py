"""Ids of worker processes, by which something that a worker holds elsewhere, such as a machine, is freed when the worker ends.

The name of a process, `host:pid`, is not enough: the system uses a pid again, and two hosts or containers may have one name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["announce_end", "observe_ends", "set_worker_id", "stop_observing", "worker_id"]

_own = ""
_observers: list[Callable[[str], object]] = []


def worker_id() -> str:
    """Return the id of this process; empty if it is not a worker of an engine."""
    return _own


def set_worker_id(given: str) -> None:
    """Set the id of this process, which its engine has chosen."""
    global _own
    _own = given


def observe_ends(observer: Callable[[str], object]) -> None:
    """Call `observer`, from any thread, with the id of each worker of this program that has ended."""
    _observers.append(observer)


def stop_observing(observer: Callable[[str], object]) -> None:
    """Undo `observe_ends`; no error if that was not called."""
    with contextlib.suppress(ValueError):
        _observers.remove(observer)


def announce_end(ended: str) -> None:
    """Tell the observers that a worker has ended, or that its engine has given it up; repeating it does no harm."""
    for observer in _observers.copy():
        observer(ended)
