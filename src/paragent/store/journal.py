"""The journal of a run: an SQLite file in which a batch of results is durable after one commit.

A rollout is one attempt at one task. Every play of it is a row; at most one of them `decides`, which a unique index enforces.
What is owed is a query: the rollouts without a deciding play, or with one that only infrastructure decided.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from paragent._internal.text import well_formed
from paragent.errors import StoreFailed
from paragent.store.records import (
    OwedRollout,
    RolloutResult,
    RolloutStatus,
    StoredTask,
    finite,
    make_storable,
    unpack_trajectory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["Journal"]

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE plays (
    number INTEGER PRIMARY KEY, task TEXT NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL, decides INTEGER NOT NULL,
    score REAL, scores TEXT NOT NULL, answer TEXT, ending TEXT NOT NULL, kind TEXT NOT NULL, error TEXT NOT NULL,
    turns INTEGER NOT NULL, tool_calls INTEGER NOT NULL, requests INTEGER NOT NULL, prompt_tokens INTEGER,
    completion_tokens INTEGER, judge_prompt_tokens INTEGER NOT NULL, judge_completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL, waited REAL NOT NULL, ended REAL NOT NULL, worker TEXT NOT NULL
);
CREATE UNIQUE INDEX decided ON plays (task, attempt) WHERE decides = 1;
CREATE INDEX played ON plays (task, attempt);
CREATE TABLE trajectories (play INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE sessions (number INTEGER PRIMARY KEY, started REAL NOT NULL, seconds REAL NOT NULL, results INTEGER NOT NULL);
"""
_VERSION = "2"
_COLUMNS = [field.name for field in fields(RolloutResult) if field.name not in {"trajectory", "files", "number"}]
_INSERT = f"INSERT INTO plays (number, {', '.join(_COLUMNS)}) VALUES ({', '.join('?' * (len(_COLUMNS) + 1))})"  # noqa: S608 - names from above
_PAGE = 500
"""Rows that a long query reads at a time: it never holds a snapshot open, so the write-ahead log does not grow."""
_BUSY_PATIENCE = 10.0


