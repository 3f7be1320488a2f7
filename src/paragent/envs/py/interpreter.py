"""A Python interpreter that keeps its variables from cell to cell, until it dies; then a new one takes over."""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paragent.errors import EnvironmentFailed
from paragent.subprocesses import ChildLost, child_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.subprocesses import Child, ProcessLimits

__all__ = ["GRACE", "Execution", "Interpreter", "LocalInterpreter", "MachineInterpreter", "MachineShell"]


GRACE = 2.0
"""Seconds between the soft limit, which keeps the variables, and the hard one, which does not."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How a cell ended."""

    output: str
    error: str = ""
    """Empty if it ended well; else a traceback, or why the interpreter is gone."""
    lost: bool = False
    """Whether the interpreter is gone, and all variables with it."""


class Interpreter(Protocol):
    """What the environment needs of an interpreter, wherever it runs."""

    async def run(self, code: str, limit: float) -> Execution:
        """Run a cell for at most `limit` seconds.

        Raises:
            InfrastructureError: no interpreter can be had.
        """

    async def close(self) -> None:
        """End it; more calls do nothing."""


class LocalInterpreter:
    """An interpreter on this computer, in a process of its own that starts with the first cell."""

    def __init__(self, start: Callable[[ProcessLimits], Awaitable[Child]], limits: ProcessLimits) -> None:
        self._start, self._limits = start, limits
        self._partner: Child | None = None

    async def run(self, code: str, limit: float) -> Execution:
        partner, self._partner = self._partner, None
        if partner is None or not partner.alive:
            partner = await self._start(self._limits)
        try:
            reply = await partner.request({"code": code, "limit": limit}, limit + GRACE)
            ended = Execution(reply.output, "" if reply.value["ok"] else str(reply.value["error"]))
        except ChildLost as lost:
            return Execution(lost.output, f"the interpreter {lost.reason}", lost=True)
        except (KeyError, TypeError):
            await partner.close()
            return Execution("", "the interpreter broke its own protocol and was stopped", lost=True)
        self._partner = partner
        return ended

    async def close(self) -> None:
        """End the process."""
        partner, self._partner = self._partner, None
        if partner is not None:
            await partner.close()


_TRAVEL = 20.0
"""Seconds for a command to reach a machine that is slow to answer, beyond the time that the cell may take."""
_STEP = 0.1
"""Seconds between two looks for the reply."""


class MachineShell(Protocol):
    """What is asked of a machine; `paragent.machines.Machine` has it."""

    async def aput_file(self, path: str, data: bytes) -> None:
        """Write a file in the guest."""

    async def aexecute(self, command: str, *, timeout: float) -> Any:
        """Run a shell command; the result has `output`, `error` and `returncode`."""


class MachineInterpreter:
    """Keeps one interpreter on a machine, which is borrowed."""

    def __init__(self, machine: MachineShell, limits: ProcessLimits) -> None:
        self._machine, self._limits = machine, limits
        self._folder = f"/tmp/paragent-{secrets.token_hex(8)}"  # noqa: S108 - the machine's own, with a name nobody guesses
        self._running = False

    async def run(self, code: str, limit: float) -> Execution:
        if not self._running:
            await self._start()
        mark = secrets.token_hex(16)
        request = json.dumps({"code": code, "limit": limit, "mark": mark})
        await self._machine.aput_file(f"{self._folder}/request", f"{request}\n".encode())
        turns = int((limit + GRACE) / _STEP)
        waited = await self._shell(
            f": > out; cat request > in; i=0; "
            f"while [ $i -lt {turns} ] && ! grep -q {mark} out && kill -0 $(cat pid) 2>/dev/null; "
            f"do sleep {_STEP}; i=$((i+1)); done; head -c {self._limits.output} out",
            limit + GRACE,
        )
        output, found, reply = waited.output.partition(mark)
        try:
            value = json.loads(reply)
            return Execution(output, "" if value["ok"] else str(value["error"]))
        except (ValueError, KeyError, TypeError):
            await self.close()
            reason = "broke its own protocol" if found else "ended, or was stopped by a limit"
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
            problem = started.error or started.output or "it has no python3; the image `tiny` has"
            raise EnvironmentFailed(f"the machine cannot run Python: {problem}")
        self._running = True

    async def _shell(self, command: str, limit: float) -> Any:
        return await self._machine.aexecute(f"cd {self._folder} && {command}", timeout=limit + _TRAVEL)

    async def close(self) -> None:
        """End the interpreter and all in its process group, and remove its files."""
        if self._running:
            self._running = False
            await self._shell(f"kill -9 -$(cat pid) 2>/dev/null; rm -rf {self._folder}", 10.0)
