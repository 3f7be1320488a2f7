"""The journal of a run: an SQLite file with the tasks, the results, the trajectories, events and notes.

A rollout is one attempt at one task. Every execution of it is a row of `results`; at most one of them is `final`, which a unique
index enforces. Pending rollouts are those without a final result, or whose final result is an infrastructure failure.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import time
import zlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.text import well_formed
from paragent.errors import StoreFailed, UsageError
from paragent.store.database import connect, errors_for, transaction
from paragent.store.records import (
    MachineEvent,
    Note,
    PendingRollout,
    RolloutResult,
    RolloutStatus,
    WorkerEvent,
    finite_score,
    make_storable,
    pack_task,
    pack_trajectory,
    unpack_task,
    unpack_trajectory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from paragent.store.records import NewScore
    from paragent.tasks import BenchmarkTask

__all__ = ["Journal", "add_note", "change_note"]

_ADDED_COLUMNS = (
    "started REAL NOT NULL DEFAULT 0",
    "machine TEXT NOT NULL DEFAULT ''",
    "activity BLOB",
    "cached_tokens INTEGER",
    "reasoning_tokens INTEGER",
)
"""The columns of `results` that version 4 added. Their defaults let a program of version 3 continue to write."""
_ADDED_TABLES = """
CREATE TABLE machine_events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, machine TEXT NOT NULL, state TEXT NOT NULL, holder TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE TABLE worker_events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, worker TEXT NOT NULL, event TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE TABLE notes (
    number INTEGER PRIMARY KEY, task TEXT NOT NULL, attempt INTEGER NOT NULL, execution INTEGER NOT NULL,
    step INTEGER NOT NULL, text TEXT NOT NULL, at REAL NOT NULL
);
"""
"""The tables that version 4 added."""
_GROUPS = """
CREATE TABLE groups (
    number INTEGER PRIMARY KEY, task TEXT NOT NULL UNIQUE, state TEXT NOT NULL, version INTEGER, accepted_version INTEGER,
    delivery TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL
);
CREATE INDEX group_states ON groups (state);
"""
"""The table that version 5 added: the groups of a training run, see `store/groups.py`."""
_CACHED_REPLIES = "cached_replies INTEGER NOT NULL DEFAULT 0"
"""The column of `results` that version 5 added."""

_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE results (
    number INTEGER PRIMARY KEY, task TEXT NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL, final INTEGER NOT NULL,
    score REAL, scores TEXT NOT NULL, answer TEXT, ending TEXT NOT NULL, kind TEXT NOT NULL, error TEXT NOT NULL,
    turns INTEGER NOT NULL, tool_calls INTEGER NOT NULL, requests INTEGER NOT NULL, prompt_tokens INTEGER,
    completion_tokens INTEGER, judge_prompt_tokens INTEGER NOT NULL, judge_completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL, waited REAL NOT NULL, ended REAL NOT NULL, worker TEXT NOT NULL,
    {", ".join([*_ADDED_COLUMNS, _CACHED_REPLIES])}
);
CREATE UNIQUE INDEX final_results ON results (task, attempt) WHERE final = 1;
CREATE INDEX rollouts ON results (task, attempt);
CREATE TABLE trajectories (result INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE sessions (number INTEGER PRIMARY KEY, started REAL NOT NULL, seconds REAL NOT NULL, results INTEGER NOT NULL);
{_ADDED_TABLES}{_GROUPS}"""
_VERSION = "5"
_TO_5 = f"ALTER TABLE results ADD COLUMN {_CACHED_REPLIES};\n{_GROUPS}"
_UPGRADES = {
    "3": "\n".join([*(f"ALTER TABLE results ADD COLUMN {column};" for column in _ADDED_COLUMNS), _ADDED_TABLES, _TO_5]),
    "4": _TO_5,
}
"""Statements that turn a journal of an earlier format version into one of this version."""
_COLUMNS = [field.name for field in fields(RolloutResult) if field.name not in {"trajectory", "files", "number"}]
_INSERT = f"INSERT INTO results (number, {', '.join(_COLUMNS)}) VALUES ({', '.join('?' * (len(_COLUMNS) + 1))})"  # noqa: S608 - column names from above
_EXECUTION = "task = ? AND attempt = ? AND worker = ? AND started = ?"
_USAGE = (
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "judge_prompt_tokens",
    "judge_completion_tokens",
)
_UPDATE_USAGE = f"UPDATE results SET {', '.join(f'{name} = ?' for name in _USAGE)} WHERE {_EXECUTION} AND requests < ?"  # noqa: S608 - constants
_MACHINE_EVENT = ("number", "at", "machine", "state", "holder", "detail")
_WORKER_EVENT = ("number", "at", "worker", "event", "detail")
_NOTE = ("number", "task", "attempt", "execution", "step", "text", "at")
_TEXTS = ("task", "ending", "kind", "error", "worker", "machine")
"""Columns of `results` that are always text."""
_PAGE = 500
"""Rows per query. Long iterations do not hold a read transaction open, so the write-ahead log does not grow."""


