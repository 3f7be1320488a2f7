"""The runs of a folder: found by name, opened for reading, with their statistics kept until their files change."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from paragent._internal.files import read_small_file
from paragent.errors import ParagentError, StoreFailed
from paragent.rollout.live_run import RunState, read_session_file
from paragent.store import ATTEMPTS, JOURNAL_FILE, METRIC, Journal, Summary, find_folders, find_runs, summarise
from paragent.store.directory import IMPORTED
from paragent.store.summary import SOLVED
from paragent.view.api import RunList, RunRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paragent.rollout.live_run import LiveRun

__all__ = ["RunFolder", "StoredRun", "UnknownRun"]

Part = TypeVar("Part")

_FRESH = 5.0
"""Seconds after which a session file belongs to a session that was killed; sessions write it every second."""
_AHEAD = 60.0
"""Seconds by which the clock of a session's host may be ahead. A copied run directory cannot claim to be live for longer."""
_RATIO = 4
"""Statistics of a run that changes all the time are kept for this many times as long as computing them took."""
_JUDGE = "llm_judge"
"""The scorer that asks the model of the run, if it has no `--judge-model`."""
_MOST_ATTEMPTS = 100_000
_SUMMARY = TypeAdapter(Summary)
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")
_LIVE_STATES = {RunState.PAUSING: "paused", RunState.PAUSED: "paused", RunState.STOPPING: "stopping"}


class UnknownRun(ParagentError):
    """The folder has no run, execution, file or step with this name."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the list of runs shows of one run, and the statistics that its page needs."""

    summary: Summary
    started: float | None
    changed: float
    """When the last session ended, or was updated last."""
    last: int
    """The number of the newest result."""
    origin: str
    metric: str
    verdicts: dict[str, int]
    """As in `RunRow`."""


class StoredRun:
    """One run directory. All methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._lock = threading.Lock()
        """Protects the attributes below. It is held while the statistics are computed, so that several requests at a time compute
        them once."""
        self._facts: tuple[Any, RunFacts] | None = None
        self._valid_until = 0.0
        self._parts: dict[Any, Any] = {}
        """What other modules keep about this run, by their class."""

    def open(self) -> Journal:
        """Open the journal for reading.

        Raises:
            StoreFailed: it is damaged, or has another format version.
        """
        return Journal(self.path / JOURNAL_FILE, read_only=True)

    def part(self, kind: Callable[[StoredRun], Part]) -> Part:
        """Return the object of a class that keeps data of this run; it is created with the first call."""
        with self._lock:
            if kind not in self._parts:
                self._parts[kind] = kind(self)
            found: Part = self._parts[kind]
            return found

    def state_of_files(self) -> tuple[Any, ...]:
        """Return a value that changes whenever the journal or the summary is written."""
        names = (JOURNAL_FILE, f"{JOURNAL_FILE}-wal", "summary.json")
        return tuple(_stat(self.path / name) for name in names)

    def live(self) -> LiveRun | None:
        """Return what the session of the run says about itself; None if no session is active."""
        found = read_session_file(self.path / "live")
        if found is None or found.state.ended:
            return None
        return found if -_AHEAD < time.time() - found.at < _FRESH else None

    def state(self, summary: Summary) -> str:
        """Return the state for the list of runs: `running`, `paused`, `stopping`, `complete` or `stopped`."""
        live = self.live()
        if live is None:
            return "stopped" if summary.pending and self.facts().origin != "imported" else "complete"
        return _LIVE_STATES.get(live.state, "running")

    def config(self) -> dict[str, Any]:
        """Return the settings of the run, without user names and passwords of addresses; empty if the file is damaged."""
        found = _read_json(self.path / "config.json")
        try:
            return _without_credentials(found) if isinstance(found, dict) else {}
        except RecursionError:
            return {}

    def facts(self) -> RunFacts:
        """Return the statistics; they are computed again when the files of the run have changed, but not too often.

        Raises:
            StoreFailed: the journal cannot be read.
        """
        with self._lock:
            state, began = self.state_of_files(), time.monotonic()
            if self._facts is None or (self._facts[0] != state and began > self._valid_until):
                with self.open() as journal:
                    self._facts = (state, _checked_facts(journal, self.path))
                now = time.monotonic()
                self._valid_until = now + _RATIO * (now - began)
            return self._facts[1]

    def row(self) -> RunRow:
        """Return the row of the list of runs; the state of a run that cannot be read is `unreadable`."""
        config = self.config()
        words: dict[str, Any] = {name: str(config.get(name) or "") for name in ("mode", "model", "engine")}
        words["mode"] = words["mode"] or str(config.get("env") or "")
        words["data"] = _data_name(str(config.get("data") or ""))
        try:
            facts = self.facts()
        except ParagentError as problem:
            unknown = ("score", "score_of_all", "interval", "cost", "tokens", "started")
            nothing: dict[str, Any] = dict.fromkeys(unknown)
            counts: dict[str, Any] = {"total": 0, "done": 0, "measured": 0, "cut": 0, "seconds": 0.0}
            changed = _stat(self.path / JOURNAL_FILE)[0] / 1e9
            return RunRow(
                self.name,
                **words,
                state="unreadable",
                **counts,
                statuses={},
                **nothing,
                changed=changed,
                problem=str(problem),
            )
        summary = facts.summary
        known = summary.prompt_tokens is not None and summary.completion_tokens is not None
        return RunRow(
            self.name,
            **words,
            state=self.state(summary),
            total=summary.rollouts,
            done=summary.done,
            statuses=summary.statuses,
            score=summary.mean,
            interval=summary.interval,
            measured=summary.measured,
            score_of_all=summary.mean_of_all,
            cut=summary.cut,
            cost=summary.cost,
            tokens=(summary.prompt_tokens or 0) + (summary.completion_tokens or 0) if known else None,
            seconds=summary.seconds,
            started=facts.started,
            changed=facts.changed,
            origin=facts.origin,
            metric=facts.metric,
            judge=str(config.get("judge_model") or (words["model"] if facts.metric == _JUDGE else "")),
            verdicts=facts.verdicts,
        )


class RunFolder:
    """The runs of one folder. A run that was replaced by another one of the same name is a new `StoredRun`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        """Protects `_runs`."""
        self._runs: dict[str, tuple[int, StoredRun]] = {}
        """By name, with the inode of the journal."""

    def all(self) -> list[StoredRun]:
        """Return the runs."""
        with self._lock:
            known, self._runs = self._runs, {}
            for path in find_runs(self.folder):
                inode = _inode(path / JOURNAL_FILE)
                before = known.get(path.name)
                self._runs[path.name] = before if before and before[0] == inode else (inode, StoredRun(path))
            return [run for _, run in self._runs.values()]

    def get(self, name: str) -> StoredRun:
        """Return a run by its name.

        Raises:
            UnknownRun: the folder has no such run.
        """
        with self._lock:
            known = self._runs.get(name)
        if known is not None and known[0] == _inode(known[1].path / JOURNAL_FILE):
            return known[1]
        for run in self.all():
            if run.name == name:
                return run
        raise UnknownRun(f"there is no run {name!r} in {self.folder}")

    def rows(self) -> RunList:
        """Return the list of runs, the one whose session ended last first."""
        rows = sorted((run.row() for run in self.all()), key=lambda row: -row.changed)
        return RunList(rows, [str(path.relative_to(self.folder)) for path in find_folders(self.folder)])


