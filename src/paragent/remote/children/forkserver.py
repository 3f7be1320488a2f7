"""Fork server: a process that has imported what agent servers need, has opened no connection, and forks agent servers.

`ForkServer` is the side of the program that uses it, `main` is the process. They communicate over a socket pair. Each request
is one JSON datagram with a socket, the lifeline of the server to fork. If the program's end of the pair closes for any
reason, the fork server ends, and the kernel kills its children.

Starting the fork server takes longer than anything else in `to_dist`, so the program starts it first and imports its own
modules meanwhile. For that reason this module imports very little.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading

__all__ = ["ForkServer", "close_fork_server", "fork_server", "main"]

_REQUEST_BYTES = 1 << 20
"""Largest request; most of it is `sys.path`."""
_PACKAGE = "paragent"
_NOT_PRELOADED = frozenset({f"{_PACKAGE}.__main__", f"{_PACKAGE}.remote.children.pool"})
"""Modules that the fork server does not import although the program has imported them. Few agent servers have child servers,
and the imports of `pool` take as long as forking a server."""
_END_SECONDS = 0.2


class ForkServer:
    """A process that forks agent servers on request, and ends when `control` is closed."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _REQUEST_BYTES)
        loaded = sorted(
            name for name in list(sys.modules) if name.startswith(f"{_PACKAGE}.") and name not in _NOT_PRELOADED
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
        """Whether the process is running."""
        return self._process.poll() is None

    def fork(self, request: bytes, lifeline: socket.socket) -> None:
        """Fork an agent server.

        Args:
            request: the settings of `child_main.run_forked`, as JSON.
            lifeline: a socket that the server ends with; the server gets its own copy of it.
        """
        socket.send_fds(self.control, [request], [lifeline.fileno()])

    def close(self) -> None:
        """End the process and all servers that it forked."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
"""Protects `_running`."""
_running: ForkServer | None = None


def fork_server() -> ForkServer:
    """Return the fork server of this process. The first call starts it; if it died, the next call starts a new one."""
    global _running
    with _lock:
        if _running is None or not _running.alive:
            _running = ForkServer()
        return _running


def close_fork_server() -> None:
    """End the fork server, if there is one. Also runs at the exit of the program."""
    global _running
    with _lock:
        server, _running = _running, None
    if server is not None:
        server.close()


def _reset_after_fork() -> None:
    """Forget the fork server, which belongs to the parent process."""
    global _lock, _running
    _lock = threading.Lock()
    _running = None


atexit.register(close_fork_server)
os.register_at_fork(after_in_child=_reset_after_fork)


# --- the process ------------------------------------------------------------------------------------------------------


def main(descriptor: int, modules: list[str]) -> None:
    """Fork agent servers on request until the program closes its end of the socket pair."""
    import gc
    import json
    import signal

    gc.disable()  # imports leave no garbage; each forked server enables the collector again
    from paragent.remote.children import child_main

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    control = socket.socket(fileno=descriptor)
    child_main.preload(modules)
    gc.freeze()  # so that a collection in a child does not copy the memory pages of imported modules
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
        if not request:
            return
        lifeline = descriptors[0]
        if os.fork() == 0:
            control.close()
            child_main.run_forked(json.loads(request), lifeline)
        os.close(lifeline)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
