"""Live status of a run: one file per worker process, replaced twice a second, and the progress that the driver shows.

The driver also reads from these files what a worker that was killed had used. Workers on hosts that do not share the run
directory are counted but not described.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here, is_alive
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import error_summary
from paragent.tasks import CUT_ENDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.rollout.episode import RolloutEpisode
    from paragent.rollout.live_run import LiveBudget
    from paragent.rollout.machines import MachineCounts
    from paragent.rollout.work_clock import WorkClock
    from paragent.store import PendingRollout, Summary

__all__ = [
    "ActiveRollout",
    "LeftFiles",
    "LiveRollout",
    "LiveStatus",
    "RolloutProgress",
    "RunState",
    "StatusFile",
    "TokenUsage",
    "UnfinishedRollout",
    "find_left_files",
    "last_status",
    "read_status_files",
    "running_rollouts",
    "usage_of",
]

_STATUS_FILES = "*-[0-9]*.json"
"""The names of status files, `HOST-PID.json`. The folder also has the files of the session, whose names have no number."""
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
_FAILED = (RolloutStatus.FAILED, RolloutStatus.TIMED_OUT)
_CANCEL_AGAIN = 10.0
"""Seconds after which a cancelled rollout that has not ended is cancelled again; cleaning up takes less."""
_STALE_AFTER = 5.0
"""Seconds after which a status file belongs to a worker that has ended."""
_REPORT_ENDED = 5.0
"""Seconds for which a worker reports an execution after its end. Normally its result is recorded milliseconds after the end."""
_POLL_INTERVAL = 0.02


class RunState(StrEnum):
    """What the session of a run is doing. The normal path is starting, running, complete; only the session sets it."""

    STARTING = "starting"
    """The session holds the lock of the run directory and has dispatched no rollout: machines start."""
    RUNNING = "running"
    """Rollouts are dispatched as long as some are pending."""
    PAUSING = "pausing"
    """No new rollouts start; some are under way."""
    PAUSED = "paused"
    """No new rollouts start, and none is under way."""
    STOPPING = "stopping"
    """The session ends: no new rollouts start, and those under way finish or are cancelled."""
    COMPLETE = "complete"
    """The session has ended, and every rollout has a result."""
    STOPPED = "stopped"
    """The session has ended, and rollouts are pending."""

    @property
    def ended(self) -> bool:
        """Whether no session is active."""
        return self in {RunState.COMPLETE, RunState.STOPPED}


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of some executions. `prompt` and `completion` include those of the judge, and are None if they are unknown."""

    prompt: int | None = 0
    completion: int | None = 0
    judge_prompt: int = 0
    judge_completion: int = 0

    @property
    def total(self) -> int | None:
        """Prompt and completion tokens together; None if they are unknown."""
        return None if self.prompt is None or self.completion is None else self.prompt + self.completion

    def __add__(self, other: TokenUsage) -> TokenUsage:
        known = self.total is not None and other.total is not None
        return TokenUsage(
            (self.prompt or 0) + (other.prompt or 0) if known else None,
            (self.completion or 0) + (other.completion or 0) if known else None,
            self.judge_prompt + other.judge_prompt,
            self.judge_completion + other.judge_completion,
        )


