"""`virtualbox`: machines of Oracle VirtualBox, controlled with the program `VBoxManage`.

Every machine is a linked clone of `path_to_vm` (a name, an id or a `.vbox` file) at `snapshot_name`, in a group named after the
owner. The guest agent is reached through a forwarded port. A reset powers the clone off, restores the snapshot that was taken
after it was cloned, and starts it.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, ClassVar

from paragent._internal.ids import new_id
from paragent.errors import ConfigError, MachineFailed, UsageError
from paragent.machines.machine import Machine
from paragent.machines.providers.base import AGENT_PORT, CommandLineTool, MachineSettings, Provider

if TYPE_CHECKING:
    from collections.abc import Collection

    from paragent.machines.cleanup import Owner

__all__ = ["VirtualBoxProvider"]

_CLEAN_SNAPSHOT = "paragent-clean"
_SECONDS = 120.0
"""For one command; cloning and restoring take some seconds."""
_GROUP = "/paragent"


class VirtualBoxProvider(Provider):
    """Machines of VirtualBox on this host. There are no options."""

    health_check_seconds: ClassVar[float] = 5.0
    """Each check starts a program."""

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        super().__init__(settings, owner)
        settings.check_options("virtualbox")
        if not settings.path_to_vm:
            raise ConfigError(
                "virtualbox needs path_to_vm (--path-to-vm): the name, id or .vbox file of the machine to clone"
            )
        self._base = settings.path_to_vm
        self._manage = CommandLineTool("VBoxManage")
        self._ports: dict[str, dict[int, int]] = {}

    async def _do(self, *arguments: str) -> str:
        return await self._manage.run(*arguments, timeout=_SECONDS)

    async def prepare(self) -> None:
        if not self.settings.snapshot_name:
            raise UsageError(
                "virtualbox needs snapshot_name (--snapshot-name), because a linked clone needs a snapshot. "
                f"Take one with: VBoxManage snapshot {self._base} take init_state"
            )
        listed = await self._do("snapshot", self._base, "list", "--machinereadable")
        names = re.findall(r'^SnapshotName[-\d]*="(.*)"$', listed, re.MULTILINE)
        if self.settings.snapshot_name not in names:
            raise UsageError(
                f"{self._base} has no snapshot {self.settings.snapshot_name!r}; snapshots: {', '.join(names)}"
            )

    async def create(self, machine_id: str) -> Machine:
        name = new_id(machine_id)
        group = f"{_GROUP}/{self.owner.id}"
        try:
            await self._do(
                *("clonevm", self._base, "--snapshot", str(self.settings.snapshot_name), "--options", "link"),
                *("--name", name, "--groups", group, "--basefolder", str(self.owner.folder), "--register"),
            )
            await self._configure(name)
            await self._do("snapshot", name, "take", _CLEAN_SNAPSHOT)
            return await self._start(name)
        except BaseException:
            await self.stop(name)
            raise

    async def _configure(self, machine_id: str) -> None:
        self._ports[machine_id] = {
            port: _free_port(self.settings.host) for port in (AGENT_PORT, *self.settings.forwards)
        }
        words = ["modifyvm", machine_id, "--nic1", "nat"]
        for inside, outside in self._ports[machine_id].items():
            words += ["--natpf1", f"port{inside},tcp,{self.settings.host},{outside},,{inside}"]
        if self.settings.memory_mib:
            words += ["--memory", str(self.settings.memory_mib)]
        if self.settings.cores:
            words += ["--cpus", str(self.settings.cores)]
        await self._do(*words)

    async def _start(self, machine_id: str) -> Machine:
        await self._do("startvm", machine_id, "--type", "headless" if self.settings.headless else "gui")
        ports = dict(self._ports[machine_id])
        return Machine(machine_id, self.settings.host, ports.pop(AGENT_PORT), ports=ports)

    async def reset(self, machine: Machine) -> Machine:
        if await self.alive(machine):
            await self._do("controlvm", machine.id, "poweroff")
        await self._do("snapshot", machine.id, "restore", _CLEAN_SNAPSHOT)
        return await self._start(machine.id)

    async def alive(self, machine: Machine) -> bool:
        return f'"{machine.id}"' in await self._do("list", "runningvms")

    async def stop(self, machine_id: str) -> None:
        if f'"{machine_id}"' in await self._do("list", "runningvms"):
            await self._do("controlvm", machine_id, "poweroff")
        if f'"{machine_id}"' in await self._do("list", "vms"):
            await self._do("unregistervm", machine_id, "--delete")
        self._ports.pop(machine_id, None)
        if f'"{machine_id}"' in await self._do("list", "vms"):
            raise MachineFailed(f"VirtualBox still has {machine_id}")

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        found = []
        for name in re.findall(r'^"(.+)" \{', await self._do("list", "vms"), re.MULTILINE):
            about = await self._do("showvminfo", name, "--machinereadable")
            groups = re.search(r'^groups="(.*)"$', about, re.MULTILINE)
            if groups and any(groups[1] == f"{_GROUP}/{owner}" for owner in owners):
                found.append(name)
        return sorted(found)


def _free_port(host: str) -> int:
    """Return a free port, because VirtualBox cannot choose one itself.

    If another process takes it before the machine starts, `startvm` fails, the machine is quarantined, and the next one gets
    another port.
    """
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
