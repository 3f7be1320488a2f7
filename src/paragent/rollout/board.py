"""What the rollouts of each worker are doing now and have used: a file for each worker process, replaced twice a second.

People watch it. The driver reads from it what a worker that was killed had used. Workers on machines that do not share the
run's directory are counted, not described.
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

from paragent._processes import here, is_alive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.rollout.clock import WorkClock
    from paragent.rollout.episode import PlayedEpisode

__all__ = ["Board", "Sighting", "UnderWay", "Unfinished", "left_by_the_dead", "read_boards"]

_STALE = 5.0
"""Seconds after which a file is that of a worker which is gone."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """A rollout that this worker plays."""

    task: str
    attempt: int
    clock: WorkClock
    started: float = field(default_factory=time.time)
    episode: PlayedEpisode | None = None
    """None until its environment is made."""

    @property
    def label(self) -> str:
        """What to call it."""
        return self.task if self.attempt == 1 else f"{self.task}#{self.attempt}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a rollout had used when its worker died."""

    task: str
    attempt: int
    worker: str
    """As `host:pid`."""
    started: float
    requests: int
    prompt_tokens: int | None
    completion_tokens: int | None
    judge_prompt_tokens: int
    judge_completion_tokens: int


class Board:
    """The notes of this worker."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._path = self._folder / f"{socket.gethostname()}-{os.getpid()}.json"
        self.under_way: set[UnderWay] = set()

    def write(self, pressure: tuple[int, int]) -> None:
        """Say what is going on; a folder that is not on this machine is left alone."""
        now = time.monotonic()
        content = {
            "at": time.time(),
            "worker": here(),
            "pressure": pressure,
            "rollouts": [_described(one, now) for one in self.under_way],
            "used": [_used(one, one.episode) for one in self.under_way if one.episode and one.episode.requests],
        }
        draft = self._path.with_suffix(".draft")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(content))
            draft.replace(self._path)

    def clear(self) -> None:
        """Say that nothing is going on."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def _described(one: UnderWay, now: float) -> list[Any]:
    clock = one.clock
    until = None if clock.until is None else max(0.0, clock.until - now)
    return [one.label, clock.what, now - clock.since, until, clock.worked]


def _used(one: UnderWay, episode: PlayedEpisode) -> list[Any]:
    amounts = [
        None if episode.usage is None else episode.usage[name] for name in ("prompt_tokens", "completion_tokens")
    ]
    return [one.task, one.attempt, one.started, episode.requests, *amounts, *episode.judge_usage.values()]


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


def left_by_the_dead(folder: Path) -> Iterator[Unfinished]:
    """Yield what the rollouts of workers that died on this machine had used, and forget it."""
    for path in folder.glob(f"{socket.gethostname()}-*.json"):
        pid = path.stem.rpartition("-")[2]
        if pid.isdigit() and is_alive(int(pid)):
            continue
        board = _read(path)
        path.unlink(missing_ok=True)
        if board is not None:
            for task, attempt, started, *amounts in board["used"]:
                yield Unfinished(task, attempt, board["worker"], started, *amounts)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        board: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return board
