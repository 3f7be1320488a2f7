"""`SocketFolder`: the private folder of the gateway's Unix socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["SocketFolder"]

_PREFIX = "paragent-gateway-"
_LOCK = "lock"
_SOCKET = "gateway.sock"
_LONGEST_FOLDER = 107 - len(f"/{_PREFIX}12345678/{_SOCKET}")
"""Bytes of the folder for temporary files: the path of a Unix socket has at most 107, and `mkdtemp` adds 8 to the prefix."""


class SocketFolder:
    """A folder that only this user can enter.

    Its owner holds a lock in it. The kernel releases the lock when the owner ends, so the next owner can remove the folders
    of owners that were killed.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock = -1
        self.socket = ""
        """The path of the socket; empty before `open`."""

    def open(self) -> str:
        """Create the folder and return the path of the socket, which does not exist yet.

        Raises:
            OSError: it cannot be created.
        """
        root = tempfile.gettempdir()
        root = root if len(root.encode()) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108 - the folder in it is private
        _remove_abandoned(Path(root))
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        draft = self._folder / "draft"  # the lock gets its name when it is held
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self._folder / _LOCK)
        self.socket = str(self._folder / _SOCKET)
        return self.socket

    def protect(self) -> None:
        """Let only this user connect to the socket."""
        Path(self.socket).chmod(0o600)

    def remove(self) -> None:
        """Remove the folder. Idempotent."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(root: Path) -> None:
    """Remove the folders whose owners have ended."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
