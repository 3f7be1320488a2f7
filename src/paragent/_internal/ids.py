"""Unique ids: a random prefix for each process and a counter."""

from __future__ import annotations

import itertools
import os

__all__ = ["new_id", "new_trace_id"]


class _Sequence:
    """A random prefix and a counter; a forked child gets a prefix of its own."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.prefix = os.urandom(5).hex()
        self.counter = itertools.count()


_sequence = _Sequence()
os.register_at_fork(after_in_child=_sequence.renew)


def new_id(kind: str) -> str:
    """Return `kind-<random>-<n>`: unique among all processes, numbered in order of creation within one."""
    return f"{kind}-{_sequence.prefix}-{next(_sequence.counter)}"


def new_trace_id() -> str:
    """Return 32 hexadecimal digits, the form that W3C Trace Context and OpenTelemetry use."""
    return f"{_sequence.prefix}{next(_sequence.counter):022x}"
