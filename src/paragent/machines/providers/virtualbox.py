"""`virtualbox`: Oracle VirtualBox, by its program `VBoxManage`.

Every machine is a linked clone of `path_to_vm` (a name, an id or a `.vbox` file) at `snapshot_name`, in a group named after the
run. The guest agent is reached through a forwarded port. A reset powers the clone off, restores the snapshot that was taken
when it was made, and starts it.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, ClassVar

from paragent._internal.ids import new_id
from paragent.errors import ConfigError, MachineFailed, UsageError
from paragent.machines.providers.base import GUEST_PORT, Instance, MachineSettings, Provider, Tool

if TYPE_CHECKING:
    from collections.abc import Collection

    from paragent.machines.cleanup import Run

__all__ = ["VirtualBoxProvider"]

_CLEAN = "paragent-clean"
_SECONDS = 120.0
"""For one command; cloning and restoring take some seconds."""
_GROUP = "/paragent"


class VirtualBoxProvider(Provider):
    """Machines of VirtualBox on this host. It has no options."""

    health_seconds: ClassVar[float] = 5.0
    """Each look starts a program."""

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        super().__init__(settings, run)
        settings.only("virtualbox")
        if not settings.path_to_vm:
            raise ConfigError("virtualbox needs path_to_vm: the name, id or .vbox file of the machine to clone")
        self._base = settings.path_to_vm
        self._manage = Tool("VBoxManage")
        self._ports: dict[str, dict[int, int]] = {}

    async def _do(self, *arguments: str) -> str:
        return await self._manage.run(*arguments, timeout=_SECONDS)

    async def prepare(self) -> None:
        if not self.settings.snapshot_name:
            raise UsageError(
                "virtualbox needs snapshot_name: a linked clone is made of a snapshot. "
                f"Take one: VBoxManage snapshot {self._base} take init_state"
            )
        listed = await self._do("snapshot", self._base, "list", "--machinereadable")
        names = re.findall(r'^SnapshotName[-\d]*="(.*)"$', listed, re.MULTILINE)
        if self.settings.snapshot_name not in names:
            raise UsageError(
                f"{self._base} has no snapshot {self.settings.snapshot_name!r}; it has: {', '.join(names)}"
            )

    async def create(self, machine_id: str) -> Instance:
        instance_id = new_id(machine_id)
        group = f"{_GROUP}/{self.run.id}"
        try:
            await self._do(
                *("clonevm", self._base, "--snapshot", str(self.settings.snapshot_name), "--options", "link"),
                *("--name", instance_id, "--groups", group, "--basefolder", str(self.run.folder), "--register"),
            )
            await self._configure(instance_id)
            await self._do("snapshot", instance_id, "take", _CLEAN)
            return await self._start(instance_id)
        except BaseException:
            await self.stop(instance_id)
            raise

    async def _configure(self, instance_id: str) -> None:
        self._ports[instance_id] = {
            port: _free_port(self.settings.host) for port in (GUEST_PORT, *self.settings.forwards)
        }
        words = ["modifyvm", instance_id, "--nic1", "nat"]
        for guest, host in self._ports[instance_id].items():
            words += ["--natpf1", f"port{guest},tcp,{self.settings.host},{host},,{guest}"]
        if self.settings.memory_mib:
            words += ["--memory", str(self.settings.memory_mib)]
        if self.settings.cores:
            words += ["--cpus", str(self.settings.cores)]
        await self._do(*words)

    async def _start(self, instance_id: str) -> Instance:
        await self._do("startvm", instance_id, "--type", "headless" if self.settings.headless else "gui")
        ports = dict(self._ports[instance_id])
        return Instance(instance_id, self.settings.host, ports.pop(GUEST_PORT), ports)

    async def reset(self, instance: Instance) -> Instance:
        if await self.alive(instance):
            await self._do("controlvm", instance.id, "poweroff")
        await self._do("snapshot", instance.id, "restore", _CLEAN)
        return await self._start(instance.id)

    async def alive(self, instance: Instance) -> bool:
        return f'"{instance.id}"' in await self._do("list", "runningvms")

    async def stop(self, instance_id: str) -> None:
        if f'"{instance_id}"' in await self._do("list", "runningvms"):
            await self._do("controlvm", instance_id, "poweroff")
        if f'"{instance_id}"' in await self._do("list", "vms"):
            await self._do("unregistervm", instance_id, "--delete")
        self._ports.pop(instance_id, None)
        if f'"{instance_id}"' in await self._do("list", "vms"):
            raise MachineFailed(f"VirtualBox still has {instance_id}")

    async def list_own(self, runs: Collection[str]) -> list[str]:
        found = []
        for name in re.findall(r'^"(.+)" \{', await self._do("list", "vms"), re.MULTILINE):
            about = await self._do("showvminfo", name, "--machinereadable")
            groups = re.search(r'^groups="(.*)"$', about, re.MULTILINE)
            if groups and any(groups[1] == f"{_GROUP}/{run}" for run in runs):
                found.append(name)
        return sorted(found)


def _free_port(host: str) -> int:
    """VirtualBox cannot choose a port by itself. Should somebody take it before the machine starts, `startvm` fails, the
    machine is quarantined and the next one gets another port."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
