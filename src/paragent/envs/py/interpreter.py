"""Python interpreters that keep variables between cells. An interpreter that is lost is replaced at the next cell."""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paragent.errors import EnvironmentFailed
from paragent.execution import STARTING_HELPER, waiting
from paragent.subprocesses import ChildLost, child_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.subprocesses import Child, ProcessLimits

__all__ = ["Execution", "Interpreter", "LocalInterpreter", "MachineInterpreter", "MachineShell"]

_GRACE = 2.0
"""Seconds between the soft time limit, which keeps the variables, and the hard limit, which kills the interpreter."""
_OVERHEAD = 20.0
"""Seconds that a command may take in addition to the cell, for slow machines."""
_POLL_INTERVAL = 0.1
"""Seconds between two checks for the reply."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a cell."""

    output: str
    error: str = ""
    """Empty if the cell succeeded; otherwise a traceback, or why the interpreter was lost."""
    lost: bool = False
    """Whether the interpreter and its variables were lost."""


class Interpreter(Protocol):
    """An interpreter as the environment uses it."""

    async def run(self, code: str, limit: float) -> Execution:
        """Run a cell for at most `limit` seconds.

        Raises:
            InfrastructureError: no interpreter could be started.
        """

    async def close(self) -> None:
        """End it. Idempotent."""


class LocalInterpreter:
    """An interpreter in a child process on this host, started with the first cell."""

    def __init__(self, start: Callable[[ProcessLimits], Awaitable[Child]], limits: ProcessLimits) -> None:
        self._start, self._limits = start, limits
        self._child: Child | None = None

    async def run(self, code: str, limit: float) -> Execution:
        child, self._child = self._child, None
        if child is None or not child.alive:
            with waiting(STARTING_HELPER):
                child = await self._start(self._limits)
        try:
            reply = await child.request({"code": code, "limit": limit}, limit + _GRACE)
            ended = Execution(reply.output, "" if reply.value["ok"] else str(reply.value["error"]))
        except ChildLost as lost:
            return Execution(lost.output, f"the interpreter {lost.reason}", lost=True)
        except (KeyError, TypeError):
            await child.close()
            return Execution("", "the interpreter sent a malformed reply and was stopped", lost=True)
        self._child = child
        return ended

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.close()


class MachineShell(Protocol):
    """The methods of `paragent.Machine` that are used here."""

    async def aput_file(self, path: str, data: bytes) -> None:
        """Write a file on the machine."""

    async def aexecute(self, command: str, *, timeout: float) -> Any:
        """Run a shell command; the result has `output`, `error` and `returncode`."""


class MachineInterpreter:
    """An interpreter on a leased machine. The machine is borrowed."""

    def __init__(self, machine: MachineShell, limits: ProcessLimits) -> None:
        self._machine, self._limits = machine, limits
        self._folder = f"/tmp/paragent-{secrets.token_hex(8)}"  # noqa: S108 - on the machine, with a random name
        self._running = False

    async def run(self, code: str, limit: float) -> Execution:
        if not self._running:
            await self._start()
        mark = secrets.token_hex(16)
        request = json.dumps({"code": code, "limit": limit, "mark": mark})
        await self._machine.aput_file(f"{self._folder}/request", f"{request}\n".encode())
        turns = int((limit + _GRACE) / _POLL_INTERVAL)
        waited = await self._shell(
            f": > out; cat request > in; i=0; "
            f"while [ $i -lt {turns} ] && ! grep -q {mark} out && kill -0 $(cat pid) 2>/dev/null; "
            f"do sleep {_POLL_INTERVAL}; i=$((i+1)); done; head -c {self._limits.output} out",
            limit + _GRACE,
        )
        output, found, reply = waited.output.partition(mark)
        try:
            value = json.loads(reply)
            return Execution(output, "" if value["ok"] else str(value["error"]))
        except (ValueError, KeyError, TypeError):
            await self.close()
            reason = "sent a malformed reply" if found else "ended or was stopped by a limit"
            return Execution(output, f"the interpreter {reason}", lost=True)

    async def _start(self) -> None:
        await self._machine.aput_file(f"{self._folder}/child_main.py", Path(child_main.__file__).read_bytes())
        settings = shlex.quote(json.dumps({"limits": self._limits.as_rlimits()}))
        started = await self._shell(
            f"command -v python3 >/dev/null && rm -f in && mkfifo in && : > out && "
            f"{{ setsid python3 -I child_main.py {settings} <> in >> out 2>&1 & echo $! > pid; }}",
            10.0,
        )
        if started.returncode != 0:
            problem = started.error or started.output or "python3 is not installed (the image `tiny` has it)"
            raise EnvironmentFailed(f"the machine cannot run Python: {problem}")
        self._running = True

    async def _shell(self, command: str, limit: float) -> Any:
        return await self._machine.aexecute(f"cd {self._folder} && {command}", timeout=limit + _OVERHEAD)

    async def close(self) -> None:
        """End the interpreter and all in its process group, and remove its files."""
        if self._running:
            self._running = False
            await self._shell(f"kill -9 -$(cat pid) 2>/dev/null; rm -rf {self._folder}", 10.0)
