"""The warm parent as its owner sees it: started early, asked for servers, ended.

It takes longer to start than anything else here, so this module loads next to nothing: what the owner itself needs is loaded
while the warm parent starts.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading

__all__ = ["LONGEST", "Parent", "close", "start"]

LONGEST = 1 << 20
"""Bytes of a request; most of it is `sys.path`."""

_PACKAGE = __name__.partition(".")[0]
_NOT_THERE = frozenset({f"{_PACKAGE}.__main__", f"{__name__.rpartition('.')[0]}.nursery"})
"""Modules that the warm parent does not load although its owner has: few servers have children of their own, and what the
nursery needs takes as long to load as a server to fork."""


class Parent:
    """A process that forks servers as asked over `control`, and ends when that is closed."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LONGEST)
        loaded = sorted(
            name for name in list(sys.modules) if name.startswith(f"{_PACKAGE}.") and name not in _NOT_THERE
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paragent.remote.children.zygote", str(theirs.fileno()), *loaded],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it, and with it every server that it forked."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
"""Protects `_parent`."""
_parent: Parent | None = None


def start() -> Parent:
    """Return the warm parent of this process; the first call starts it, and one after it has died starts another."""
    global _parent
    with _lock:
        if _parent is None or not _parent.alive:
            _parent = Parent()
        return _parent


def close() -> None:
    """End the warm parent, if there is one; the end of the program does the same."""
    global _parent
    with _lock:
        parent, _parent = _parent, None
    if parent is not None:
        parent.close()


def _forget() -> None:
    """In a forked process: the warm parent is its parent's."""
    global _lock, _parent
    _lock = threading.Lock()
    _parent = None


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
