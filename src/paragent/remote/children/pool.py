"""The child servers of this process: how many there are, where the next agent goes, and their end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.processes import kill_group
from paragent.config import usable_cores
from paragent.errors import ServerLost
from paragent.remote.trust import trusted_here
from paragent.transport.address import Address
from paragent.transport.auth import load_token

if TYPE_CHECKING:
    from paragent.remote.client.link import Link

__all__ = ["LONGEST", "Child", "Parent", "child_link", "close", "close_nursery", "own_child_link", "start"]


_START = 30.0
"""Seconds that a child may take to listen; it needs 0.05 on an idle machine."""
_LEASE = 10.0
"""Seconds that a child keeps what a client had which is not connected any more: other programs may use its agents too."""


class Child:
    """A server process that we started: a place that knows at once when it is gone."""

    def __init__(self, address: Address, leash: socket.socket) -> None:
        self.address = address
        self._leash = leash
        self._leash.setblocking(False)
        self._up = asyncio.Event()
        self._pid = 0
        """Known once it is up."""
        self._ended = False
        """Whether the process is known to have ended; its number may then be another's."""

    async def ready(self) -> None:
        """Wait until the process listens."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START):
                said = await loop.sock_recv(self._leash, 1024)
        except (TimeoutError, OSError):
            said = b"it did not start in time"
        if not said.startswith(b"ready "):
            raise ServerLost(f"a child server could not start: {said.decode(errors='replace') or 'it died'}")
        self._pid = int(said.removeprefix(b"ready "))
        self._up.set()

    async def gone(self) -> str:
        await self._up.wait()
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_recv(self._leash, 1)
        self._ended = True
        return "the agent server, a child process of this program, died; its agents are lost"

    def advice(self, trouble: str, *, first: bool) -> str:
        what = "could not be reached" if first else "died; its agents are lost"
        return f"the agent server, a child process of this program, {what} ({trouble})"

    def end(self) -> None:
        """Let go of the leash, which ends the process and all that it started."""
        with contextlib.suppress(OSError):
            self._leash.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process and all that it started, also while native code holds its interpreter."""
        if self._pid and not self._ended:
            kill_group(self._pid)
        self.end()

    def close(self) -> None:
        """End the process, and be done with the leash: the I/O loop will not look at it any more."""
        self.end()
        self._leash.close()


class _Nursery:
    """Has children forked by the warm parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Protects everything here."""
        self._folder: Path | None = None
        self._children: list[Child] = []
        self._shared: dict[frozenset[Address] | None, list[Link]] = {}
        """By the servers that the code there may use: children of a restricted server's agents serve nobody else."""
        self._turn = 0
        self._born = 0
        self._cores = usable_cores()

    def shared(self) -> Link:
        """Return the link to the child whose turn it is; as many children as cores share all agents."""
        with self._lock:
            self._turn += 1
            shared = self._shared.setdefault(trusted_here(), [])
            if len(shared) == self._cores:
                link = shared[self._turn % self._cores]
                if link.lost is None:
                    return link
                shared[:] = [link for link in shared if link.lost is None]
            shared.append(self._bear())
            return shared[-1]

    def own(self, grace: float | None) -> tuple[Link, Child]:
        """Return the link to a child that is nobody else's, which ends if a cancelled call does not end within `grace`."""
        from paragent.remote.client.hard_stop import HardStop

        with self._lock:
            link = self._bear()
            child = self._children[-1]
            if grace is not None:
                link.hard_stop = HardStop(link, child.kill, grace)
            return link, child

    def _bear(self) -> Link:
        control = start().control
        # Loading gRPC takes as long as the warm parent needs to start; both happen at the same time.
        from paragent.remote.client.link import Link
        from paragent.remote.client.links import adopt

        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="paragent-"))
        token = load_token()
        self._born += 1
        address = Address("", 0, str(self._folder / str(self._born)))
        ours, theirs = socket.socketpair()
        trusted = trusted_here()
        settings = {
            "path": address.path,
            "sys_path": sys.path,
            "cwd": str(Path.cwd()),
            "environ": {name: value for name, value in os.environ.items() if name.startswith("PARAGENT_")},
            "log_level": logging.getLogger().getEffectiveLevel(),
            "lease": _LEASE,
            "trusted": None if trusted is None else sorted(trusted),
        }
        with theirs:
            socket.send_fds(control, [json.dumps(settings).encode()], [theirs.fileno()])
        child = Child(address, ours)
        self._children.append(child)
        link = Link(child, token, None)
        adopt(link)
        return link

    def close(self) -> None:
        """End every child and the warm parent."""
        with self._lock:
            for child in self._children:
                child.close()
            self._children.clear()
            self._shared.clear()
            close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def forget(self) -> None:
        """In a forked process: the children are the parent's."""
        self.__init__()  # type: ignore[misc]


_nursery = _Nursery()
atexit.register(_nursery.close)
os.register_at_fork(after_in_child=_nursery.forget)


def child_link() -> Link:
    """Return the link to one of the child servers that all agents of this process share."""
    return _nursery.shared()


def own_child_link(grace: float | None) -> tuple[Link, Child]:
    """Return the link to a fresh child server, and the child, which the caller ends.

    It ends by itself if a call that was cancelled does not end within `grace` seconds, unless that is None.
    """
    return _nursery.own(grace)


def close_nursery() -> None:
    """End every child server now; the end of the program does the same."""
    _nursery.close()


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
                [sys.executable, "-m", "paragent.remote.children.forkserver", str(theirs.fileno()), *loaded],
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
