"""Groups of a training run in the journal: which tasks wait, are under way, are accepted or were dropped.

A group is all attempts at one task, so the id of the task identifies it. The table `groups` has one row for each. Results and
trajectories of its attempts are where those of all rollouts are.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed
from paragent.errors import StoreFailed
from paragent.store.database import connect, errors_for, transaction
from paragent.store.records import RolloutStatus, pack_task, unpack_task, unpack_trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from paragent.tasks import BenchmarkTask

__all__ = ["AttemptResult", "GroupState", "GroupStore", "StoredGroup"]

_VERSION = "policy_version"
"""The key of the current version of the policy in `meta`."""
_TRAINERS = "trainers"
"""The key of the trainers in `meta`, a JSON list."""


class GroupState(StrEnum):
    """The state of a group. The normal path is waiting, admitted, accepted."""

    WAITING = "waiting"
    """The task was added; none of its rollouts may start."""
    ADMITTED = "admitted"
    """Its rollouts may start or have ended. It is delivered when all have ended, until the trainer accepts it."""
    ACCEPTED = "accepted"
    """The trainer accepted it. It is not delivered again."""
    DROPPED = "dropped"
    """It is not delivered, because infrastructure failed and the policy of the service says so."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group that was admitted and is not accepted."""

    number: int
    task: BenchmarkTask
    version: int
    """The version of the policy when it was admitted."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The final result of one attempt of a group, without its trajectory."""

    number: int
    """The number of the result in the journal."""
    attempt: int
    status: RolloutStatus
    kind: str
    error: str
    score: float | None