class Journal:
    """An open journal. Use it from one thread. Only the process that holds the run's lock may open it for writing.

    A journal of format version 3 or 4 is upgraded, also by a reader. Notes are added with `add_note`, by any process.

    Raises:
        StoreFailed: the file cannot be opened, is damaged, or has another format version.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        with self._errors_for("open"):
            self._db = connect(path, "ro" if read_only else "rwc")
            try:
                self._prepare(read_only)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, read_only: bool) -> None:
        if not read_only:
            self._create_tables()
        _check_objects(self._db, self._path)
        if (version := self.meta("version")) in _UPGRADES:
            _upgrade(self._path, str(version))
        if (version := self.meta("version")) != _VERSION:
            raise StoreFailed(
                f"{self._path} has format version {version}, and this version of paragent reads version {_VERSION}; "
                "start a new run with --fresh"
            )
        if not _known_columns() <= _columns(self._db):
            raise StoreFailed(f"{self._path} is damaged: its tables are not those of a journal")
        if not read_only:
            self._read_state()

    def _create_tables(self) -> None:
        db = self._db
        # WAL: readers do not block the writer, and a commit is one append and one fsync.
        db.execute("PRAGMA journal_mode = WAL")
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            db.executescript(f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES ('version', '{_VERSION}'); COMMIT;")  # noqa: S608 - constants

    def _read_state(self) -> None:
        tables = ("results", "machine_events", "worker_events")
        self._last = {
            table: self._db.execute(f"SELECT coalesce(max(number), 0) FROM {table}").fetchone()[0]  # noqa: S608 - from above
            for table in tables
        }
        """The last number that was used, by table."""
        self._replaceable = set(
            self._db.execute(
                "SELECT task, attempt FROM results WHERE final = 1 AND status = ?", [RolloutStatus.INFRASTRUCTURE]
            )
        )
        """Rollouts whose final result is an infrastructure failure; a new result replaces it."""

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self._path.parent

    # --- writing ------------------------------------------------------------------------------------------------------

    def add_tasks(self, tasks: Iterable[BenchmarkTask]) -> None:
        """Add the tasks of the run, in order; tasks that are already stored are not changed."""
        with self._transaction("store the tasks"):
            self._db.executemany(
                "INSERT OR IGNORE INTO tasks (id, body) VALUES (?, ?)",
                ((task.id, pack_task(task)) for task in tasks),
            )

    def record(
        self,
        results: Sequence[RolloutResult],
        machine_events: Sequence[MachineEvent] = (),
        worker_events: Sequence[WorkerEvent] = (),
    ) -> None:
        """Store results and events in one transaction; when this returns, they are durable.

        Values that cannot be stored are dropped, see `make_storable`. Recording the same objects again changes nothing, so a
        call that was interrupted after its commit may be repeated.

        Raises:
            StoreFailed: nothing of the batch is stored.
        """
        for result in results:
            if result.number is None:
                make_storable(result)
                result.number = self._next_number("results")
        for event in machine_events:
            event.number = event.number or self._next_number("machine_events")
        for one in worker_events:
            one.number = one.number or self._next_number("worker_events")
        with self._transaction("store results"):
            new = [result for result in results if not self._is_recorded(result)]
            keys = [(result.task, result.attempt) for result in new if result.final]
            replaced = [key for key in keys if key in self._replaceable]
            self._db.executemany("UPDATE results SET final = 0 WHERE task = ? AND attempt = ? AND final = 1", replaced)
            self._db.executemany(_INSERT, map(_row, new))
            bodies = [(result.number, result.trajectory) for result in new if result.trajectory is not None]
            self._db.executemany("INSERT INTO trajectories VALUES (?, ?)", bodies)
            self._add_events("machine_events", _MACHINE_EVENT, machine_events)
            self._add_events("worker_events", _WORKER_EVENT, worker_events)
        for result in results:
            if result.final and result.status is RolloutStatus.INFRASTRUCTURE:
                self._replaceable.add((result.task, result.attempt))
            elif result.final:
                self._replaceable.discard((result.task, result.attempt))

    def record_unfinished(self, results: Sequence[RolloutResult]) -> list[RolloutResult]:
        """Store the usage of executions that may have returned no result, durably; return those that were not recorded.

        An execution is identified by its rollout, its worker and its start, and counts once: of an execution that is recorded,
        only the usage is changed, if the report counts more requests. So a call may be repeated.

        Raises:
            StoreFailed: nothing is stored.
        """
        new = []
        with self._transaction("store the usage of killed rollouts"):
            for result in results:
                make_storable(result)
                identity = [result.task, result.attempt, result.worker, result.started]
                if self._db.execute(f"SELECT 1 FROM results WHERE {_EXECUTION}", identity).fetchone() is None:  # noqa: S608 - constant
                    result.number = self._next_number("results")
                    self._db.execute(_INSERT, _row(result))
                    new.append(result)
                else:
                    usage = [getattr(result, name) for name in _USAGE]
                    self._db.execute(_UPDATE_USAGE, [*usage, *identity, result.requests])
        return new

    def _next_number(self, table: str) -> int:
        self._last[table] += 1  # before it is used: an interrupt leaves a gap and never a number that is used twice
        return int(self._last[table])

    def _add_events(self, table: str, columns: Sequence[str], events: Iterable[MachineEvent | WorkerEvent]) -> None:
        query = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - constants
        self._db.executemany(query, ([_storable_value(getattr(event, name)) for name in columns] for event in events))

    def _is_recorded(self, result: RolloutResult) -> bool:
        query = "SELECT 1 FROM results WHERE number = ? AND task = ? AND attempt = ?"
        return self._db.execute(query, [result.number, result.task, result.attempt]).fetchone() is not None

    def reopen(self, statuses: Sequence[RolloutStatus]) -> int:
        """Make rollouts pending again whose final result has one of these statuses; return their number."""
        marks = ", ".join("?" * len(statuses))
        with self._transaction("reopen results"):
            query = f"UPDATE results SET final = 0 WHERE final = 1 AND status IN ({marks})"  # noqa: S608 - question marks
            return self._db.execute(query, list(statuses)).rowcount

    def final_result(self, task: str, attempt: int) -> RolloutResult | None:
        """Return the final result of a rollout; None if it has none."""
        return next(self.results("final = 1 AND task = ? AND attempt = ?", [task, attempt]), None)

    def reopen_rollout(self, task: str, attempt: int) -> None:
        """Make one rollout pending again."""
        with self._transaction("reopen a result"):
            self._db.execute(
                "UPDATE results SET final = 0 WHERE final = 1 AND task = ? AND attempt = ?", [task, attempt]
            )

    def set_scores(self, scorer: str, scores: Iterable[NewScore], *, counts: bool = False) -> None:
        """Store the scores of a scorer, and replace what it and its judge wrote before.

        Args:
            scorer: the name of the scorer.
            scores: the scores.
            counts: whether this is the score that counts. Results whose scorer had failed are then completed by it.
        """
        finite = [(score, finite_score(score.value)) for score in scores]
        with self._transaction("store scores"):
            for score, value in finite:
                self._db.execute(
                    "UPDATE results SET scores = json_set(scores, ?, ?) WHERE number = ?",
                    [f'$."{scorer}"', value, score.result],
                )
                self._replace_steps(scorer, score, counts=counts)
                if counts:
                    self._db.execute(
                        "UPDATE results SET status = ?1, score = ?2, kind = '', error = '' "
                        "WHERE number = ?3 AND (status = ?1 OR (status = ?4 AND ?2 IS NOT NULL))",
                        [RolloutStatus.COMPLETED, value, score.result, RolloutStatus.UNSCORED],
                    )

    def _replace_steps(self, scorer: str, score: NewScore, *, counts: bool) -> None:
        try:
            trajectory = self.trajectory(score.result)
        except (ValueError, zlib.error):  # of a foreign run: it stays as it is
            return
        if not isinstance(trajectory, dict) or not isinstance(trajectory.get("steps"), list):
            return
        replaced = {scorer, None} if counts else {scorer}  # during a rollout, the judge of the main scorer has no name
        before = trajectory["steps"]
        kept = [step for step in before if not (_is_of_scorer(step) and step.get("metric") in replaced)]
        if len(kept) < len(before) or score.steps:
            body = pack_trajectory({**trajectory, "steps": [*kept, *score.steps]})
            self._db.execute("UPDATE trajectories SET body = ? WHERE result = ?", [body, score.result])

    def add_judge_usage(
        self, usage: Iterable[tuple[int, int, int | None, int | None]], *, is_agent_model: bool
    ) -> None:
        """Add what a judge used after the rollouts to the counts of results.

        Args:
            usage: the number of a result, replies of the judge, tokens of prompts and of replies; None: unknown.
            is_agent_model: whether the judge is the model of the agent, whose tokens are not counted as those of a judge.
        """
        with self._transaction("store the usage of a judge"):
            self._db.executemany(
                "UPDATE results SET requests = requests + ?2, prompt_tokens = prompt_tokens + ?3, "
                "completion_tokens = completion_tokens + ?4, "
                "judge_prompt_tokens = judge_prompt_tokens + iif(?5, 0, coalesce(?3, 0)), "
                "judge_completion_tokens = judge_completion_tokens + iif(?5, 0, coalesce(?4, 0)) WHERE number = ?1",
                ([*one, is_agent_model] for one in usage),
            )

    def begin_session(self, started: float | None = None) -> int:
        """Record the start of a session, now or at `started`; return its number for `update_session`."""
        with self._transaction("record the session"):
            cursor = self._db.execute(
                "INSERT INTO sessions (started, seconds, results) VALUES (?, 0, 0)",
                [time.time() if started is None else started],
            )
        return int(cursor.lastrowid or 0)

    def update_session(self, number: int, seconds: float, results: int) -> None:
        """Record the duration and the number of results of a session so far, so that they survive a crash."""
        with self._transaction("record the session"):
            self._db.execute(
                "UPDATE sessions SET seconds = ?, results = ? WHERE number = ?", [seconds, results, number]
            )

    def set_meta(self, key: str, value: str) -> None:
        """Store a string under a key."""
        with self._transaction(f"store {key}"):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])

    # --- reading ------------------------------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        """Return the string stored under a key, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return None if row is None else str(row[0])

    def pending(self, attempts: int) -> Iterator[PendingRollout]:
        """Yield the rollouts without a final result: the first attempt at every task, then the second, and so on.

        Rows are read page by page, so results may be recorded between; each rollout is yielded once.
        """
        query = """
            SELECT t.position, t.body FROM tasks t WHERE t.position > :after AND NOT EXISTS (
                SELECT 1 FROM results r
                WHERE r.task = t.id AND r.attempt = :attempt AND r.final = 1 AND r.status != :infrastructure)
            ORDER BY t.position LIMIT :page"""
        for attempt in range(1, attempts + 1):
            after = 0
            while True:
                values = {
                    "attempt": attempt,
                    "after": after,
                    "infrastructure": RolloutStatus.INFRASTRUCTURE,
                    "page": _PAGE,
                }
                page = self._db.execute(query, values).fetchall()
                for _, body in page:
                    yield PendingRollout(unpack_task(body), attempt)
                if len(page) < _PAGE:
                    break
                after = page[-1][0]

    def count_pending(self, attempts: int) -> int:
        """Return the number of rollouts without a final result."""
        tasks = self.count_tasks()
        final = self._db.execute(
            "SELECT count(*) FROM results WHERE final = 1 AND status != ? AND attempt <= ?",
            [RolloutStatus.INFRASTRUCTURE, attempts],
        ).fetchone()[0]
        return int(tasks * attempts - final)

    def count_tasks(self) -> int:
        """Return the number of tasks."""
        return int(self._db.execute("SELECT count(*) FROM tasks").fetchone()[0])

    def results(self, where: str = "final = 1", values: Sequence[Any] = ()) -> Iterator[RolloutResult]:
        """Yield results in the order in which they were recorded, without trajectories; page by page."""
        after = 0
        query = f"SELECT number, {', '.join(_COLUMNS)} FROM results WHERE number > ? AND {where} ORDER BY number LIMIT {_PAGE}"  # noqa: S608 - written by callers, not by users
        while page := self._db.execute(query, [after, *values]).fetchall():
            for row in page:
                yield _result(row)
            after = page[-1][0]

    def task(self, task: str) -> BenchmarkTask | None:
        """Return a task by its id."""
        row = self._db.execute("SELECT body FROM tasks WHERE id = ?", [task]).fetchone()
        return None if row is None else unpack_task(row[0])

    def tasks(self) -> Iterator[BenchmarkTask]:
        """Yield the tasks in order."""
        after = 0
        query = "SELECT position, body FROM tasks WHERE position > ? ORDER BY position LIMIT ?"
        while page := self._db.execute(query, [after, _PAGE]).fetchall():
            for _, body in page:
                yield unpack_task(body)
            after = page[-1][0]

    def trajectory(self, number: int | None) -> Any:
        """Return the trajectory of a result by its number, or None if it has none; for the rest, see `unpack_trajectory`."""
        row = self._db.execute("SELECT body FROM trajectories WHERE result = ?", [number]).fetchone()
        return None if row is None else unpack_trajectory(row[0])

    def machine_events(self, after: int = 0) -> Iterator[MachineEvent]:
        """Yield the events of machines with a number above `after`, in the order in which they were recorded."""
        for row in self._pages("machine_events", _MACHINE_EVENT, after):
            yield MachineEvent(**row)

    def worker_events(self, after: int = 0) -> Iterator[WorkerEvent]:
        """Yield the events of workers with a number above `after`, in the order in which they were recorded."""
        for row in self._pages("worker_events", _WORKER_EVENT, after):
            yield WorkerEvent(**row)

    def notes(self, execution: int | None = None) -> list[Note]:
        """Return the notes on an execution, or all notes, in the order in which they were written."""
        query = f"SELECT {', '.join(_NOTE)} FROM notes WHERE ? IN (execution, -1) ORDER BY number"  # noqa: S608 - constants
        rows = self.rows(query, [-1 if execution is None else execution])
        return [Note(**dict(zip(_NOTE, row, strict=True))) for row in rows]

    def _pages(self, table: str, columns: Sequence[str], after: int) -> Iterator[dict[str, Any]]:
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE number > ? ORDER BY number LIMIT {_PAGE}"  # noqa: S608 - constants
        while page := self.rows(query, [after]):
            for row in page:
                yield dict(zip(columns, row, strict=True))
            after = page[-1][0]

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, for statistics."""
        with self._errors_for("read"):
            return self._db.execute(query, values).fetchall()

    # --- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _errors_for(self, what: str) -> contextlib.AbstractContextManager[None]:
        return errors_for(what, self._path)

    @contextlib.contextmanager
    def _transaction(self, what: str) -> Iterator[None]:
        with self._errors_for(what), transaction(self._db):
            yield


def _is_of_scorer(step: Any) -> bool:
    return isinstance(step, dict) and step.get("kind") in {"judge", "score"}


def add_note(path: Path, execution: int, step: int, text: str) -> Note:
    """Store a note on a step of an execution in the journal at `path`, and return it.

    Any process may call this, also while another one records results: SQLite lets one of them write at a time.

    Raises:
        UsageError: the journal has no execution with this number.
        StoreFailed: the note cannot be stored.
    """
    Journal(path, read_only=True).close()  # checks the format version, and upgrades an old journal
    with errors_for("store a note", path), contextlib.closing(connect(path, "rw")) as db, transaction(db):
        found = db.execute("SELECT task, attempt FROM results WHERE number = ?", [execution]).fetchone()
        if found is None:
            raise UsageError(f"{path} has no execution with the number {execution}")
        task, attempt = found
        note = Note(task, attempt, execution, step, well_formed(text), time.time())
        query = f"INSERT INTO notes ({', '.join(_NOTE)}) VALUES ({', '.join('?' * len(_NOTE))})"  # noqa: S608 - constants
        note.number = db.execute(query, [getattr(note, name) for name in _NOTE]).lastrowid
    return note


def change_note(path: Path, number: int, text: str) -> bool:
    """Replace the text of a note in the journal at `path`; an empty text removes the note. Return whether it exists.

    Raises:
        StoreFailed: the change cannot be stored.
    """
    Journal(path, read_only=True).close()  # as in `add_note`
    with errors_for("change a note", path), contextlib.closing(connect(path, "rw")) as db, transaction(db):
        if text:
            changed = db.execute("UPDATE notes SET text = ? WHERE number = ?", [well_formed(text), number])
        else:
            changed = db.execute("DELETE FROM notes WHERE number = ?", [number])
        return changed.rowcount > 0


def _check_objects(db: sqlite3.Connection, path: Path) -> None:
    """Check that reading a journal only reads rows. A file that came from elsewhere may have views that never end.

    Raises:
        StoreFailed: it has views, triggers, virtual tables or computed columns, which no journal has.
    """
    odd = db.execute(
        "SELECT name FROM sqlite_master m WHERE type NOT IN ('table', 'index') OR rootpage = 0 "
        "OR EXISTS (SELECT 1 FROM pragma_table_xinfo(m.name) WHERE hidden != 0)"
    ).fetchone()
    if odd is not None:
        raise StoreFailed(f"{path} is not a journal: {odd[0]!r} is a view, a trigger or a computed table")


def _columns(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
    """Return the columns of all tables: table, name, type, and position in the primary key."""
    query = (
        "SELECT m.name, x.name, x.type, x.pk FROM sqlite_master m, pragma_table_xinfo(m.name) x WHERE m.type = 'table'"
    )
    return set(db.execute(query))


@functools.cache
def _known_columns() -> frozenset[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return frozenset(_columns(db))


def _upgrade(path: Path, version: str) -> None:
    """Add the columns and tables of this format version to a journal of an earlier version, in one transaction.

    Raises:
        StoreFailed: this process may not change the file.
    """
    try:
        with contextlib.closing(connect(path, "rw")) as db, transaction(db):
            # Another process may have upgraded the file while this one waited for its turn.
            if db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() == (version,):
                for statement in filter(str.strip, _UPGRADES[version].split(";")):
                    db.execute(statement)
                db.execute("UPDATE meta SET value = ? WHERE key = 'version'", [_VERSION])
    except sqlite3.Error as error:
        raise StoreFailed(
            f"{path} has format version {version} and cannot be upgraded to version {_VERSION}: {error}. Make the file and "
            "its folder writable, or copy the run directory to a place where they are"
        ) from error


def _storable_value(value: Any) -> Any:
    return well_formed(value) if isinstance(value, str) else value


def _row(result: RolloutResult) -> list[Any]:
    values = {name: getattr(result, name) for name in _COLUMNS}
    return [result.number, *(values | {"scores": json.dumps(result.scores)}).values()]


def _result(row: Sequence[Any]) -> RolloutResult:
    values = dict(zip(_COLUMNS, row[1:], strict=True))
    try:
        # SQLite stores text in columns of numbers. Names of files are made from the task and the attempt.
        if not isinstance(values["attempt"], int) or not all(isinstance(values[name], str) for name in _TEXTS):
            raise TypeError("a value has the wrong type")
        values["scores"] = json.loads(values["scores"])
        values["status"] = RolloutStatus(values["status"])
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreFailed(f"the journal is damaged: result {row[0]}: {error}") from error
    values["final"] = bool(values["final"])
    return RolloutResult(**values, number=row[0])
