"""`process`: a plain local process that speaks the guest protocol, for tests and for people without virtualization.

It is no sandbox: commands run as the user of the pool, on the pool's host. Each machine has a folder in which its commands
start; a reset ends every process of the machine and makes the folder anew.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, ClassVar

from manyhands._ids import new_id
from manyhands.vms.guest import agent
from manyhands.vms.providers.base import Instance, MachineSettings, Provider
from manyhands.vms.providers.local_processes import LocalProcesses

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from manyhands.vms.ownership import Run

__all__ = ["ProcessProvider"]


class ProcessProvider(Provider):
    """Machines that are processes and folders of this host."""

    default_spares: ClassVar[int] = 1

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        super().__init__(settings, run)
        settings.only("process")
        self._local = LocalProcesses(run)

    async def create(self, machine_id: str) -> Instance:
        instance_id = new_id(machine_id)
        home = self._local.folder(instance_id) / "home"
        home.mkdir(parents=True)
        with socket.create_server((self.settings.host, 0), backlog=128) as listener:
            descriptor, port = listener.fileno(), listener.getsockname()[1]
            command = [sys.executable, "-I", agent.__file__, "--fd", str(descriptor), "--folder", str(home)]
            self._local.start(instance_id, command, [descriptor])
        return Instance(instance_id, self.settings.host, port, details={"pid": str(self._local.pid(instance_id))})

    async def reset(self, instance: Instance) -> Instance:
        await self.stop(instance.id)
        return await self.create(instance.id.partition("-")[0])

    async def stop(self, instance_id: str) -> None:
        await self._local.end(instance_id, whole_mark=True)

    async def list_own(self, runs: Collection[str]) -> list[str]:
        return await self._local.list_own(runs)

    async def close(self) -> None:
        await self._local.close()

    async def alive(self, instance: Instance) -> bool:
        return self._local.alive(instance.id)

    def logs(self, instance_id: str) -> list[Path]:
        return self._local.logs(instance_id)