@dataclass(slots=True, eq=False)
class ActiveRollout:
    """A rollout that this worker is executing. Its constructor must be called by the asyncio task that executes it."""

    rollout: PendingRollout
    clock: WorkClock
    machine: str = ""
    """The machine that it leases."""
    episode: RolloutEpisode | None = None
    """None until its environment is constructed."""
    ending: bool = False
    """Whether it has a result and cleans up, so that it can no longer be cancelled."""
    cancelled: bool = False
    """Whether a user cancelled it."""
    _task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    _cancels: int = 0
    _cancelled_at: float = -math.inf

    def cancel(self) -> None:
        """Cancel the asyncio task. Code that ignores that is cancelled again after some seconds."""
        now = time.monotonic()
        if self.ending or self._task is None or now - self._cancelled_at < _CANCEL_AGAIN:
            return
        self.cancelled, self._cancelled_at = True, now
        self._cancels += self._task.cancel()

    def take_cancellation(self) -> bool:
        """Return whether the task ends because of `cancel` only, and let it continue, to clean up and return a result."""
        if not self.cancelled or self._task is None:
            return False
        for _ in range(self._cancels):
            self._task.uncancel()
        self._cancels, self.ending = 0, True
        return self._task.cancelling() == 0


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
        self._ended: deque[tuple[float, list[Any]]] = deque()
        """Executions that ended a moment ago, each with the time of its end: their results may not be recorded yet."""

    def leave(self, rollout: ActiveRollout) -> None:
        """Move a rollout that ended from the active ones to those that ended."""
        self.active.discard(rollout)
        if rollout.episode is not None and rollout.episode.requests:
            self._ended.append((time.monotonic(), _recorded(rollout)))

    def write(self, requests: tuple[int, int]) -> None:
        """Write the status; do nothing if the folder does not exist on this host.

        Args:
            requests: the requests in flight, and how many may be in flight.
        """
        now = time.monotonic()
        while self._ended and now - self._ended[0][0] > _REPORT_ENDED:
            self._ended.popleft()
        content = {
            "at": time.time(),
            "worker": here(),
            "requests": requests,
            "rollouts": [_described(one, now) for one in self.active],
            "active": [_recorded(one) for one in self.active],
            "ended": [row for _, row in self._ended],
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
    used: dict[tuple[str, int], TokenUsage] = field(default_factory=dict)
    """What the rollouts have used so far, by task and attempt."""


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
            live.used |= {(one.task, one.attempt): usage_of(one) for one in _unfinished(status)}
    live.rollouts.sort(key=lambda rollout: rollout.worked, reverse=True)
    return live


@dataclass(frozen=True, slots=True)
class LeftFiles:
    """The status files that a session finds when none of its own workers is active."""

    executions: list[UnfinishedRollout]
    """The executions in the files, also those that returned a result and ended a moment before."""
    of_ended: list[Path]
    """Files of workers that have ended; to be deleted when the executions are recorded."""
    of_active: list[Path]
    """Files of workers that may still be active."""

    def remove_ended(self) -> None:
        """Delete the files of workers that have ended, when their executions are recorded."""
        for path in self.of_ended:
            with contextlib.suppress(OSError):  # the executions in a file that stays are not counted again
                path.unlink()


def find_left_files(folder: Path, wait: float = 0.0) -> LeftFiles:
    """Read the status files that workers have left behind.

    Workers end with their session, but not in the same moment.

    Args:
        folder: the folder of status files.
        wait: how many seconds to wait at most for workers that are active.
    """
    deadline = time.monotonic() + wait
    while True:
        found = LeftFiles([], [], [])
        reporting = False
        for path in folder.glob(_STATUS_FILES):
            ended, stale = _has_ended(path), True
            with contextlib.suppress(TypeError, ValueError, KeyError):  # another program wrote this file
                status = _read(path)  # after the check: the last report of a worker that has ended
                stale = status is None or time.time() - status["at"] > _STALE_AFTER
                found.executions.extend(_unfinished(status, "active", "ended"))
            (found.of_ended if ended or (ended is None and stale) else found.of_active).append(path)
            reporting = reporting or not (ended or stale)
        if not reporting or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_INTERVAL)


def _has_ended(path: Path) -> bool | None:
    """Return whether the worker with this status file has ended; None if it is on another host."""
    host, _, pid = path.stem.rpartition("-")
    if host != socket.gethostname() or not pid.isdigit():
        return None
    return int(pid) == os.getpid() or not is_alive(int(pid))  # this process executes nothing at that time


def running_rollouts(folder: Path) -> list[UnfinishedRollout]:
    """Return what the rollouts under way have done so far, from the status files of all workers that share the run directory."""
    found: list[UnfinishedRollout] = []
    for path in folder.glob(_STATUS_FILES):
        with contextlib.suppress(TypeError, ValueError, KeyError):  # another program wrote this file
            status = _read(path)
            if status is not None and time.time() - status["at"] <= _STALE_AFTER:
                found += _unfinished(status)
    return found


def last_status(folder: Path, worker: str, task: str, attempt: int) -> UnfinishedRollout | None:
    """Return what a worker, given as `host:pid`, reported last about a rollout that it was executing; None if unknown."""
    host, _, pid = worker.rpartition(":")
    if not host or "/" in host or not pid.isdigit():
        return None
    found = _unfinished(_read(folder / f"{host}-{pid}.json"))
    return next((one for one in found if (one.task, one.attempt) == (task, attempt)), None)


