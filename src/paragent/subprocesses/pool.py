"""A pool of child processes that call the functions of one module."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paragent
from paragent.errors import EnvironmentFailed
from paragent.subprocesses.child import Child, ChildLost, ProcessLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["CallFailed", "SubprocessPool"]

_SOURCE = str(Path(paragent.__file__).parents[1])
_MAIN = (
    "import json, sys; sys.path.insert(0, sys.argv[2]); from paragent.subprocesses.confinement import serve; "
    "serve(json.loads(sys.argv[1]))"
)
_START_LIMIT = 60.0
"""Seconds for a child to start and import the module; importing sympy takes one second on an idle host."""


class CallFailed(Exception):
    """The function raised or was stopped. `kind` is the name of the exception, or `limit` if a limit stopped it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SubprocessPool:
    """Child processes that call functions of one module, one call at a time each, in their main threads.

    Children start on demand. They end when the pool is closed, or when this process ends for any reason.

    Args:
        module: the module to import.
        most: the maximum number of children.
        memory: bytes that each child may use.
        start: the function of the module that each child calls once, before other calls; empty: none.
    """

    def __init__(self, module: str, *, most: int = 2, memory: int = 2 << 30, start: str = "") -> None:
        self._module, self._start_function = module, start
        self._limits = ProcessLimits(memory=memory)
        self._idle: list[Child] = []
        self._free = asyncio.Semaphore(most)

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

        Args:
            function: its name.
            arguments: its arguments.
            limit: seconds for the call. Waiting for a free child, and starting one, does not count.
            folder: if given, the call can use only files in this folder, besides reading installed software.

        Raises:
            CallFailed: the function raised, exceeded a limit, or ended its process.
            EnvironmentFailed: no child could be started.
        """
        async with self._free:
            child = self._idle.pop() if self._idle else await self._start()
            try:
                request = {"target": f"{self._module}:{function}", "arguments": arguments}
                more = {} if folder is None else {"more": [str(folder)]}
                reply = await child.request(request | more, limit)
            except ChildLost as lost:
                raise CallFailed("limit", lost.reason) from None
            self._idle.append(child)
        if not reply.value["ok"]:
            raise CallFailed(reply.value["type"], reply.value["error"])
        return reply.value["value"]

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