def _checked_facts(journal: Journal, path: Path) -> RunFacts:
    """Return the statistics. The files may come from anyone, and one damaged run must not hide the others.

    Raises:
        StoreFailed: a value in the journal has the wrong type.
    """
    try:
        return _facts(journal, path)
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, sqlite3.Error) as error:
        raise StoreFailed(f"{path / JOURNAL_FILE} is damaged: {error!r}") from error


def _facts(journal: Journal, path: Path) -> RunFacts:
    attempts = int(journal.meta(ATTEMPTS) or 1)
    if not 0 < attempts <= _MOST_ATTEMPTS:
        raise StoreFailed(f"{path} is damaged: it has {attempts:,} attempts at each task")
    [(last, executions)] = journal.rows("SELECT coalesce(max(number), 0), count(*) FROM results")
    [(started, changed)] = journal.rows("SELECT min(started), coalesce(max(started + seconds), 0) FROM sessions")
    [(final,)] = journal.rows("SELECT count(*) FROM results WHERE final = 1")
    summary = _stored_summary(path)
    if summary is None or (summary.executions, sum(summary.statuses.values()), summary.rollouts) != (
        executions,
        final,
        journal.count_tasks() * attempts,
    ):
        summary = summarise(journal, attempts)
    return RunFacts(
        summary, started, changed, last, _origin(journal), str(journal.meta(METRIC) or ""), _verdicts(journal)
    )


def _origin(journal: Journal) -> str:
    """Return where the tasks of a run came from, as `RunRow.origin`."""
    if journal.meta(IMPORTED):
        return "imported"
    return "training" if journal.rows("SELECT 1 FROM groups LIMIT 1") else ""


def _data_name(data: str) -> str:
    """Return `--data` without folders; datasets of the hub keep their whole name."""
    return data if data.startswith("hf:") else data.rstrip("/").rpartition("/")[2]


def _verdicts(journal: Journal) -> dict[str, int]:
    """Return the counts of `RunRow.verdicts`."""
    counted = journal.rows(
        "SELECT CASE WHEN score >= ? THEN 'right' WHEN score > 0 THEN 'partly right' ELSE 'wrong' END, count(*) "
        "FROM results WHERE final = 1 AND status = 'completed' AND score IS NOT NULL GROUP BY 1",
        [SOLVED],
    )
    return dict(counted)


def _stored_summary(path: Path) -> Summary | None:
    """Return the statistics that the last session wrote; None if they are missing or of another version."""
    found = _read_json(path / "summary.json")
    names = {field.name for field in fields(Summary)}
    if not isinstance(found, dict) or not names <= found.keys():
        return None
    try:
        return _SUMMARY.validate_python(found)
    except ValidationError:
        return None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_small_file(path))
    except (OSError, ValueError, RecursionError):
        return None


def _without_credentials(value: Any) -> Any:
    """Return settings in which `https://user:password@host` is `https://…@host`: an export may be published."""
    if isinstance(value, str):
        return _CREDENTIALS.sub("://…@", value)
    if isinstance(value, dict):
        return {name: _without_credentials(one) for name, one in value.items()}
    return [_without_credentials(one) for one in value] if isinstance(value, list) else value


def _stat(path: Path) -> tuple[int, int]:
    """Return the time of modification in nanoseconds and the size of a file; zeros if it does not exist or is empty."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    # A reader creates an empty write-ahead log, which is not a change.
    return (found.st_mtime_ns, found.st_size) if found.st_size else (0, 0)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
