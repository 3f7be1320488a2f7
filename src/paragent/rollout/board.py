"""What the rollouts of each worker are doing now: a small file for each worker process, replaced twice a second.

It is a courtesy to people who watch. Workers on machines that do not share the run's directory are counted, not described.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paragent.rollout.clock import WorkClock

__all__ = ["Board", "Sighting", "read_boards"]

_STALE = 5.0
"""Seconds after which a file is that of a worker which is gone."""


class Board:
    """The notes of this worker."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._path = self._folder / f"{socket.gethostname()}-{os.getpid()}.json"
        self.clocks: dict[str, WorkClock] = {}

    def write(self, pressure: tuple[int, int]) -> None:
        """Say what is going on; a folder that is not on this machine is left alone."""
        now = time.monotonic()
        rollouts = [
            [
                label,
                clock.what,
                now - clock.since,
                None if clock.until is None else max(0.0, clock.until - now),
                clock.worked,
            ]
            for label, clock in self.clocks.items()
        ]
        draft = self._path.with_suffix(".draft")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps({"at": time.time(), "pressure": pressure, "rollouts": rollouts}))
            draft.replace(self._path)

    def clear(self) -> None:
        """Say that nothing is going on."""
        with contextlib.suppress(OSError):
            self._path.unlink()


@dataclass(slots=True)
class Sighting:
    """All boards together."""

    in_flight: int = 0
    may_be_in_flight: int = 0
    rollouts: list[tuple[str, str, float, float | None, float]] = field(default_factory=list)
    """Label, what it does, for how long, how much longer (None: unknown), and its working time; the slowest first."""


def read_boards(folder: Path) -> Sighting:
    """Return what all workers on this machine say."""
    seen = Sighting()
    with contextlib.suppress(OSError):
        for path in folder.glob("*.json"):
            board = _read(path)
            if board is None or time.time() - board["at"] > _STALE:
                continue
            seen.in_flight += board["pressure"][0]
            seen.may_be_in_flight += board["pressure"][1]
            seen.rollouts += [tuple(one) for one in board["rollouts"]]
    seen.rollouts.sort(key=lambda one: one[4], reverse=True)
    return seen


def _read(path: Path) -> dict[str, Any] | None:
    try:
        board: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return board
