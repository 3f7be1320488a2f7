"""`GroupQueue`: the groups of a rollout service. The session takes rollouts from it, the trainer takes groups from it.

The journal has the state that must survive this process (`GroupStore`); here is what can be made from it. One lock protects
everything. Trajectories stay in the journal until their group is delivered.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypeVar

from paragent._internal.ids import new_id
from paragent._internal.tracebacks import described
from paragent.errors import GroupNotOwed, ParagentError, ServiceStopped, UsageError
from paragent.store import AttemptResult, GroupState, GroupStore, PendingRollout, RolloutStatus, StoredGroup
from paragent.training.client import Group
from paragent.training.groups import Groups, Partial, build_samples, has_reward
from paragent.training.pacing import Pacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from paragent.models.rate_limit_server import RateLimitServer
    from paragent.store import RolloutResult
    from paragent.tasks import BenchmarkTask
    from paragent.training.replay import ReplayPolicy

__all__ = ["MOST_WAITING", "GroupQueue"]

MOST_WAITING = 1000
"""Tasks that wait before `add` blocks."""
_MOST_TRAINERS = 1000
"""Trainers that are remembered, the last one and those that it replaced."""
T = TypeVar("T")


@dataclass(slots=True)
class _OpenGroup:
    """An admitted group with attempts that have not ended."""

    stored: StoredGroup
    ended: dict[int, AttemptResult] = field(default_factory=dict)
    """By attempt."""


class GroupQueue:
    """Implements `RolloutSource` for the session. All methods may be called from any thread.

    Args:
        groups: the settings of groups.
        max_staleness: see `Pacing`.
        groups_per_version: see `Pacing`.
        failures: decides about failed rollouts.
    """

    def __init__(self, groups: Groups, max_staleness: int, groups_per_version: int, failures: ReplayPolicy) -> None:
        self._groups, self._limits = groups, (max_staleness, groups_per_version)
        self._policy = failures
        self._changed = threading.Condition()  # with a reentrant lock
        """Protects all of the following; notified after each change."""
        self._store: GroupStore
        self._reader: GroupStore
        """Another connection, with which trajectories are read while the session continues."""
        self._reading = threading.Lock()
        """Protects the reader."""
        self._pacing: Pacing
        self._pending: deque[PendingRollout] = deque()
        """Rollouts of admitted groups that have not started in this process."""
        self._open: dict[str, _OpenGroup] = {}
        self._finished: dict[str, StoredGroup] = {}
        """Groups to deliver, in the order in which they finished."""
        self._building: dict[str, StoredGroup] = {}
        """Groups that are read from the journal for a delivery."""
        self._delivered: dict[str, tuple[StoredGroup, str]] = {}
        """Groups that the trainer has, each with the id of its delivery."""
        self._waiting = self._accepted = self._dropped = 0
        self._sources = 0
        """Generators of tasks that are not read to their end."""
        self._used = False
        """Whether tasks were added to this run."""
        self._rate_limit: RateLimitServer | None = None
        self._publishing = threading.Lock()
        """Lets one version be published at a time; acquired before the other lock."""
        self._paused = False
        self._late_versions = 0
        self._ended: ParagentError | None = None
        """Why no more groups will be delivered."""
        self._closed = False
        self.wake: Callable[[], None] = lambda: None
        """Makes the session ask for rollouts."""

    def open(self, journal: Path, version: int | None = None) -> None:
        """Read the groups that earlier processes left in the journal.

        Args:
            journal: its file.
            version: the version of the policy; None: the one in the journal.
        """
        store = self._store = GroupStore(journal)
        self._reader = GroupStore(journal)
        if version is not None:
            store.set_version(version)
        version = store.version()
        with self._changed:
            self._pacing = Pacing(*self._limits, version, store.accepted_with(version))
            counts = store.counts()
            self._waiting, self._accepted = counts[GroupState.WAITING], counts[GroupState.ACCEPTED]
            self._dropped = counts[GroupState.DROPPED]
            self._used = any(counts.values())
            for stored in store.admitted():
                self._continue(stored)

    def _continue(self, stored: StoredGroup) -> None:
        group = _OpenGroup(stored)
        for result in self._store.results(stored.task.id):
            if result.status is not RolloutStatus.INFRASTRUCTURE:
                group.ended[result.attempt] = result
        self._open[stored.task.id] = group
        self._pacing.admit(stored.task.id, stored.version)
        missing = [number for number in range(1, self._groups.n + 1) if number not in group.ended]
        self._pending += [PendingRollout(stored.task, attempt) for attempt in missing]
        self._close_if_ended(group)

    # --- called by the session: `RolloutSource` -------------------------------------------------------------------------

    @property
    def failures(self) -> ReplayPolicy:
        """The decisions about failed rollouts."""
        return self._policy

    @property
    def total(self) -> int:
        """The number of rollouts of all groups so far."""
        with self._changed:
            groups = self._waiting + len(self._open) + self._undelivered + len(self._delivered)
            return (groups + self._accepted + self._dropped) * self._groups.n

    def opened(self, rate_limit: RateLimitServer | None) -> None:
        """Tell workers the version of the policy before they send requests."""
        with self._changed:
            self._rate_limit = rate_limit
            if rate_limit is not None:
                rate_limit.publish(self._pacing.version)
                if self._paused:
                    rate_limit.pause(0.0)

    def rollouts(self) -> Iterator[PendingRollout | None]:
        """Yield the rollouts of admitted groups; admit a group when there is no other rollout."""
        while self._ended is None:
            yield self._next_rollout()

    def _next_rollout(self) -> PendingRollout | None:
        with self._changed:
            if not self._pending and self._waiting and self._pacing.may_admit():
                self._admit()
            return self._pending.popleft() if self._pending else None

    def _admit(self) -> None:
        stored = self._store.admit(self._pacing.version)
        if stored is None:
            self._waiting = 0
            return
        self._waiting -= 1
        self._pacing.admit(stored.task.id)
        self._open[stored.task.id] = _OpenGroup(stored)
        self._pending += [PendingRollout(stored.task, attempt) for attempt in range(1, self._groups.n + 1)]
        self._changed.notify_all()

    def recorded(self, results: Sequence[RolloutResult]) -> None:
        """Count results that were recorded; groups of which all attempts have ended are delivered from now on."""
        with self._changed:
            for result in results:
                if result.final and (group := self._open.get(result.task)) is not None:
                    self._count(group, result)
            self._changed.notify_all()

    def _count(self, group: _OpenGroup, result: RolloutResult) -> None:
        key = (result.task, result.attempt)
        if result.status is RolloutStatus.INFRASTRUCTURE:
            if key not in self._policy.given_up or self._groups.infrastructure == "replay":
                return  # the session is stopping; the rollout stays pending
            self._policy.given_up.discard(key)
            if self._groups.infrastructure == "drop":
                self._drop(group, f"the attempt {result.attempt} failed: {result.error}")
                return
        assert result.number is not None, "it was recorded"
        group.ended[result.attempt] = AttemptResult(
            result.number, result.attempt, result.status, result.kind, result.error, result.score
        )
        self._close_if_ended(group)

    def _close_if_ended(self, group: _OpenGroup) -> None:
        if len(group.ended) < self._groups.n:
            return
        with_reward = sum(map(has_reward, group.ended.values()))
        policy = self._groups.infrastructure
        least = policy.min if isinstance(policy, Partial) else 1
        if with_reward < least:
            self._drop(group, f"only {with_reward} of {self._groups.n} attempts have a reward")
            return
        task = group.stored.task.id
        del self._open[task]
        self._finished[task] = group.stored

    def _drop(self, group: _OpenGroup, reason: str) -> None:
        task = group.stored.task.id
        self._store.drop(task, reason)
        del self._open[task]
        self._pacing.remove(task)
        self._pending = deque(one for one in self._pending if one.task.id != task)
        self._dropped += 1

    # --- called by the trainer ------------------------------------------------------------------------------------------

    def add(self, tasks: list[BenchmarkTask], most_waiting: int = MOST_WAITING, timeout: float | None = None) -> bool:
        """Store tasks when fewer than `most_waiting` wait; return False if that took longer than `timeout` seconds."""
        with self._changed:
            self._check()
            self._used = True
            if not self._wait(lambda: self._waiting < most_waiting, timeout):
                return False
            self._waiting += self._store.add(tasks)
            self._changed.notify_all()
        self.wake()
        return True

    def begin_source(self) -> None:
        """Count a generator of tasks that is being read."""
        with self._changed:
            self._used = True
            self._sources += 1

    def end_source(self) -> None:
        """Count a generator that was read to its end."""
        with self._changed:
            self._sources -= 1
            self._changed.notify_all()

    def take(self, timeout: float | None, encode: Callable[[Group], T]) -> T | None:
        """Return the next group; None if all tasks that were added are delivered.

        Args:
            timeout: how many seconds to wait for it.
            encode: turns the group into what is returned. The group counts as delivered only when this has returned.

        Raises:
            TimeoutError: there was none for `timeout` seconds.
            UsageError: the group cannot be built or encoded; it stays owed.
            ParagentError: the service has ended; the groups that had finished were delivered.
        """
        while True:
            with self._changed:
                if not self._wait(lambda: self._next_delivery() is not None or not self._owes_more, timeout):
                    raise TimeoutError(
                        f"no group finished within {timeout:g} s; status() says what the service waits for"
                    )
                task = self._next_delivery()
                if task is None:
                    return None
                stored = self._building[task] = self._finished.pop(task)
                version = self._pacing.version
            try:
                delivery = new_id("delivery")
                encoded = encode(self._build(stored, delivery, version))
                if self._deliver(task, delivery):
                    return encoded
            except Exception as error:
                if isinstance(error, ParagentError):
                    self.end(error)
                    raise
                raise UsageError(f"the group {task!r} cannot be delivered: {described(error)}") from error
            finally:
                self._put_back(task)

    def _deliver(self, task: str, delivery: str) -> bool:
        """Count a delivery; return False if the group was accepted meanwhile, by an earlier delivery."""
        with self._changed:
            if task not in self._building:
                return False
            self._store.deliver(task, delivery)
            self._delivered[task] = (self._building.pop(task), delivery)
            self._pacing.deliver(task)
            self._changed.notify_all()
        self.wake()
        return True

    def _put_back(self, task: str) -> None:
        """Make a group that was not delivered the next one again."""
        with self._changed:
            if (stored := self._building.pop(task, None)) is not None:
                self._finished = {task: stored} | self._finished
                self._changed.notify_all()

    def _next_delivery(self) -> str | None:
        return self._pacing.next_delivery(self._finished)

    @property
    def _undelivered(self) -> int:
        """How many groups have finished and are not delivered."""
        return len(self._finished) + len(self._building)

    @property
    def _owes_more(self) -> bool:
        """Whether groups will come: also before the first task was added."""
        return bool(not self._used or self._sources or self._waiting or self._open or self._undelivered)

    def _build(self, stored: StoredGroup, delivery: str, version: int) -> Group:
        with self._reading:
            samples, attempts, rewards, failures = build_samples(self._reader, stored.task, self._groups)
        task = asdict(stored.task)
        return Group(stored.task.id, task, samples, attempts, rewards, failures, version, delivery, self._accept_group)

    def _accept_group(self, group: Group) -> None:
        self.accept(group.id, group.delivery)

    def accept(self, task: str, delivery: str) -> None:
        """Accept a delivered group, durably. Accepting the same delivery again changes nothing.

        The last delivery of a group can be accepted, also if it was made by an earlier process or before `redeliver`.

        Raises:
            GroupNotOwed: this delivery is not owed.
            StoreFailed: it cannot be recorded; the group stays owed.
        """
        with self._changed:
            if self._closed:
                raise ServiceStopped(f"the service was closed; the group {task!r} will be delivered again")
            known = self._delivered.get(task)
            if known is not None and known[1] != delivery:
                raise GroupNotOwed(f"the group {task!r} was delivered again; accept its last delivery")
            delivered_before = task in self._finished or task in self._building
            owed = known is not None or delivered_before
            accepted = owed and self._store.accept(task, delivery, self._pacing.version)
            if not accepted and not self._store.is_accepted(task, delivery):
                raise GroupNotOwed(
                    f"the group {task!r} cannot be accepted: it does not exist, this is not its last delivery, or it was "
                    "accepted before"
                )
            if accepted and delivered_before:
                self._finished.pop(task, None)
                self._building.pop(task, None)
                self._pacing.deliver(task)
            self._delivered.pop(task, None)
            self._accepted += accepted
            self._changed.notify_all()

    def take_over(self, trainer: str) -> None:
        """Put a trainer in charge, durably, and deliver to it all groups that are not accepted; nothing if it is in charge.

        Raises:
            UsageError: another trainer has replaced it.
        """
        with self._changed:
            self.check_trainer(trainer)
            trainers = self._store.trainers()
            if trainers and trainers[-1] == trainer:
                return
            self._store.set_trainers([*trainers, trainer][-_MOST_TRAINERS:])
            self.redeliver()

    def check_trainer(self, trainer: str) -> None:
        """Check that no other trainer has replaced this one, also in an earlier process.

        Raises:
            UsageError: one has.
        """
        with self._changed:
            if trainer in self._store.trainers()[:-1]:
                raise UsageError(
                    "another trainer has taken over the groups of this service; only one can use it at a time"
                )

    def redeliver(self) -> int:
        """Deliver all groups again that are not accepted; return their number."""
        with self._changed:
            again, self._delivered = self._delivered, {}
            for task, (stored, _) in again.items():
                self._pacing.redeliver(task, stored.version)
            self._finished = {task: stored for task, (stored, _) in again.items()} | self._finished
            self._changed.notify_all()
        return len(again)

    def publish(self, version: int) -> None:
        """Record a new version of the policy and tell the workers, before rollouts of it are admitted.

        The current version changes nothing.
        """
        with self._publishing:
            with self._changed:
                self._check()
                if version == self._pacing.version:
                    return
                rate_limit = self._rate_limit
            if rate_limit is not None:  # without the lock: it waits for workers, which may run in the session's thread
                rate_limit.publish(version)
            with self._changed:
                self._check()
                self._store.set_version(version)
                if not self._pacing.publish(version):
                    self._late_versions += 1
                self._changed.notify_all()
        self.wake()

    def pause(self, timeout: float) -> None:
        """Let workers send no requests; return when none is in flight.

        Raises:
            PauseTimeout: some are still in flight after `timeout` seconds.
        """
        with self._changed:
            self._check()
            self._paused = True
            rate_limit = self._rate_limit
        if rate_limit is not None:
            rate_limit.pause(timeout)

    def resume(self) -> None:
        """Let workers send requests again."""
        with self._changed:
            self._check()
            self._paused = False
            if self._rate_limit is not None:
                self._rate_limit.resume()

    def end(self, error: ParagentError) -> None:
        """Deliver no groups that finish later. Calls that wait raise `error`."""
        with self._changed:
            self._ended = self._ended or error
            self._rate_limit = None
            self._changed.notify_all()

    def close(self) -> None:
        """Close the journal."""
        with self._changed, self._reading:
            self._closed = True
            self._store.close()
            self._reader.close()

    def counts(self) -> dict[str, int | str | bool]:
        """Return the values of `ServiceStatus` that are known here."""
        with self._changed:
            return {
                "version": self._pacing.version,
                "waiting": self._waiting,
                "under_way": len(self._open),
                "finished": self._undelivered,
                "delivered": len(self._delivered),
                "accepted": self._accepted,
                "dropped": self._dropped,
                "paused": self._paused,
                "replays": self._policy.replays,
                "late_versions": self._late_versions,
                "waits_for": self._waits_for(),
            }

    def _waits_for(self) -> str:
        if self._paused:
            return "resume()"
        if self._finished and self._next_delivery() is None:
            return "an older group, which would become too stale with the next version"
        if self._finished:
            return "the trainer, which has to take groups"
        if self._waiting and not self._open and not self._pacing.may_admit():
            return "published(): all groups of this version are delivered"
        return "" if self._owes_more else "tasks"

    @property
    def error(self) -> ParagentError | None:
        """Why the service has ended or stops; None while it works."""
        return self._ended or self._policy.error

    def _check(self) -> None:
        if (error := self.error) is not None:
            raise error

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, with the lock, until a condition holds; return False if it does not after `timeout` seconds.

        Raises:
            ParagentError: the service has ended, and the condition does not hold.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._policy.error is not None:
                raise self._policy.error
            if condition():
                return True
            if self._ended is not None:
                raise self._ended
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._changed.wait(left)