def _unfinished(status: dict[str, Any] | None, *lists: str) -> Iterator[UnfinishedRollout]:
    """Yield the executions in the lists with these names of a status file; without a name, those that are active."""
    if status is None:
        return
    for name in lists or ["active"]:
        for task, attempt, started, machine, activity, *usage in status.get(name, ()):
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
    """The name of the run."""
    path: Path
    """The run directory."""
    total: int
    """How many rollouts the run has."""
    done: int = 0
    """Rollouts with a final result; infrastructure failures are not counted."""
    score: float = 0.0
    """The sum of the scores."""
    measured: int = 0
    """Results that count in the mean, as in `Summary.measured`."""
    cut: int = 0
    """Results whose answer may be incomplete, as in `Summary.cut`."""
    infrastructure_failures: int = 0
    """Rollouts that failed because of infrastructure."""
    failures: Counter[str] = field(default_factory=Counter)
    """The number of failures by message."""
    reasons: dict[str, str] = field(default_factory=dict)
    """An error message of each kind of failure: the last one of this session, else the most frequent one."""
    failed: int = 0
    """Final results with the status `failed` or `timed out`."""
    cancelled: int = 0
    """Rollouts that a user cancelled."""
    usage: TokenUsage = TokenUsage()
    """The tokens of all results that are recorded."""
    active: int = 0
    """Rollouts that are under way."""
    retries: int = 0
    """Executions of this session that failed because of infrastructure and are retried."""
    done_before: int = 0
    """Results of earlier sessions."""
    started: float = field(default_factory=time.monotonic)
    """When the session began, on the clock of `time.monotonic`."""
    state: RunState = RunState.STARTING
    """The state of the session."""
    note: str = ""
    """What the session is doing besides executing rollouts, such as starting machines."""
    num_rollouts: int = 0
    """How many rollouts may be under way."""
    budgets: list[LiveBudget] = field(default_factory=list)
    """The budgets of the run, and how much of each is used."""
    live: LiveStatus = field(default_factory=LiveStatus)
    """What the rollouts under way are doing."""
    machines: MachineCounts | None = None
    """How many machines are in each state; None if the run has no machines."""

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
        progress.done = progress.done_before = summary.done
        progress.failures.update(failures)
        progress.reasons.update({kind: next(iter(messages)) for kind, messages in summary.reasons.items() if messages})
        progress.failed = sum(summary.statuses[status] for status in _FAILED)
        progress.cancelled = summary.statuses[RolloutStatus.CANCELLED]
        progress.measured, progress.cut = summary.measured, summary.cut
        progress.score = (summary.mean or 0.0) * summary.measured
        progress.usage = TokenUsage(
            summary.prompt_tokens,
            summary.completion_tokens,
            summary.judge_prompt_tokens,
            summary.judge_completion_tokens,
        )
        return progress

    @property
    def prompt_tokens(self) -> int | None:
        """The prompt tokens of all recorded results; None if unknown."""
        return self.usage.prompt

    @property
    def completion_tokens(self) -> int | None:
        """The completion tokens of all recorded results; None if unknown."""
        return self.usage.completion

    @property
    def mean(self) -> float | None:
        """The mean score of the results measured so far, as in `Summary.mean`; None without any."""
        return self.score / self.measured if self.measured else None

    @property
    def seconds(self) -> float:
        """The duration of this session."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """The estimated time to the end, from the speed of this session."""
        ended = self.done + self.infrastructure_failures
        ended_now = ended - self.done_before
        return (self.total - ended) * self.seconds / ended_now if ended_now > 0 else None

    def count(self, result: RolloutResult) -> None:
        """Count a result that has been recorded."""
        self.usage += usage_of(result)
        if not result.final:
            self.retries += 1
            return
        if result.kind and result.status is not RolloutStatus.CANCELLED:
            self.reasons[result.kind] = error_summary(result.error)
        self._count_final(result, 1)

    def reopen(self, result: RolloutResult) -> None:
        """Count a final result no more, because its rollout is executed again; what it used stays counted."""
        self._count_final(result, -1)

    def _count_final(self, result: RolloutResult, number: int) -> None:
        if result.kind and result.status is not RolloutStatus.CANCELLED:
            self.failures[result.kind] += number
            if not self.failures[result.kind]:
                del self.failures[result.kind]
        if result.status is RolloutStatus.INFRASTRUCTURE:
            self.infrastructure_failures += number
            return
        self.done += number
        self.failed += number * (result.status in _FAILED)
        self.cancelled += number * (result.status is RolloutStatus.CANCELLED)
        self.cut += number * (result.ending in CUT_ENDINGS)
        if result.is_measured:
            self.measured += number
            self.score += number * (result.score or 0.0)


def usage_of(result: RolloutResult | UnfinishedRollout) -> TokenUsage:
    """Return the tokens of an execution."""
    return TokenUsage(
        result.prompt_tokens, result.completion_tokens, result.judge_prompt_tokens, result.judge_completion_tokens
    )
