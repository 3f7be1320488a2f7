"""Live status of a run: one file per worker process, replaced twice a second, and the progress that the driver shows.

The driver also reads from these files what a worker that was killed had used. Workers on hosts that do not share the run
directory are counted but not described.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here, is_alive
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import error_summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.rollout.episode import RolloutEpisode
    from paragent.rollout.machines import MachineCounts
    from paragent.rollout.work_clock import WorkClock
    from paragent.store import PendingRollout, Summary

__all__ = [
    "ActiveRollout",
    "LiveRollout",
    "LiveStatus",
    "RolloutProgress",
    "StatusFile",
    "UnfinishedRollout",
    "last_status",
    "read_status_files",
    "unfinished_rollouts",
]

_STATUS_FILES = "*-[0-9]*.json"
"""The names of status files, `HOST-PID.json`. The folder also has the files of the session, whose names have no number."""
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
_STALE_AFTER = 5.0
"""Seconds after which a status file belongs to a worker that has ended."""


@dataclass(slots=True, eq=False)
class ActiveRollout:
    """A rollout that this worker is executing."""

    rollout: PendingRollout
    clock: WorkClock
    machine: str = ""
    """The machine that it leases."""
    episode: RolloutEpisode | None = None
    """None until its environment is constructed."""


@dataclass(frozen=True, slots=True)
class UnfinishedRollout:
    """What a rollout had done and used when its worker wrote its status for the last time."""

    task: str
    attempt: int
    worker: str
    """`host:pid`."""
    reported: float
    """When the worker wrote the status, in seconds since the epoch."""
    started: float
    machine: str
    activity: bytes
    """As `pack_activity` returns it."""
    requests: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    judge_prompt_tokens: int
    judge_completion_tokens: int


class StatusFile:
    """The status file of this worker process."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"{socket.gethostname()}-{os.getpid()}.json"
        self.active: set[ActiveRollout] = set()

    def write(self, requests: tuple[int, int]) -> None:
        """Write the status; do nothing if the folder does not exist on this host.

        Args:
            requests: the requests in flight, and how many may be in flight.
        """
        now = time.monotonic()
        content = {
            "at": time.time(),
            "worker": here(),
            "requests": requests,
            "rollouts": [_described(one, now) for one in self.active],
            "active": [_recorded(one) for one in self.active],
        }
        draft = self._path.with_suffix(".draft")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(content))
            draft.replace(self._path)

    def remove(self) -> None:
        """Remove the file: this worker executes nothing."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def _described(one: ActiveRollout, now: float) -> dict[str, Any]:
    clock = one.clock
    until = None if clock.until is None else max(0.0, clock.until - now)
    rollout = one.rollout
    return asdict(
        LiveRollout(
            rollout.label,
            clock.activity,
            now - clock.since,
            until,
            clock.worked,
            rollout.task.id,
            rollout.attempt,
            here(),
            one.machine,
        )
    )


def _recorded(one: ActiveRollout) -> list[Any]:
    """Return the fields of `UnfinishedRollout` without `worker` and `reported`, and with the activity as text."""
    facts = [one.clock.started, one.machine, one.clock.packed_activity().hex()]
    usage: list[int | None] = [0, 0, 0, None, None, 0, 0]
    if (episode := one.episode) is not None:
        counts = episode.usage or {}
        tokens = [counts.get(name) for name in _TOKENS]
        usage = [episode.requests, *tokens, *episode.judge_usage.values()]
    return [one.rollout.task.id, one.rollout.attempt, *facts, *usage]


@dataclass(frozen=True, slots=True)
class LiveRollout:
    """A rollout that is being executed, as its worker reports it."""

    label: str
    activity: str
    since: float
    """Seconds since the activity began."""
    until: float | None
    """Seconds until the current wait ends; None if unknown."""
    worked: float
    """Working time in seconds."""
    task: str = ""
    attempt: int = 1
    worker: str = ""
    """`host:pid`."""
    machine: str = ""


@dataclass(slots=True)
class LiveStatus:
    """The status files of all workers together."""

    in_flight: int = 0
    """Requests to the endpoint in flight."""
    request_limit: int = 0
    """How many may be in flight."""
    rollouts: list[LiveRollout] = field(default_factory=list)
    """The slowest first."""


def read_status_files(folder: Path) -> LiveStatus:
    """Return the status of all workers that share the run directory."""
    live = LiveStatus()
    with contextlib.suppress(OSError):
        for path in folder.glob(_STATUS_FILES):
            status = _read(path)
            if status is None or time.time() - status["at"] > _STALE_AFTER:
                continue
            live.in_flight += status["requests"][0]
            live.request_limit += status["requests"][1]
            live.rollouts += [LiveRollout(**one) for one in status["rollouts"]]
    live.rollouts.sort(key=lambda rollout: rollout.worked, reverse=True)
    return live


def unfinished_rollouts(folder: Path) -> Iterator[UnfinishedRollout]:
    """Yield the unfinished rollouts of workers that died on this host, and remove their status files."""
    for path in folder.glob(f"{socket.gethostname()}-*.json"):
        pid = path.stem.rpartition("-")[2]
        if pid.isdigit() and is_alive(int(pid)):
            continue
        status = _read(path)
        path.unlink(missing_ok=True)
        yield from _unfinished(status)


def last_status(folder: Path, worker: str, task: str, attempt: int) -> UnfinishedRollout | None:
    """Return what a worker on this host, given as `host:pid`, reported last about a rollout; None if that is unknown."""
    host, _, pid = worker.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return None
    found = _unfinished(_read(folder / f"{host}-{pid}.json"))
    return next((one for one in found if (one.task, one.attempt) == (task, attempt)), None)


def _unfinished(status: dict[str, Any] | None) -> Iterator[UnfinishedRollout]:
    if status is not None:
        for task, attempt, started, machine, activity, *usage in status["active"]:
            facts = (started, machine, bytes.fromhex(activity))
            yield UnfinishedRollout(task, attempt, status["worker"], status["at"], *facts, *usage)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return status


@dataclass(slots=True)
class RolloutProgress:
    """The progress of a run, earlier sessions included."""

    run: str
    path: Path
    total: int
    done: int = 0
    """Rollouts with a final result; infrastructure failures are not counted."""
    score: float = 0.0
    """The sum of the scores."""
    counted: int = 0
    """Results that count in the mean."""
    infrastructure_failures: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    """The last error message of each kind of failure."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    active: int = 0
    retries: int = 0
    """Executions of this session that failed because of infrastructure and are retried."""
    done_before: int = 0
    """Results of earlier sessions."""
    started: float = field(default_factory=time.monotonic)
    note: str = ""
    """What the session is doing besides executing rollouts, such as starting machines."""
    live: LiveStatus = field(default_factory=LiveStatus)
    machines: MachineCounts | None = None

    @classmethod
    def resumed(cls, run: str, path: Path, summary: Summary, failures: Mapping[str, int]) -> RolloutProgress:
        """Return the progress at the start of a session.

        Args:
            run: the name of the run.
            path: the run directory.
            summary: the statistics of earlier sessions.
            failures: the final failures by kind.
        """
        progress = cls(run, path, summary.rollouts)
        progress.done = progress.done_before = summary.rollouts - summary.pending
        progress.failures.update(failures)
        progress.reasons.update(summary.reasons)
        if summary.mean_without_infrastructure is not None:
            failed = (RolloutStatus.FAILED, RolloutStatus.TIMED_OUT)
            progress.counted = summary.scored + sum(summary.statuses[status] for status in failed)
            progress.score = summary.mean_without_infrastructure * progress.counted
        progress.prompt_tokens, progress.completion_tokens = summary.prompt_tokens, summary.completion_tokens
        return progress

    @property
    def mean(self) -> float | None:
        """The mean score so far; failures count as 0."""
        results = self.counted + self.infrastructure_failures
        return self.score / results if results else None

    @property
    def seconds(self) -> float:
        """The duration of this session."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """The estimated time to the end, from the speed of this session."""
        ended = self.done + self.infrastructure_failures
        ended_now = ended - self.done_before
        return (self.total - ended) * self.seconds / ended_now if ended_now else None

    def count(self, result: RolloutResult) -> None:
        """Count a result that has been recorded."""
        if result.prompt_tokens is None or self.prompt_tokens is None:
            self.prompt_tokens = self.completion_tokens = None
        else:
            self.prompt_tokens += result.prompt_tokens
            self.completion_tokens = (self.completion_tokens or 0) + (result.completion_tokens or 0)
        if not result.final:
            self.retries += 1
            return
        if result.kind:
            self.failures[result.kind] += 1
            self.reasons[result.kind] = error_summary(result.error)
        if result.status is RolloutStatus.INFRASTRUCTURE:
            self.infrastructure_failures += 1
            return
        self.done += 1
        if result.score is not None or result.status is not RolloutStatus.COMPLETED:
            self.counted += 1
            self.score += result.score or 0.0