class GroupStore:
    """The groups of the run at `path`, which must be open in this process.

    It has a connection of its own. One thread may use it at a time, and it may be another thread each time. When a method that
    changes something returns, the change is durable.

    Raises:
        StoreFailed: (by every method) the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with errors_for("open the groups", path):
            self._db = connect(path, "rw", one_thread=False)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._db.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, tasks: Iterable[BenchmarkTask]) -> int:
        """Add tasks whose ids are new, as waiting groups; return their number."""
        added = 0
        with errors_for("store tasks", self._path), transaction(self._db):
            for task in tasks:
                new = self._db.execute(
                    "INSERT OR IGNORE INTO tasks (id, body) VALUES (?, ?)", [task.id, pack_task(task)]
                ).rowcount
                if new:
                    query = "INSERT INTO groups (task, state, delivery, reason, at) VALUES (?, ?, '', '', ?)"
                    self._db.execute(query, [task.id, GroupState.WAITING, time.time()])
                added += new
        return added

    def admit(self, version: int) -> StoredGroup | None:
        """Admit the group that has waited longest, and return it; None if no group waits."""
        row = self._row(
            "SELECT g.number, t.body FROM groups g JOIN tasks t ON t.id = g.task WHERE g.state = ? ORDER BY g.number LIMIT 1",
            [GroupState.WAITING],
        )
        if row is None:
            return None
        with errors_for("admit a group", self._path), transaction(self._db):
            self._db.execute(
                "UPDATE groups SET state = ?, version = ?, at = ? WHERE number = ?",
                [GroupState.ADMITTED, version, time.time(), row[0]],
            )
        return StoredGroup(row[0], unpack_task(row[1]), version)

    def deliver(self, task: str, delivery: str) -> None:
        """Record a delivery of an admitted group, before the trainer gets it: only the last delivery can be accepted."""
        with errors_for("deliver a group", self._path), transaction(self._db):
            self._db.execute(
                "UPDATE groups SET delivery = ? WHERE task = ? AND state = ?", [delivery, task, GroupState.ADMITTED]
            )

    def accept(self, task: str, delivery: str, version: int) -> bool:
        """Accept the last delivery of an admitted group; return False if it was another one, or the group is not admitted.

        Args:
            task: the id of the task.
            delivery: identifies the delivery that the trainer accepts.
            version: the current version of the policy.
        """
        with errors_for("accept a group", self._path), transaction(self._db):
            changed = self._db.execute(
                "UPDATE groups SET state = ?, accepted_version = ?, at = ? "
                "WHERE task = ? AND state = ? AND delivery = ? AND delivery != ''",
                [GroupState.ACCEPTED, version, time.time(), task, GroupState.ADMITTED, delivery],
            )
        return changed.rowcount > 0

    def drop(self, task: str, reason: str) -> None:
        """Drop an admitted group."""
        with errors_for("drop a group", self._path), transaction(self._db):
            self._db.execute(
                "UPDATE groups SET state = ?, reason = ?, at = ? WHERE task = ? AND state = ?",
                [GroupState.DROPPED, well_formed(reason), time.time(), task, GroupState.ADMITTED],
            )

    def set_version(self, version: int) -> None:
        """Record the current version of the policy."""
        with errors_for("store the version", self._path), transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [_VERSION, str(version)])

    def set_trainers(self, trainers: Sequence[str]) -> None:
        """Record the trainers that have used the run; the last one is in charge."""
        with errors_for("store the trainer", self._path), transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [_TRAINERS, json.dumps(list(trainers))])

    # --- reading ------------------------------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the current version of the policy; 0 if none was published."""
        row = self._row("SELECT value FROM meta WHERE key = ?", [_VERSION])
        return 0 if row is None else int(row[0])

    def trainers(self) -> list[str]:
        """Return the trainers that `set_trainers` recorded."""
        row = self._row("SELECT value FROM meta WHERE key = ?", [_TRAINERS])
        return [] if row is None else list(json.loads(row[0]))

    def accepted_with(self, version: int) -> int:
        """Return how many groups were accepted while this version was the current one."""
        return int(self._row("SELECT count(*) FROM groups WHERE accepted_version = ?", [version])[0])

    def is_accepted(self, task: str, delivery: str) -> bool:
        """Return whether a group was accepted, and by this delivery."""
        query = "SELECT 1 FROM groups WHERE task = ? AND state = ? AND delivery = ?"
        return self._row(query, [task, GroupState.ACCEPTED, delivery]) is not None

    def counts(self) -> dict[GroupState, int]:
        """Return the number of groups in each state."""
        with errors_for("read the groups", self._path):
            found = dict(self._db.execute("SELECT state, count(*) FROM groups GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in GroupState}

    def admitted(self) -> list[StoredGroup]:
        """Return the groups that are admitted and not accepted, in the order of their admission."""
        query = (
            "SELECT g.number, t.body, g.version FROM groups g JOIN tasks t ON t.id = g.task WHERE g.state = ? "
            "ORDER BY g.version, g.number"
        )
        with errors_for("read the groups", self._path):
            rows = self._db.execute(query, [GroupState.ADMITTED]).fetchall()
        return [StoredGroup(number, unpack_task(body), version) for number, body, version in rows]

    def results(self, task: str) -> list[AttemptResult]:
        """Return the final results of a group, by attempt."""
        query = "SELECT number, attempt, status, kind, error, score FROM results WHERE task = ? AND final = 1 ORDER BY attempt"
        with errors_for("read results", self._path):
            rows = self._db.execute(query, [task]).fetchall()
        return [AttemptResult(row[0], row[1], RolloutStatus(row[2]), *row[3:]) for row in rows]

    def trajectory(self, number: int) -> Any:
        """Return the trajectory of a result; None if it has none.

        Raises:
            StoreFailed: it cannot be read.
        """
        row = self._row("SELECT body FROM trajectories WHERE result = ?", [number])
        if row is None:
            return None
        try:
            return unpack_trajectory(row[0], own=True)
        except Exception as error:  # zlib and JSON have errors of their own
            raise StoreFailed(f"{self._path} is damaged: the trajectory of result {number}: {error}") from error

    def _row(self, query: str, values: list[Any]) -> Any:
        with errors_for("read the groups", self._path):
            return self._db.execute(query, values).fetchone()
