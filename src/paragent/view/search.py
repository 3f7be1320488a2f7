"""Search over all text of a run: an index in `search.sqlite` (SQLite FTS5), built in a thread while the view is used.

The index has no copy of the text: what is shown around a hit comes from the trajectory. It is only a cache; the view may delete
and rebuild it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

from paragent.errors import ParagentError
from paragent.machines.cleanup import cache_folder
from paragent.store.database import is_writable
from paragent.view.api import SearchHit, SearchResults
from paragent.view.queries import execution_refs
from paragent.view.transcripts import transcript_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paragent.store import Journal
    from paragent.view.api import TranscriptStep
    from paragent.view.runs import StoredRun

__all__ = ["SearchIndex", "fts_query"]

_FILE = "search.sqlite"
_VERSION = "1"
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE VIRTUAL TABLE steps USING fts5 (text, content = '', tokenize = "unicode61 remove_diacritics 2");
"""
_STEPS = 20
"""Bits of a row's number that are the index of the step; the others are the number of the execution."""
_MOST_NUMBER = 1 << 63 - _STEPS
"""Executions from this number on cannot be indexed."""
_NEXT = "SELECT number FROM results WHERE number > ? AND number < ? ORDER BY number LIMIT ?"
_BATCH = 300
"""Executions of one transaction: a fraction of a second."""
_PAUSE = 0.005
"""Seconds between two batches, in which requests are answered."""
_LONGEST = 200_000
"""Characters of a step that are indexed."""
_MOST_HITS = 60
"""Hits of one answer. The text around each is read from its trajectory, which takes about a millisecond."""
_MOST_COUNTED = 1000
_LONGEST_QUERY = 500
_AROUND = 80
"""Characters shown before and after a match."""
_PREFIX = 3
"""Words of at least this many letters also find longer words that begin with them."""
_WORDS = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')


def fts_query(text: str) -> tuple[str, list[str], str]:
    """Translate what a user typed into a query of FTS5.

    All words must occur, each also as the beginning of a longer word; `"two words"` is a phrase; `-word` must not occur. No
    character has another meaning, so every text is a valid query.

    Returns:
        The query, the words to mark, and why there is no query, of which the first or the last is empty.
    """
    cleaned = "".join(" " if ord(one) < 32 else one for one in text[:_LONGEST_QUERY])
    if cleaned.count('"') % 2:
        return "", [], "a quotation mark is missing"
    wanted, unwanted, marked = [], [], []
    for match in _WORDS.finditer(cleaned):
        term = match["phrase"] if match["phrase"] is not None else match["word"].rstrip("*")
        if not any(one.isalnum() for one in term):
            continue
        is_prefix = match["word"] is not None and (len(term) >= _PREFIX or match["word"].endswith("*"))
        quoted = f'"{term}"' + ("*" if is_prefix else "")
        if match["minus"]:
            unwanted.append(quoted)
        else:
            wanted.append(quoted)
            marked.append(term)
    if not wanted:
        return "", [], "" if not cleaned.strip() else "there is no word to search for"
    query = " AND ".join(wanted)
    return (f"({query}) NOT ({' OR '.join(unwanted)})" if unwanted else query), marked, ""


