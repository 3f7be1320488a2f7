"""Failures of rollouts: the boundary at which they happened, and messages without their varying parts."""

from __future__ import annotations

import re

__all__ = ["boundary_of", "normalised_message"]

_VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"")
"""What differs between two messages of the same error: numbers, addresses, quoted names."""
_BOUNDARIES = {
    "endpoint": "endpoint",
    "refused": "endpoint",
    "machine": "machine",
    "pool": "machine",
    "worker": "worker",
    "environment": "environment",
    "time limit": "time limit",
    "cancelled": "cancelled",
}
"""The boundary of each kind of failure that is not the name of an exception."""


def boundary_of(kind: str) -> str:
    """Return where a failure of this kind happened; `agent` for an error of the agent's code, empty without a failure."""
    return _BOUNDARIES.get(kind, "agent") if kind else ""


def normalised_message(error: str) -> str:
    """Return the first line of an error with `…` in place of numbers, addresses and quoted names."""
    return _VARYING.sub("…", error.partition("\n")[0])