class Journal:
    """The journal, open. Belongs to one thread. Only the process that holds the run's lock may open it to write.

    Raises:
        StoreFailed: the file cannot be opened, is damaged, or is of another version.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        with self._guarded("open"):
            if read_only:
                address = f"file:{quote(str(path))}?mode=ro"
                self._db = sqlite3.connect(address, uri=True, timeout=_BUSY_PATIENCE, isolation_level=None)
            else:
                self._db = sqlite3.connect(path, timeout=_BUSY_PATIENCE, isolation_level=None)
                self._prepare()
            if self.meta("version") != _VERSION:
                raise StoreFailed(f"{path} was written by another version of paragent; start a new run with --fresh")

    def _prepare(self) -> None:
        db = self._db
        # Readers do not block the writer, and a commit is one append and one fsync. FULL is what makes it durable.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            db.executescript(f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES ('version', '{_VERSION}'); COMMIT;")  # noqa: S608 - as above
        self._last = db.execute("SELECT coalesce(max(number), 0) FROM plays").fetchone()[0]
        self._undecided = set(
            db.execute(
                "SELECT task, attempt FROM plays WHERE decides = 1 AND status = ?", [RolloutStatus.INFRASTRUCTURE]
            )
        )
        """Rollouts whose result is a failure of infrastructure, which a new play replaces."""

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self._path.parent

    # --- writing ------------------------------------------------------------------------------------------------------

    def add_tasks(self, tasks: Iterable[StoredTask]) -> None:
        """Note the tasks of the run, in their order; those that are there already are left as they are."""
        with self._transaction("keep the tasks"):
            self._db.executemany(
                "INSERT OR IGNORE INTO tasks (id, digest, body) VALUES (?, ?, ?)",
                ((task.id, task.digest, well_formed(json.dumps(task.body, ensure_ascii=False))) for task in tasks),
            )

    def record(self, plays: Sequence[RolloutResult]) -> None:
        """Make plays durable: when this returns, they are on the disk.

        Values that cannot be stored are left out, see `make_storable`. Recording the same objects again changes nothing, so that
        a call may be repeated that an interrupt ended after its commit.

        Raises:
            StoreFailed: they are not; nothing of the batch is.
        """
        for play in plays:
            if play.number is None:
                make_storable(play)
                self._last += 1  # first, so that an interrupt leaves a gap and not a number that two plays have
                play.number = self._last
        with self._transaction("keep results"):
            new = [play for play in plays if not self._has_number(play)]
            decided = [(play.task, play.attempt) for play in new if play.decides]
            replaced = [key for key in decided if key in self._undecided]
            self._db.executemany(
                "UPDATE plays SET decides = 0 WHERE task = ? AND attempt = ? AND decides = 1", replaced
            )
            self._db.executemany(_INSERT, map(_row, new))
            bodies = [(play.number, play.trajectory) for play in new if play.trajectory is not None]
            self._db.executemany("INSERT INTO trajectories VALUES (?, ?)", bodies)
        for play in plays:
            if play.decides and play.status is RolloutStatus.INFRASTRUCTURE:
                self._undecided.add((play.task, play.attempt))
            elif play.decides:
                self._undecided.discard((play.task, play.attempt))

    def _has_number(self, play: RolloutResult) -> bool:
        """Return whether this very play is recorded."""
        query = "SELECT 1 FROM plays WHERE number = ? AND task = ? AND attempt = ?"
        return self._db.execute(query, [play.number, play.task, play.attempt]).fetchone() is not None

    def reopen(self, statuses: Sequence[RolloutStatus]) -> int:
        """Have rollouts played again whose result has one of these statuses; return how many."""
        marks = ", ".join("?" * len(statuses))
        with self._transaction("reopen results"):
            query = f"UPDATE plays SET decides = 0 WHERE decides = 1 AND status IN ({marks})"  # noqa: S608 - question marks
            return self._db.execute(query, list(statuses)).rowcount

    def set_scores(self, metric: str, scores: Iterable[tuple[int, float | None]]) -> None:
        """Add what a further metric says about plays, by their numbers."""
        with self._transaction("keep scores"):
            self._db.executemany(
                "UPDATE plays SET scores = json_set(scores, ?, ?) WHERE number = ?",
                ((f'$."{metric}"', finite(value), number) for number, value in scores),
            )

    def begin_session(self) -> int:
        """Note that somebody started to play; return the number for `note_session`."""
        with self._transaction("note the start"):
            cursor = self._db.execute(
                "INSERT INTO sessions (started, seconds, results) VALUES (?, 0, 0)", [time.time()]
            )
        return int(cursor.lastrowid or 0)

    def note_session(self, number: int, seconds: float, results: int) -> None:
        """Note how far a session is; the last note before a crash is what is known of it."""
        with self._transaction("note the time"):
            self._db.execute(
                "UPDATE sessions SET seconds = ?, results = ? WHERE number = ?", [seconds, results, number]
            )

    def set_meta(self, key: str, value: str) -> None:
        """Keep a text under a name."""
        with self._transaction(f"keep {key}"):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])

    # --- reading ------------------------------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        """Return the text kept under a name."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return None if row is None else str(row[0])

    def owed(self, attempts: int) -> Iterator[OwedRollout]:
        """Yield the rollouts that have no final result: the first attempt at every task, then the second, and so on.

        It reads page by page, so results may be recorded meanwhile; a rollout is yielded once.
        """
        query = """
            SELECT t.position, t.id, t.body, (SELECT count(*) FROM plays p WHERE p.task = t.id AND p.attempt = :attempt)
            FROM tasks t WHERE t.position > :after AND NOT EXISTS (
                SELECT 1 FROM plays p WHERE p.task = t.id AND p.attempt = :attempt AND p.decides = 1 AND p.status != :broken)
            ORDER BY t.position LIMIT :page"""
        for attempt in range(1, attempts + 1):
            after = 0
            while True:
                given = {"attempt": attempt, "after": after, "broken": RolloutStatus.INFRASTRUCTURE, "page": _PAGE}
                page = self._db.execute(query, given).fetchall()
                for _, task, body, plays in page:
                    yield OwedRollout(task, attempt, plays, json.loads(body))
                if len(page) < _PAGE:
                    break
                after = page[-1][0]

    def count_owed(self, attempts: int) -> int:
        """Return how many rollouts have no final result."""
        tasks = self.count_tasks()
        decided = self._db.execute(
            "SELECT count(*) FROM plays WHERE decides = 1 AND status != ? AND attempt <= ?",
            [RolloutStatus.INFRASTRUCTURE, attempts],
        ).fetchone()[0]
        return int(tasks * attempts - decided)

    def count_tasks(self) -> int:
        """Return how many tasks the run has."""
        return int(self._db.execute("SELECT count(*) FROM tasks").fetchone()[0])

    def results(self, where: str = "decides = 1", values: Sequence[Any] = ()) -> Iterator[tuple[int, RolloutResult]]:
        """Yield plays and their numbers in the order in which they ended, without trajectories; page by page."""
        after = 0
        query = f"SELECT number, {', '.join(_COLUMNS)} FROM plays WHERE number > ? AND {where} ORDER BY number LIMIT {_PAGE}"  # noqa: S608 - our own text
        while page := self._db.execute(query, [after, *values]).fetchall():
            for row in page:
                yield row[0], _play(row[1:])
            after = page[-1][0]

    def has_play(self, task: str, attempt: int, worker: str, *, since: float, requests: int) -> bool:
        """Return whether a play of this rollout by this worker that ended after `since` is recorded with so many requests."""
        query = (
            "SELECT 1 FROM plays WHERE task = ? AND attempt = ? AND worker = ? AND ended >= ? AND requests >= ? LIMIT 1"
        )
        return self._db.execute(query, [task, attempt, worker, since, requests]).fetchone() is not None

    def task(self, task: str) -> StoredTask | None:
        """Return a task by its id."""
        row = self._db.execute("SELECT id, digest, body FROM tasks WHERE id = ?", [task]).fetchone()
        return None if row is None else StoredTask(row[0], row[1], json.loads(row[2]))

    def tasks(self) -> Iterator[StoredTask]:
        """Yield the tasks in their order."""
        after = 0
        query = "SELECT position, id, digest, body FROM tasks WHERE position > ? ORDER BY position LIMIT ?"
        while page := self._db.execute(query, [after, _PAGE]).fetchall():
            for row in page:
                yield StoredTask(row[1], row[2], json.loads(row[3]))
            after = page[-1][0]

    def trajectory(self, play: int) -> Any:
        """Return the trajectory of a play, or None if it has none."""
        row = self._db.execute("SELECT body FROM trajectories WHERE play = ?", [play]).fetchone()
        return None if row is None else unpack_trajectory(row[0])

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, for statistics."""
        with self._guarded("read"):
            return self._db.execute(query, values).fetchall()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreFailed(
                f"cannot {what} in {self._path}: {error}. What was recorded before is safe; when the cause is removed, the "
                "same command continues"
            ) from error

    @contextlib.contextmanager
    def _transaction(self, what: str) -> Iterator[None]:
        with self._guarded(what):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # after a full disk SQLite has rolled back by itself
                    self._db.execute("ROLLBACK")
                raise


def _row(play: RolloutResult) -> list[Any]:
    values = {name: getattr(play, name) for name in _COLUMNS}
    return [play.number, *(values | {"scores": json.dumps(play.scores)}).values()]


def _play(row: Sequence[Any]) -> RolloutResult:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["scores"] = json.loads(values["scores"])
    values["status"] = RolloutStatus(values["status"])
    values["decides"] = bool(values["decides"])
    return RolloutResult(**values)
