"""Programs that run once for a result: started with limits on this host or in a sandbox, stopped, and reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paragent._internal.processes import kill_group, plain_environment
from paragent._internal.text import well_formed
from paragent.subprocesses import child_main, program_main
from paragent.subprocesses.bubblewrap import (
    SandboxFiles,
    bubblewrap_command,
    privilege_settings,
)
from paragent.subprocesses.child import ProcessLimits, footprint
from paragent.subprocesses.installations import own_python

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAIN",
    "PROGRAM_LIMITS",
    "STOP_GRACE",
    "Channel",
    "ProgramReport",
    "ProgramSpec",
    "RunningProgram",
    "start_in_sandbox",
    "start_on_host",
]

MAIN = Path(program_main.__file__)
STOP_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
PROGRAM_LIMITS = ProcessLimits(memory=4 << 30, processes=512, file_size=1 << 30, output=256 << 10)
"""A coding agent with a language runtime and its tools needs less."""
_TMP_BYTES = 1 << 30
"""Size of a sandbox's /tmp, which contains the working folder."""
_INSIDE = "/run/paragent"
_REPORT_BYTES = 32 << 20
"""The longest report: three texts, each character of which can take six bytes in JSON."""
_ANSWER_BYTES = 1 << 20
_WATCH_EVERY = 1.0
"""Seconds between two checks of memory and processes."""
_EXIT_WAIT = 10.0
"""Seconds for the report after everything was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """What to run; see `program_main`."""

    command: Sequence[str]
    environment: dict[str, str]
    folder: str
    """The working folder, as the program sees it."""
    stdin: str = ""
    answer: str
    """The path of the answer file, as the program sees it."""
    output: int = PROGRAM_LIMITS.output
    answer_bytes: int = _ANSWER_BYTES
    prefix: Sequence[str] = ()
    remove: str = ""
    forward: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReport:
    """How a program ended."""

    exit_code: int | None
    """Negative for a signal; None if it is not known, because the program was killed from outside."""
    seconds: float = 0.0
    stdout: str = ""
    """At most `ProgramSpec.output` bytes: the beginning and the end."""
    stderr: str = ""
    answer: str | None = None
    """The content of the answer file; None if there is none."""
    cut: bool = False
    """Whether the answer is incomplete: the file, or stdout without a file, was too long."""
    problem: str = ""
    """Why it was stopped by a limit, or could not be started; else empty."""
    killed: bool = False
    """Whether `program_main` ended without a report, and not because of a limit."""


class Channel(Protocol):
    """The connection to `program_main`, wherever it runs. It ends with the process."""

    async def send(self, data: bytes) -> None:
        """Send bytes to its stdin; does nothing if it has ended."""

    async def receive(self) -> bytes:
        """Return the next bytes of its stdout; empty at the end."""

    async def problem(self) -> str:
        """Return why it ended without a report, as text for the user."""

    def overrun(self) -> str | None:
        """Return which limit the program exceeds now; None: none."""

    async def close(self) -> None:
        """End it and everything that it started. Idempotent."""


class RunningProgram:
    """A program that was started. The code that starts it must close it.

    Raises:
        InfrastructureError: (all methods) the connection to the program was lost.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._limit = ""
        self._reading: asyncio.Task[ProgramReport] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, spec: ProgramSpec) -> None:
        """Send what to run."""
        await self._channel.send(json.dumps(asdict(spec)).encode() + b"\n")
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    async def wait(self) -> ProgramReport:
        """Wait until the program has ended. If this is cancelled, the program continues: stop it."""
        assert self._reading is not None
        return await asyncio.shield(self._reading)

    async def stop(self, grace: float = STOP_GRACE) -> ProgramReport:
        """Send SIGTERM, kill everything that is left after `grace` seconds, and return the report."""
        assert self._reading is not None
        await self._channel.send(json.dumps({"stop": grace}).encode() + b"\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + _EXIT_WAIT):
                return await asyncio.shield(self._reading)
        await self._channel.close()
        return ProgramReport(exit_code=None, problem="did not end when it was killed")

    async def close(self) -> None:
        """End the program and everything that it started. Idempotent."""
        for task in (self._watching, self._reading):
            if task is not None:
                task.cancel()
        await self._channel.close()

    async def _read(self) -> ProgramReport:
        received = bytearray()
        while data := await self._channel.receive():
            received += data
            if len(received) > _REPORT_BYTES:
                return ProgramReport(exit_code=None, problem="sent a report that is too long")
        try:
            return self._parsed(json.loads(received))
        except (ValueError, KeyError, TypeError, RecursionError):
            if received and not self._limit:  # `program_main` writes nothing else
                return ProgramReport(exit_code=None, problem="wrote to the channel of the process that runs it")
            problem = self._limit or await self._channel.problem()
            return ProgramReport(exit_code=None, problem=problem, killed=not self._limit)

    def _parsed(self, report: dict[str, Any]) -> ProgramReport:
        if "error" in report:
            return ProgramReport(exit_code=None, problem=f"could not be started: {well_formed(str(report['error']))}")
        answer = report["answer"]
        cut = bool(report.get("answer_cut") if answer is not None else report["stdout_omitted"])
        return ProgramReport(
            exit_code=int(report["exit_code"]),
            seconds=float(report["seconds"]),
            stdout=well_formed(str(report["stdout"])),
            stderr=well_formed(str(report["stderr"])),
            answer=None if answer is None else well_formed(str(answer)),
            cut=cut,
            problem=self._limit,
        )

    async def _watch(self) -> None:
        while not (problem := self._channel.overrun()):
            await asyncio.sleep(_WATCH_EVERY)
        self._limit = problem
        await self._channel.send(json.dumps({"stop": 0}).encode() + b"\n")


class _ProcessChannel:
    """`program_main` as a child process of this one. It ends with this process, and ends everything that it started."""

    def __init__(self, process: asyncio.subprocess.Process, limits: ProcessLimits) -> None:
        self._process, self._limits = process, limits
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr

    @classmethod
    async def start(
        cls, command: Sequence[str], limits: ProcessLimits, pass_fds: Sequence[int] = ()
    ) -> _ProcessChannel:
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=plain_environment(), pass_fds=pass_fds, process_group=0
        )
        return cls(process, limits)

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._stdin.write(data)
            await self._stdin.drain()

    async def receive(self) -> bytes:
        return await self._stdout.read(1 << 16)

    async def problem(self) -> str:
        """Return the end of what was written to stderr: by bubblewrap, or by the interpreter that runs `program_main`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WAIT):
                output = (await self._stderr.read(1 << 16)).decode(errors="replace").strip()
                await self._process.wait()
                return f"was killed from outside. {output[-2000:]}".strip()
        return "was killed from outside"

    def overrun(self) -> str | None:
        used = footprint(self._process.pid, self._limits.processes)
        if used.memory > self._limits.memory:
            return f"was stopped: it used more than {self._limits.memory >> 20} MiB of memory"
        if used.processes > self._limits.processes:
            return f"was stopped: it had more than {self._limits.processes} processes"
        return None

    async def close(self) -> None:
        self._stdin.close()  # program_main ends everything that it started when its stdin ends
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WAIT):
                await self._process.wait()
        if self._process.returncode is None:
            kill_group(self._process.pid)
            await self._process.wait()


async def start_on_host(spec: ProgramSpec, limits: ProcessLimits = PROGRAM_LIMITS) -> RunningProgram:
    """Start a program with the rights of this process, except for limits of memory and processes."""
    channel = await _ProcessChannel.start([sys.executable, "-I", str(MAIN)], limits)
    return await _started(channel, spec)


async def start_in_sandbox(
    spec: ProgramSpec,
    files: SandboxFiles,
    *,
    user: str,
    advice: str,
    socket_path: str = "",
    port: int = 0,
    network: bool = False,
    limits: ProcessLimits = PROGRAM_LIMITS,
) -> RunningProgram:
    """Start a program in a sandbox, where its working folder is below /tmp, which is kept in memory.

    Args:
        spec: the program.
        files: what it sees of this host.
        user: what needs the sandbox, for messages.
        advice: what to do if it cannot be started.
        socket_path: a Unix socket of this host to which connections to `port` of 127.0.0.1 are forwarded; empty: none.
        port: see `socket_path`.
        network: whether it has the network of this host; otherwise it reaches nothing but the socket.
        limits: its limits.

    Raises:
        MissingProgram: bubblewrap is missing or does not work here.
    """
    main, child, gateway = (f"{_INSIDE}/{name}" for name in ("program_main.py", "child_main.py", "gateway.sock"))
    inside = {main: str(MAIN), child: str(Path(child_main.__file__)), **files.inside}
    forward = {}
    if socket_path:
        inside[gateway] = socket_path
        forward = {"port": port, "socket": gateway}
    files = replace(files, inside=inside, readable=[sys.base_prefix, sys.prefix, *files.readable], tmp_bytes=_TMP_BYTES)
    settings = privilege_settings(limits)
    del settings["limits"][
        "RLIMIT_AS"
    ]  # runtimes such as Node reserve much more than they use; the parent watches memory
    prefix = [own_python(), "-I", child, json.dumps(settings)]
    spec = replace(spec, prefix=prefix, forward=forward)
    own = [own_python(), "-I", main]
    wrapped = bubblewrap_command(files, own, user=user, advice=advice, network=network, first=True)
    with wrapped as (command, descriptors):
        channel = await _ProcessChannel.start(command, limits, descriptors)
    return await _started(channel, spec)


async def _started(channel: Channel, spec: ProgramSpec) -> RunningProgram:
    running = RunningProgram(channel)
    try:
        await running.start(spec)
    except BaseException:
        await running.close()
        raise
    return running
