"""Child servers of this program: agent server processes that run its agents and end with it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.processes import kill_group
from paragent.config import usable_cores
from paragent.errors import ParagentError, ServerLost
from paragent.remote.children.forkserver import close_fork_server, fork_server
from paragent.remote.placement import trusted_here
from paragent.transport.address import Address
from paragent.transport.auth import load_token
from paragent.transport.loop import io_loop

if TYPE_CHECKING:
    from paragent.remote.link import Link

__all__ = ["ChildServer", "child_link", "close_children", "own_child_link"]

_START_SECONDS = 30.0
"""Seconds in which a child must listen; on an idle host it takes 0.05 s."""
_LEASE_SECONDS = 10.0
"""Seconds for which a child keeps the session of a disconnected client; other programs may use its agents too."""


class ChildServer:
    """An agent server process of this program. Its end is noticed at once through the lifeline, a socket that both share."""

    def __init__(self, address: Address, lifeline: socket.socket) -> None:
        self.address = address
        self._lifeline = lifeline
        self._lifeline.setblocking(False)
        self._started = asyncio.Event()
        self._pid = 0
        """Known once the process has started."""
        self.ended = False
        """Whether the process has ended or failed to start. The lifeline is closed then, and the system may reuse the process
        id."""

    async def ready(self) -> None:
        """Wait until the process listens."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_SECONDS):
                message = await loop.sock_recv(self._lifeline, 1024)
        except (TimeoutError, OSError):
            message = b"it did not start in time"
        if not message.startswith(b"ready "):
            self._close_ended()
            raise ServerLost(f"a child server could not start: {message.decode(errors='replace') or 'it died'}")
        self._pid = int(message.removeprefix(b"ready "))
        self._started.set()

    async def gone(self) -> str:
        """Wait until the process has ended; return the error message."""
        await self._started.wait()
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_recv(self._lifeline, 1)
        self._close_ended()
        return "the agent server, a child process of this program, died; its agents are lost"

    def _close_ended(self) -> None:
        self.ended = True
        self.close()

    def unreachable(self, trouble: ParagentError, *, first: bool) -> str:
        """Return the error message for a failed connection."""
        what = "could not be reached" if first else "died; its agents are lost"
        return f"the agent server, a child process of this program, {what} ({trouble})"

    def end(self) -> None:
        """Shut the lifeline down, which ends the process and the processes that it started."""
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the process and the processes that it started, even while native code holds its interpreter."""
        if self._pid and not self.ended:
            kill_group(self._pid)
        self.end()

    def close(self) -> None:
        """End the process and close the lifeline. The I/O loop must not use the lifeline any more."""
        self.end()
        self._lifeline.close()

    def forget(self) -> None:
        """In a forked process: close its copy of the lifeline. Then neither `end` nor `kill` can end the process."""
        self.ended = True
        self._lifeline.close()


class _ChildPool:
    """Starts child servers and assigns agents to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Protects all attributes."""
        self._folder: Path | None = None
        """Contains the sockets of the children."""
        self._children: list[ChildServer] = []
        self._shared: dict[frozenset[Address] | None, list[Link]] = {}
        """Links to shared children, by the servers that code in them may use: agents of a restricted server share their child
        servers with no other agents."""
        self._turn = 0
        self._started = 0
        self._cores = usable_cores()

    def shared(self) -> Link:
        """Return the link to a shared child, in rotation; there are as many shared children as cores."""
        with self._lock:
            self._turn += 1
            shared = self._shared.setdefault(trusted_here(), [])
            if len(shared) == self._cores:
                link = shared[self._turn % self._cores]
                if link.lost is None:
                    return link
                shared[:] = [link for link in shared if link.lost is None]
            shared.append(self._start_child())
            return shared[-1]

    def own(self, grace: float | None) -> tuple[Link, ChildServer]:
        """Return the link to a new child for one agent; it is killed if a cancelled call does not end within `grace`."""
        from paragent.remote.pending_calls import HardStop

        with self._lock:
            link = self._start_child()
            child = self._children[-1]
            if grace is not None:
                link.hard_stop = HardStop(link, child.kill, grace)
            return link, child

    def _start_child(self) -> Link:
        io_loop()  # raises in a forked process, which must not start anything
        server = fork_server()
        # Loading gRPC takes as long as starting the fork server; both happen at the same time.
        from paragent.remote.link import Link, register_link

        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="paragent-"))
        token = load_token()
        self._started += 1
        address = Address("", 0, str(self._folder / str(self._started)))
        ours, theirs = socket.socketpair()
        trusted = trusted_here()
        settings = {
            "path": address.path,
            "sys_path": sys.path,
            "cwd": str(Path.cwd()),
            "environ": {name: value for name, value in os.environ.items() if name.startswith("PARAGENT_")},
            "log_level": logging.getLogger().getEffectiveLevel(),
            "lease": _LEASE_SECONDS,
            "trusted": None if trusted is None else sorted(trusted),
        }
        with theirs:
            server.fork(json.dumps(settings).encode(), theirs)
        child = ChildServer(address, ours)
        self._children = [*(other for other in self._children if not other.ended), child]
        link = Link(child, token, None)
        register_link(link)
        return link

    def close(self) -> None:
        """End all children, then the fork server: if it ended first, the kernel would kill only the children and not the
        processes that they started."""
        with self._lock:
            for child in self._children:
                child.close()
            self._children.clear()
            self._shared.clear()
            close_fork_server()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def reset_after_fork(self) -> None:
        """Forget the children, which belong to the parent process."""
        for child in self._children:
            child.forget()
        self.__init__()  # type: ignore[misc]


_pool = _ChildPool()
atexit.register(_pool.close)  # runs before `close_fork_server`, which `forkserver` has registered earlier
os.register_at_fork(after_in_child=_pool.reset_after_fork)


def child_link() -> Link:
    """Return the link to one of the child servers that all agents of this process share."""
    return _pool.shared()


def own_child_link(grace: float | None) -> tuple[Link, ChildServer]:
    """Return the link to a new child server, and the child, which the caller must end.

    The child is killed if a cancelled call does not end within `grace` seconds; None: never.
    """
    return _pool.own(grace)


def close_children() -> None:
    """End all child servers now. Also runs at the exit of the program."""
    _pool.close()
