"""One process at the other end of a socket that answers requests, seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from paragent._internal.processes import describe_exit, kill_group, plain_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Child", "ChildLost", "ChildReply", "Footprint", "ProcessLimits", "footprint"]


_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 512
"""Bytes of `st_blocks`, whatever the file system's own blocks are."""


class Footprint(NamedTuple):
    """What a tree of processes uses."""

    memory: int
    """Bytes: resident memory that is not shared with files, and files in memory that have no name."""
    processes: int


def footprint(pid: int, most: int) -> Footprint:
    """Return what a process and its descendants use; counting stops above `most` processes.

    Processes that end meanwhile count as nothing. Where the kernel does not list children, only the process itself counts.
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
            memory += sum(_nameless(file) for file in (home / "fd").iterdir())
        except (OSError, ValueError):
            continue
    return Footprint(memory, processes)


def _nameless(file: Path) -> int:
    return file.stat().st_blocks * _BLOCK if str(file.readlink()).startswith("/memfd:") else 0


_CHUNK = 1 << 16
_EXIT_WAIT = 5.0
"""Seconds to wait for the kernel to report a process that was killed."""
_WATCH_EVERY = 0.2
"""Seconds between two looks at the memory of a partner that works; it can take about 0.2 s x 1 GB/s more than its limit."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a partner and all that it starts may use."""

    memory: int = 1 << 30
    """Bytes: of address space for each process, and of resident memory for all of them together."""
    processes: int = 64
    """Processes at a time."""
    file_size: int = 64 << 20
    """Bytes of any one file."""
    output: int = 2 << 20
    """Bytes of output of one request; who prints more is stopped."""

    def as_rlimits(self, *, own_user: bool = False) -> dict[str, int]:
        """Return the part of it that the kernel keeps, by the names of the `resource` module.

        The kernel counts processes by user, so it can limit them only where they have a user, or a user namespace, of
        their own; elsewhere they are counted from outside, as memory is.
        """
        limits = {"RLIMIT_AS": self.memory, "RLIMIT_FSIZE": self.file_size, "RLIMIT_NOFILE": 256, "RLIMIT_CORE": 0}
        return {**limits, "RLIMIT_NPROC": self.processes} if own_user else limits


class ChildLost(Exception):
    """The process is gone: it ended, was killed by a limit, or broke the protocol. `reason` says how."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason, self.output = reason, output


@dataclass(frozen=True, slots=True)
class ChildReply:
    """The answer to one request."""

    output: str
    """What was printed meanwhile, errors and the output of children among it."""
    value: dict[str, Any]


class Child:
    """Owns one process and its group; one request at a time. Whoever starts it closes it."""

    def __init__(self, process: subprocess.Popen[bytes], near: socket.socket, limits: ProcessLimits) -> None:
        self._process, self._near, self._limits = process, near, limits
        self._cause: str | None = None
        """Why it was killed, if it was by us."""

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        limits: ProcessLimits,
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Start a process that speaks the protocol of `child_main`; it inherits the file descriptors `pass_fds`.

        Raises:
            OSError: the program does not exist or cannot be started.
        """
        near, far = socket.socketpair()
        near.setblocking(False)
        with far:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=far.fileno(),
                    stdout=far.fileno(),
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    env=plain_environment() if environment is None else environment,
                    pass_fds=pass_fds,
                )
            except OSError:
                near.close()
                raise
        return cls(process, near, limits)

    async def request(self, payload: Mapping[str, Any], limit: float) -> ChildReply:
        """Send a request and wait for its reply.

        The process is killed when this raises or is cancelled: nobody could tell a late reply from the next one.

        Args:
            payload: JSON; what it may hold is the far side's business.
            limit: seconds.

        Raises:
            ChildLost: there is no reply, for whatever reason.
        """
        mark = secrets.token_hex(16)
        said = bytearray()
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(limit):
                await self._write(json.dumps({**payload, "mark": mark}).encode() + b"\n")
                return await self._read(mark.encode(), said)
        except TimeoutError:
            await self.close()
            raise ChildLost(f"was stopped after {limit:g} s", _text(said)) from None
        except (OSError, ValueError) as error:
            await self.close()
            raise ChildLost(f"broke the connection: {error}", _text(said)) from None
        except BaseException:
            await self.close()
            raise
        finally:
            watch.cancel()

    async def _write(self, message: bytes) -> None:
        """Send a message; to one who has ended nothing, as what it said before then tells why."""
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._near, message)

    async def _receive(self) -> bytes:
        """Return some of what it says; nothing after its end, also where it ended without reading all that it was sent."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._near, _CHUNK)
        except ConnectionError:
            return b""

    async def _read(self, mark: bytes, said: bytearray) -> ChildReply:
        while (at := said.find(mark)) < 0 or not said.endswith(b"\n"):
            chunk = await self._receive()
            if not chunk:
                raise ChildLost(self._cause or await self._ending(), _text(said))
            said += chunk
            if len(said) > self._limits.output:
                raise ChildLost(f"was stopped: it printed more than {self._limits.output >> 10} KiB", _text(said))
        return ChildReply(_text(said[:at]), json.loads(said[at + len(mark) :]))

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

    async def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _EXIT_WAIT)
        return describe_exit(self._process.returncode)

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as is known."""
        return self._process.poll() is None

    async def close(self) -> None:
        """Kill the process and all that it started, and wait until it is gone; more calls do nothing."""
        if self._process.returncode is None:
            kill_group(self._process.pid)
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer sees its end
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _EXIT_WAIT)
        self._near.close()


def _text(said: bytes | bytearray) -> str:
    return said.decode("utf-8", "replace")
