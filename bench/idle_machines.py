"""A provider whose machines use no resources, to measure the pool alone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paragent._internal.ids import new_id
from paragent.machines import Machine
from paragent.machines.providers import Provider

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["HalfSecondReset", "IdleMachines"]

_LISTENER = Path(__file__).parent / "scripts" / "idle_machine.py"


class IdleMachines(Provider):
    """All machines are one listener in another process, which answers every request with success."""

    reset_seconds: ClassVar[float] = 0.0

    async def prepare(self) -> None:
        self._listener = await asyncio.create_subprocess_exec(
            sys.executable, str(_LISTENER), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert self._listener.stdout is not None
        self._port = int(await self._listener.stdout.readline())
        self._alive: set[str] = set()

    async def create(self, machine_id: str) -> Machine:
        machine = Machine(new_id(machine_id), "127.0.0.1", self._port)
        self._alive.add(machine.id)
        return machine

    async def reset(self, machine: Machine) -> Machine:
        await asyncio.sleep(self.reset_seconds)
        return machine

    async def stop(self, machine_id: str) -> None:
        self._alive.discard(machine_id)

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        return sorted(self._alive) if self.owner.id in owners else []

    async def close(self) -> None:
        assert self._listener.stdin is not None
        self._listener.stdin.close()
        await self._listener.wait()


class HalfSecondReset(IdleMachines):
    """As `IdleMachines`, with resets as long as fast resets of desktops."""

    reset_seconds: ClassVar[float] = 0.5
