"""Functions called in helper processes, where they can be killed."""

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

_HOME = str(Path(paragent.__file__).parents[1])
_FAR_SIDE = (
    "import json, sys; sys.path.insert(0, sys.argv[2]); from paragent.subprocesses.confinement import serve; "
    "serve(json.loads(sys.argv[1]))"
)
_START_LIMIT = 60.0
"""Seconds for a helper to start and import what it needs; sympy alone takes one on a quiet machine."""


class CallFailed(Exception):
    """The function raised, or was stopped by a limit. `kind` is the name of the exception, `limit` for a limit."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SubprocessPool:
    """A few processes of one worker that call functions of one module, in their main threads, one at a time each.

    They start when they are first needed and end with this object, or with the worker however it ends.
    """

    def __init__(self, module: str, *, most: int = 2, memory: int = 2 << 30) -> None:
        self._module = module
        self._limits = ProcessLimits(memory=memory)
        self._idle: list[Child] = []
        self._room = asyncio.Semaphore(most)

    @classmethod
    @asynccontextmanager
    async def running(cls, module: str, *, most: int = 2) -> AsyncIterator[SubprocessPool]:
        """Open helpers for the length of a `with`."""
        helpers = cls(module, most=most)
        try:
            yield helpers
        finally:
            await helpers.close()

    async def call(self, function: str, *arguments: Any, limit: float, folder: Path | None = None) -> Any:
        """Return what `function` of the module returns for the arguments; both must be JSON.

        Args:
            function: its name.
            arguments: its arguments.
            limit: seconds; a start of the helper and the wait for a free one do not count.
            folder: the only one whose files the call can use, besides reading installed software; None: no such limit.

        Raises:
            CallFailed: the function raised, took too long, too much memory, or killed its process.
            EnvironmentFailed: no helper starts.
        """
        async with self._room:
            partner = self._idle.pop() if self._idle else await self._start()
            try:
                request = {"target": f"{self._module}:{function}", "arguments": arguments}
                more = {} if folder is None else {"more": [str(folder)]}
                reply = await partner.request(request | more, limit)
            except ChildLost as lost:
                raise CallFailed("limit", lost.reason) from None
            self._idle.append(partner)
        if not reply.value["ok"]:
            raise CallFailed(reply.value["type"], reply.value["error"])
        return reply.value["value"]

    async def _start(self) -> Child:
        settings = {"limits": self._limits.as_rlimits(), "die_with_parent": True}
        partner = await Child.start([sys.executable, "-c", _FAR_SIDE, json.dumps(settings), _HOME], self._limits)
        try:
            reply = await partner.request({"target": f"{self._module}:", "arguments": []}, _START_LIMIT)
        except ChildLost as lost:
            raise EnvironmentFailed(f"a helper process {lost.reason}: {lost.output[-2000:]}") from None
        if not reply.value["ok"]:
            await partner.close()
            raise EnvironmentFailed(f"a helper process cannot import {self._module}: {reply.value['error']}")
        return partner

    async def close(self) -> None:
        """End the helpers that are idle; those at work end with the calls that wait for them."""
        while self._idle:
            await self._idle.pop().close()
