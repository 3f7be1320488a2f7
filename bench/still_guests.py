"""A provider whose machines cost nothing: what is measured with it is the pool alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, ClassVar

from manyhands._ids import new_id
from manyhands.vms.providers import Instance, Provider

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["HalfSecondReset", "StillGuests"]

_BODY = json.dumps({"holder": None, "marker": False, "status": "success", "output": "", "returncode": 0}).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_BODY), _BODY)


class StillGuests(Provider):
    """Every guest is the same listener on the pool's own loop, which answers yes to everything."""

    reset_seconds: ClassVar[float] = 0.0

    async def prepare(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]
        self._alive: set[str] = set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # whoever asked did not want to wait
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_ANSWER)
        writer.close()

    async def create(self, machine_id: str) -> Instance:
        instance = Instance(new_id(machine_id), "127.0.0.1", self._port)
        self._alive.add(instance.id)
        return instance

    async def reset(self, instance: Instance) -> Instance:
        await asyncio.sleep(self.reset_seconds)
        return instance

    async def stop(self, instance_id: str) -> None:
        self._alive.discard(instance_id)

    async def list_own(self, runs: Collection[str]) -> list[str]:
        return sorted(self._alive) if self.run.id in runs else []

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


class HalfSecondReset(StillGuests):
    """A reset takes as long as a quick one of a desktop."""

    reset_seconds: ClassVar[float] = 0.5
