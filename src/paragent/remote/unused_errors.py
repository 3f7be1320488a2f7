"""Warnings about errors of remote calls whose results were dropped without having been used."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import sys
import time
from typing import Any

__all__ = ["warn_unused"]

_log = logging.getLogger("paragent.remote")

_EVERY = 1.0
"""Seconds between two warnings; a warning contains the number of errors since the previous one."""
_EXPECTED = frozenset({"AgentStopped", "CallCancelled"})
"""Errors that the program caused itself: it stopped the agent or cancelled the call."""


class _Count:
    """Number of errors since the last warning, and when that was. Threads may lose a count; no lock, as finalizers use it."""

    number = 0
    warned = float("-inf")


class _TextUnpickler(pickle.Unpickler):
    """Reads builtin values only, so that no code of an error's class runs in a finalizer."""

    def find_class(self, module: str, name: str) -> Any:
        """Reject every class and function."""
        raise pickle.UnpicklingError(f"{module}.{name} is not a builtin value")


def warn_unused(value: Any) -> None:
    """Log a warning about an encoded error that nothing will read. It never raises, so that finalizers may call it."""
    if sys.is_finalizing():
        return
    with contextlib.suppress(Exception):
        kind, message, *_ = value[1:] if value[0] == "x" else _TextUnpickler(io.BytesIO(value[1])).load()
        if kind in _EXPECTED:
            return
        _Count.number += 1
        now = time.monotonic()
        if now - _Count.warned >= _EVERY:
            number, _Count.number, _Count.warned = _Count.number, 0, now
            _log.warning(
                "a remote call failed, and its result was dropped without having been used: %s: %s (%d since the last such "
                "line); keep the result and call .result() or .exception()",
                kind,
                message,
                number,
            )
