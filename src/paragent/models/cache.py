"""Cache of replies (`--cache`): identical requests are answered from one SQLite file that processes and runs share.

The key of a reply is a digest of everything that influences it: protocol, address, model, body and sampling settings, and
which sample it is: the number of the attempt, and how often the same request was made before in this execution of the
rollout. So two attempts never get the same sample, a repeated request gets a new one, and executing a rollout again gets the
samples of the first time. The file has no requests and no keys of endpoints, only digests and replies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["ReplyCache", "RequestScope", "request_scope"]

_log = logging.getLogger("paragent.models")

_FILE = "replies.sqlite"
_VERSION = 1
"""The format of the file, and of the digests."""
_BUSY_SECONDS = 30.0
"""Seconds to wait for other writers; one write takes about a millisecond."""
_SCHEMA = "CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL, request_id TEXT NOT NULL) WITHOUT ROWID"


class RequestScope:
    """One execution of a rollout: numbers its identical requests.

    Args:
        attempt: the number of the attempt at the task.
    """

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self._made: Counter[bytes] = Counter()

    @contextlib.contextmanager
    def numbered(self, request: Any) -> Iterator[bytes]:
        """Yield the key of a request. If the request fails, its number is used again.

        Args:
            request: everything that influences the reply, as JSON values.
        """
        text = json.dumps([_VERSION, request], sort_keys=True, default=_value)
        digest = hashlib.sha256(text.encode()).digest()
        self._made[digest] += 1
        try:
            yield hashlib.sha256(digest + f"{self.attempt}:{self._made[digest]}".encode()).digest()
        except BaseException:
            self._made[digest] -= 1
            raise


request_scope: ContextVar[RequestScope | None] = ContextVar("paragent_request_scope", default=None)
"""The execution to which requests belong. Requests outside of a rollout are not cached."""


def _value(value: Any) -> Any:
    """Return what stands for an object of a request that JSON does not have, such as a pydantic message."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


class ReplyCache:
    """The replies in one file. All methods may be called from any thread, and block.

    A failure of the file in the middle of a run does not fail rollouts: the cache is not used any more, and the log says why.

    Args:
        folder: the folder of the file; it is created.

    Raises:
        ConfigError: the file cannot be opened, is damaged, or has another format version.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._lock = threading.Lock()
        """Protects the connection, which any thread may use."""
        self._db: sqlite3.Connection | None = None
        try:
            self._db = self._opened(folder)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the cache {self._path} cannot be used: {error}. Delete the file, or use another --cache-dir"
            ) from error

    def _opened(self, folder: Path) -> sqlite3.Connection:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Replies may be confidential: the file is created for this user only, and never behind somebody else's link.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            # WAL: readers do not block writers. NORMAL: a power failure may lose the last replies, which are only copies.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            [version] = db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(
                    f"it has format version {version}, and this version of paragent uses {_VERSION}"
                )
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.execute("SELECT key, reply, request_id FROM replies LIMIT 1").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def get(self, key: bytes) -> tuple[Any, str] | None:
        """Return the reply with this key and the endpoint's id of its request; None if there is none."""
        row = self._execute("SELECT reply, request_id FROM replies WHERE key = ?", [key])
        if row is None:
            return None
        try:
            return json.loads(row[0]), str(row[1])
        except ValueError as error:
            self._give_up(error)
            return None

    def put(self, key: bytes, reply: Any, request_id: str) -> None:
        """Store a reply. If another process has stored one with this key, that one stays."""
        self._execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", [key, json.dumps(reply), request_id])

    def _execute(self, statement: str, values: list[Any]) -> Any:
        with self._lock:
            if self._db is None:
                return None
            try:
                return self._db.execute(statement, values).fetchone()
            except sqlite3.Error as error:
                self._give_up(error)
                return None

    def _give_up(self, error: Exception) -> None:
        _log.warning("the cache %s is not used any more in this worker: %s", self._path, error)
        self._db = None

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None
