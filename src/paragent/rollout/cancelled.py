"""`live/cancelled.json`: the rollouts that workers have to cancel. Workers read it with each status report."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CancelledFile", "write_cancelled"]

_FILE = "cancelled.json"


def write_cancelled(folder: Path, rollouts: Iterable[tuple[str, int]]) -> None:
    """Replace the list of rollouts to cancel, given by task and attempt.

    Raises:
        OSError: the file cannot be written.
    """
    draft = folder / f".{_FILE}.draft"
    draft.write_text(json.dumps(sorted(rollouts)))
    draft.replace(folder / _FILE)


class CancelledFile:
    """The list as a worker sees it. A worker that does not share the run directory sees an empty list."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / _FILE
        self._version: tuple[int, int] | None = None
        self._rollouts: frozenset[tuple[str, int]] = frozenset()

    def read(self) -> frozenset[tuple[str, int]]:
        """Return the rollouts to cancel, by task and attempt; the file is read again if it was replaced."""
        with contextlib.suppress(OSError, ValueError):
            status = self._path.stat()
            version = (status.st_ino, status.st_mtime_ns)
            if version != self._version:
                self._rollouts = frozenset((task, attempt) for task, attempt in json.loads(self._path.read_text()))
                self._version = version
        return self._rollouts
