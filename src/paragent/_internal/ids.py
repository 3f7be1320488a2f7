"""Unique ids: a random prefix for each process and a counter."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["new_id", "new_trace_id"]

_prefix: str
_next_number: Callable[[], int]
_next_trace: Callable[[], int]


def _renew() -> None:
    """Draw the random parts of the ids of this process; a forked child draws its own."""
    global _prefix, _next_number, _next_trace
    _prefix, _next_number = os.urandom(5).hex(), itertools.count().__next__
    _next_trace = itertools.count(int.from_bytes(os.urandom(5)) << 88).__next__


_renew()
os.register_at_fork(after_in_child=_renew)


def new_id(kind: str) -> str:
    """Return `kind-<random>-<n>`: unique among all processes, numbered in order of creation within one."""
    return f"{kind}-{_prefix}-{_next_number()}"


def new_trace_id() -> str:
    """Return 32 hexadecimal digits, the form that W3C Trace Context and OpenTelemetry use."""
    return f"{_next_trace():032x}"
