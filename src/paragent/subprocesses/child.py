"""Child processes with limits, seen from their parent: one child, and a pool of children that call functions of one module.

The parent sends requests and enforces the limits that the kernel does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import paragent
from paragent._internal.processes import describe_exit, kill_group, plain_environment
from paragent.errors import EnvironmentFailed
from paragent.execution import STARTING_HELPER, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

__all__ = [
    "CallFailed",
    "Child",
    "ChildLost",
    "ChildReply",
    "Footprint",
    "ProcessLimits",
    "SubprocessPool",
    "footprint",
]


_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 512
"""Bytes of `st_blocks`, whatever the file system's own blocks are."""


class Footprint(NamedTuple):
    """The resource usage of a process tree."""

    memory: int
    """Bytes: resident memory that is not shared with files, and anonymous files in memory (memfd)."""
    processes: int


def footprint(pid: int, most: int) -> Footprint:
    """Return the resource usage of a process and its descendants. Counting stops above `most` processes.

    Processes that end meanwhile are not counted. If the kernel does not list children, only the process itself is counted.
    """
    memory, processes, waiting = 0, 0, [pid]
    while waiting and processes <= most:
        home = Path("/proc") / str(waiting.pop())
        try:
            _, resident, shared, *_ = (home / "statm").read_text().split()
            memory += (int(resident) - int(shared)) * _PAGE
            processes += 1
            for thread in (home / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
            memory += sum(_memfd_bytes(file) for file in (home / "fd").iterdir())
        except (OSError, ValueError):
            continue
    return Footprint(memory, processes)


def _memfd_bytes(file: Path) -> int:
    return file.stat().st_blocks * _BLOCK if str(file.readlink()).startswith("/memfd:") else 0


_CHUNK = 1 << 16
_EXIT_WAIT = 5.0
"""Seconds to wait for the kernel to report a process that was killed."""
_WATCH_EVERY = 0.2
"""Seconds between two checks of a child's memory. A child can exceed its limit by about 0.2 s x 1 GB/s before it is stopped."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of a child process and all its descendants."""

    memory: int = 1 << 30
    """Bytes: address space of each process, and resident memory of all of them together."""
    processes: int = 64
    """Concurrent processes."""
    file_size: int = 64 << 20
    """Bytes of any one file."""
    output: int = 2 << 20
    """Bytes of output of one request; a process that prints more is stopped."""

    def as_rlimits(self, *, own_user: bool = False) -> dict[str, int]:
        """Return the limits that the kernel enforces, by their names in the `resource` module.

        The kernel counts processes per user. It can limit them only if the child has its own user or user namespace
        (`own_user`). Otherwise the parent counts them, as it does for memory.
        """
        limits = {"RLIMIT_AS": self.memory, "RLIMIT_FSIZE": self.file_size, "RLIMIT_NOFILE": 256, "RLIMIT_CORE": 0}
        return {**limits, "RLIMIT_NPROC": self.processes} if own_user else limits


class ChildLost(Exception):
    """The process has ended, was stopped by a limit, or broke the protocol; `reason` says which."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason, self.output = reason, output


@dataclass(frozen=True, slots=True)
class ChildReply:
    """The answer to one request."""

    output: str
    """The output of the request on stdout and stderr, including that of child processes."""
    value: dict[str, Any]


class Child:
    """A child process and its process group. Handles one request at a time. The code that starts it must close it."""

    def __init__(self, process: subprocess.Popen[bytes], parent_end: socket.socket, limits: ProcessLimits) -> None:
        self._process, self._socket, self._limits = process, parent_end, limits
        self._cause: str | None = None
        """Why we killed it; None if we did not."""

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        limits: ProcessLimits,
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Start a process that runs `child_main`; it inherits the file descriptors `pass_fds`.

        Raises:
            OSError: the program does not exist or cannot be started.
        """
        parent_end, child_end = socket.socketpair()
        parent_end.setblocking(False)
        with child_end:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=child_end.fileno(),
                    stdout=child_end.fileno(),
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    env=plain_environment() if environment is None else environment,
                    pass_fds=pass_fds,
                )
            except OSError:
                parent_end.close()
                raise
        return cls(process, parent_end, limits)

    async def request(self, payload: Mapping[str, Any], limit: float) -> ChildReply:
        """Send a request and wait for its reply.

        If this raises or is cancelled, the process is killed: a late reply could not be told from the next one.

        Args:
            payload: JSON, in the form that `child_main` expects.
            limit: seconds.

        Raises:
            ChildLost: there is no reply.
        """
        mark = secrets.token_hex(16)  # marks the reply in the output; the code that the child runs cannot guess it
        output = bytearray()
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(limit):
                await self._write(json.dumps({**payload, "mark": mark}).encode() + b"\n")
                return await self._read(mark.encode(), output)
        except TimeoutError:
            await self.close()
            raise ChildLost(f"was stopped after {limit:g} s", _text(output)) from None
        except (OSError, ValueError) as error:
            await self.close()
            raise ChildLost(f"broke the connection: {error}", _text(output)) from None
        except BaseException:
            await self.close()
            raise
        finally:
            watch.cancel()

    async def _write(self, message: bytes) -> None:
        """Send a message. A child that has ended is ignored here: its last output, which is read next, says why."""
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._socket, message)

    async def _receive(self) -> bytes:
        """Return some output; empty when the child has ended, even if it did not read everything that was sent."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, _CHUNK)
        except ConnectionError:
            return b""

    async def _read(self, mark: bytes, output: bytearray) -> ChildReply:
        while (at := output.find(mark)) < 0 or not output.endswith(b"\n"):
            chunk = await self._receive()
            if not chunk:
                raise ChildLost(self._cause or await self._exit_reason(), _text(output))
            output += chunk
            if len(output) > self._limits.output:
                raise ChildLost(f"was stopped: it printed more than {self._limits.output >> 10} KiB", _text(output))
        return ChildReply(_text(output[:at]), json.loads(output[at + len(mark) :]))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            used = footprint(self._process.pid, self._limits.processes)
            if used.memory > self._limits.memory:
                self._cause = f"was stopped: it used more than {self._limits.memory >> 20} MiB of memory"
            elif used.processes > self._limits.processes:
                self._cause = f"was stopped: it had more than {self._limits.processes} processes"
            if self._cause:
                kill_group(self._process.pid)
                return

    async def _exit_reason(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _EXIT_WAIT)
        return describe_exit(self._process.returncode)

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    async def close(self) -> None:
        """Kill the process and its descendants, and wait until it has ended. Idempotent."""
        if self._process.returncode is None:
            kill_group(self._process.pid)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a request that waits for a reply
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _EXIT_WAIT)
        self._socket.close()


def _text(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace")


# --- a pool -----------------------------------------------------------------------------------------------------------

_SOURCE = str(Path(paragent.__file__).parents[1])
_MAIN = (
    "import json, sys; sys.path.insert(0, sys.argv[2]); from paragent.subprocesses.confinement import serve; "
    "serve(json.loads(sys.argv[1]))"
)
_START_LIMIT = 180.0
"""Seconds for a child to start and import the module; importing sympy takes one second on an idle host, and ten times as long
for the first time, when Python compiles it."""


_SECOND_CHILD_AFTER = 0.5
"""Seconds to wait for a busy child before another one is started: about what a start takes. Most calls take milliseconds."""


class CallFailed(Exception):
    """The function raised or was stopped. `kind` is the name of the exception, or `limit` if a limit stopped it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SubprocessPool:
    """Child processes that call functions of one module, one call at a time each, in their main threads.

    Children start on demand, one after the other: several that import the same module at once for the first time would compile
    it several times. They end when the pool is closed, or when this process ends for any reason.

    Args:
        module: the module to import.
        most: the maximum number of children.
        memory: bytes that each child may use.
        start: the function of the module that each child calls once, before other calls; empty: none.
    """

    def __init__(self, module: str, *, most: int = 2, memory: int = 2 << 30, start: str = "") -> None:
        self._module, self._start_function = module, start
        self._limits = ProcessLimits(memory=memory)
        self._most = most
        self._idle: list[Child] = []
        self._busy = 0
        """Children that perform a call."""
        self._freed = asyncio.Event()
        """Set when a call ends: its child is idle, or has ended and can be replaced."""
        self._turn = asyncio.Lock()
        """Held by the one caller that waits for a busy child or starts a new one; the others wait in order."""

    @classmethod
    @asynccontextmanager
    async def running(cls, module: str, *, most: int = 2) -> AsyncIterator[SubprocessPool]:
        """Run a pool as a context manager."""
        pool = cls(module, most=most)
        try:
            yield pool
        finally:
            await pool.close()

    async def call(self, function: str, *arguments: Any, limit: float, folder: Path | None = None) -> Any:
        """Call a function of the module and return its result. Arguments and result must be JSON.

        Waiting for a free child, and starting one, is not the work of the current rollout.

        Args:
            function: its name.
            arguments: its arguments.
            limit: seconds for the call.
            folder: if given, the call can use only files in this folder, besides reading installed software.

        Raises:
            CallFailed: the function raised, exceeded a limit, or ended its process.
            EnvironmentFailed: no child could be started.
        """
        child = await self._take()
        self._busy += 1
        try:
            request = {"target": f"{self._module}:{function}", "arguments": arguments}
            more = {} if folder is None else {"more": [str(folder)]}
            reply = await child.request(request | more, limit)
            self._idle.append(child)
        except ChildLost as lost:
            raise CallFailed("limit", lost.reason) from None
        finally:
            self._busy -= 1
            self._freed.set()
        if not reply.value["ok"]:
            raise CallFailed(reply.value["type"], reply.value["error"])
        return reply.value["value"]

    async def _take(self) -> Child:
        """Return a child without a call, which the caller must use or close before it waits for anything."""
        if self._idle and not self._turn.locked():
            return self._idle.pop()
        with waiting(STARTING_HELPER):
            async with self._turn:
                while not self._idle:
                    if self._busy:
                        self._freed.clear()
                        with contextlib.suppress(TimeoutError):
                            limit = _SECOND_CHILD_AFTER if self._busy < self._most else None
                            await asyncio.wait_for(self._freed.wait(), limit)
                    if not self._idle and self._busy < self._most:
                        return await self._start()
                return self._idle.pop()

    async def _start(self) -> Child:
        settings = {"limits": self._limits.as_rlimits(), "die_with_parent": True}
        child = await Child.start([sys.executable, "-c", _MAIN, json.dumps(settings), _SOURCE], self._limits)
        try:
            reply = await child.request(
                {"target": f"{self._module}:{self._start_function}", "arguments": []}, _START_LIMIT
            )
        except ChildLost as lost:
            raise EnvironmentFailed(f"a child process {lost.reason}: {lost.output[-2000:]}") from None
        if not reply.value["ok"]:
            await child.close()
            raise EnvironmentFailed(f"a child process cannot import {self._module}: {reply.value['error']}")
        return child

    async def close(self) -> None:
        """End the idle children. Busy children end when their calls are cancelled."""
        while self._idle:
            await self._idle.pop().close()
