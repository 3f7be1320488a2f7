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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here, is_alive
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.rollout.clock import WorkClock
    from paragent.rollout.episode import RolloutEpisode
    from paragent.rollout.machines import MachinesSeen
    from paragent.store import Summary

__all__ = ["Board", "Sighting", "Tally", "UnderWay", "Unfinished", "left_by_the_dead", "read_boards"]


_STALE = 5.0
"""Seconds after which a file is that of a worker which is gone."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """A rollout that this worker plays."""

    task: str
    attempt: int
    clock: WorkClock
    started: float = field(default_factory=time.time)
    episode: RolloutEpisode | None = None
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


def _used(one: UnderWay, episode: RolloutEpisode) -> list[Any]:
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


@dataclass(slots=True)
class Tally:
    """Counts that begin with what earlier sessions recorded, so that a resumed run shows the whole."""

    run: str
    path: Path
    total: int
    done: int = 0
    """Durable results, without those that are owed again."""
    score: float = 0.0
    counted: int = 0
    """Results that enter the mean."""
    broken: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    """By what failed, the message of the last error of that kind."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    under_way: int = 0
    replays: int = 0
    """Plays that infrastructure ended and that were tried again."""
    before: int = 0
    """Results of earlier sessions."""
    started: float = field(default_factory=time.monotonic)
    note: str = ""
    """What is being done besides playing: stopping, for example."""
    sighting: Sighting = field(default_factory=Sighting)
    machines: MachinesSeen | None = None

    @classmethod
    def resumed(cls, run: str, path: Path, summary: Summary, failures: Mapping[str, int]) -> Tally:
        """Begin with what the journal has; `failures` are those that are final, by kind."""
        tally = cls(run, path, summary.rollouts)
        tally.done = tally.before = summary.rollouts - summary.owed
        tally.failures.update(failures)
        tally.reasons.update(summary.reasons)
        if summary.mean_of_played is not None:
            failed = (RolloutStatus.FAILED, RolloutStatus.TIMED_OUT)
            tally.counted = summary.scored + sum(summary.statuses[status] for status in failed)
            tally.score = summary.mean_of_played * tally.counted
        tally.prompt_tokens, tally.completion_tokens = summary.prompt_tokens, summary.completion_tokens
        return tally

    @property
    def mean(self) -> float | None:
        """The score so far, with everything that failed as 0."""
        return self.score / (self.counted + self.broken) if self.counted + self.broken else None

    @property
    def seconds(self) -> float:
        """Of this session."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this session."""
        here = self.done + self.broken - self.before
        return (self.total - self.done - self.broken) * self.seconds / here if here else None

    def count(self, play: RolloutResult) -> None:
        """Take in a play that is durable."""
        if play.prompt_tokens is None or self.prompt_tokens is None:
            self.prompt_tokens = self.completion_tokens = None
        else:
            self.prompt_tokens += play.prompt_tokens
            self.completion_tokens = (self.completion_tokens or 0) + (play.completion_tokens or 0)
        if not play.decides:
            self.replays += 1
            return
        if play.kind:
            self.failures[play.kind] += 1
            self.reasons[play.kind] = reason_of(play.error)
        if play.status is RolloutStatus.INFRASTRUCTURE:
            self.broken += 1
            return
        self.done += 1
        if play.score is not None or play.status is not RolloutStatus.COMPLETED:
            self.counted += 1
            self.score += play.score or 0.0