class SearchIndex:
    """The index of one run; may be used from any thread."""

    def __init__(self, run: StoredRun) -> None:
        self._run = run
        self._lock = threading.Lock()
        """Protects `_thread` and the creation of the file."""
        self._thread: threading.Thread | None = None
        self._path: Path | None = None
        self._problem = ""

    def search(self, text: str) -> SearchResults:
        """Return the steps that contain the words; begin or continue to index what was recorded since.

        Raises:
            StoreFailed: the journal cannot be read.
        """
        query, words, problem = fts_query(text)
        self._build()
        with self._run.open() as journal:
            [(executions,)] = journal.rows("SELECT count(*) FROM results")
            path = self._path  # may be discarded by the thread meanwhile
            if path is None:
                return SearchResults([], 0, 0, executions, problem or self._problem)
            try:
                with contextlib.closing(_connect(path)) as db:
                    indexed = int(_meta(db, "executions") or 0)
                    found = _matches(db, query) if query else []
            except sqlite3.Error as error:
                self._discard_if_damaged(error)
                return SearchResults([], 0, 0, executions, f"the index cannot be read: {error}")
            hits = list(self._hits(journal, found[:_MOST_HITS], words))
        return SearchResults(hits, len(found), min(indexed, executions), executions, problem or self._problem)

    def _hits(self, journal: Journal, rows: list[int], words: list[str]) -> Iterator[SearchHit]:
        terms = [r"\W+".join(map(re.escape, re.findall(r"\w+", word))) for word in words]
        pattern = re.compile("|".join(terms) or "$^", re.IGNORECASE)
        numbers = dict.fromkeys(row >> _STEPS for row in rows)
        refs = {ref.number: ref for ref in execution_refs(journal, numbers)}
        transcripts = {number: transcript_of(journal, number, pointers=False) for number in refs}
        for row in rows:
            number, index = row >> _STEPS, row & ((1 << _STEPS) - 1)
            if number in refs and index < len(transcripts[number]):
                step = transcripts[number][index]
                is_reasoning = not pattern.search(step.text) and pattern.search(step.reasoning)
                kind = "reasoning" if is_reasoning else step.kind
                yield SearchHit(refs[number], index, kind, *_around(_text(step), pattern))

    # --- building -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        """Start a thread that indexes new executions, if there is none."""
        with self._lock:
            if self._path is None:
                self._open()
            if self._path is not None and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._index, args=[self._path], name="paragent-search", daemon=True
                )
                self._thread.start()

    def _open(self) -> None:
        """Create the file, or use the one of an earlier view if it belongs to this run; in a cache if the run is read-only."""
        digest = hashlib.sha256(os.fsencode(self._run.path.resolve())).hexdigest()[:16]
        folder = self._run.path if is_writable(self._run.path) else cache_folder("search")
        path = folder / (_FILE if folder == self._run.path else f"{digest}.sqlite")
        with self._run.open() as journal:
            [(started,)] = journal.rows("SELECT min(started) FROM sessions")
            identity = f"{_VERSION} {journal.meta('identity')} {started}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _prepare(path, identity)
        except (OSError, sqlite3.Error) as error:
            self._problem = f"the index cannot be written to {path}: {error}"
        else:
            self._path = path

    def _index(self, path: Path) -> None:
        try:
            with self._run.open() as journal, contextlib.closing(_connect(path)) as db:
                while _index_batch(journal, db):
                    time.sleep(_PAUSE)
        except (OSError, sqlite3.Error, ParagentError) as error:
            self._discard_if_damaged(error)
            self._problem = f"the index could not be completed: {error}"
        else:
            self._problem = ""

    def _discard_if_damaged(self, error: Exception) -> None:
        """Delete an index that SQLite cannot read, so that the next search builds another one."""
        with self._lock:
            if type(error) is sqlite3.DatabaseError and self._path is not None:
                _delete(self._path)
                self._path = None


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _prepare(path: Path, identity: str) -> None:
    """Create the tables; replace a file that is damaged or belongs to another run or version."""
    if path.is_symlink():  # in a run directory that came from elsewhere it may lead to any file
        _delete(path)
    for _ in range(2):
        try:
            with contextlib.closing(_connect(path)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("BEGIN IMMEDIATE")
                if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        db.execute(statement)
                    db.execute("INSERT INTO meta VALUES ('identity', ?)", [identity])
                db.execute("COMMIT")
                if _meta(db, "identity") == identity:
                    return
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
                raise
        _delete(path)
    raise sqlite3.DatabaseError("another process changes it")


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")  # a cache: after a crash of the host it is rebuilt
    return db


def _meta(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
    return None if row is None else str(row[0])


def _index_batch(journal: Journal, db: sqlite3.Connection) -> bool:
    """Index the next executions in one transaction; return whether there may be more.

    Several processes may index the same run: each begins where the index ends now.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        last, count = int(_meta(db, "last") or 0), int(_meta(db, "executions") or 0)
        rows = journal.rows(_NEXT, [last, _MOST_NUMBER, _BATCH])
        numbers = [number for (number,) in rows]
        for number in numbers:
            steps = transcript_of(journal, number, pointers=False)[: 1 << _STEPS]
            values = ((number << _STEPS | step.index, _text(step)[:_LONGEST]) for step in steps)
            db.executemany("INSERT INTO steps (rowid, text) VALUES (?, ?)", values)
        if numbers:
            pairs = [("last", str(numbers[-1])), ("executions", str(count + len(numbers)))]
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", pairs)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return len(numbers) == _BATCH


def _matches(db: sqlite3.Connection, query: str) -> list[int]:
    """Return the numbers of matching rows, at most 1,000: the best first, or the newest first if there are more."""
    rows = db.execute(
        "SELECT rowid FROM steps WHERE steps MATCH ? ORDER BY rowid DESC LIMIT ?", [query, _MOST_COUNTED]
    ).fetchall()
    if len(rows) < _MOST_COUNTED:
        # Ranks of many rows take seconds: each is computed from all its words.
        rows = db.execute("SELECT rowid FROM steps WHERE steps MATCH ? ORDER BY rank", [query]).fetchall()
    return [row for (row,) in rows]


def _text(step: TranscriptStep) -> str:
    """Return all text of a step."""
    calls = [f"{call.name} {call.arguments}" for call in step.calls]
    return "\n".join(part for part in (step.text, step.reasoning, *calls) if part)


def _around(text: str, pattern: re.Pattern[str]) -> tuple[str, str, str]:
    """Return the text before a match, the match, and the text after it; without a match, the beginning of the text."""
    match = pattern.search(text)
    if match is None:
        return "", "", text[: 2 * _AROUND]
    start, end = match.span()
    end = min(end, start + _LONGEST_QUERY)
    before = ("…" if start > _AROUND else "") + text[max(0, start - _AROUND) : start]
    after = text[end : end + _AROUND] + ("…" if len(text) > end + _AROUND else "")
    return before, text[start:end], after
