"""Other ways to reset a QEMU machine, to compare with: loading a snapshot in the same process, and booting."""

from __future__ import annotations

import shutil

from paragent.errors import MachineFailed
from paragent.machines.providers import Instance
from paragent.machines.providers.base import GUEST_PORT
from paragent.machines.providers.qemu.hardware import Drives
from paragent.machines.providers.qemu.monitor import Monitor
from paragent.machines.providers.qemu.process import Started
from paragent.machines.providers.qemu.provider import QemuProvider, _Clone

__all__ = ["BootEach", "SnapshotLoad"]


class SnapshotLoad(QemuProvider):
    """Saves each machine's memory and disk once, inside its disk, and loads them for every reset."""

    async def wait_until_ready(self, instance: Instance) -> None:
        await super().wait_until_ready(instance)
        if instance.id in self._clones and instance.id not in getattr(self, "_saved", set()):
            self._saved: set[str] = {*getattr(self, "_saved", set()), instance.id}
            await self._command(instance, "savevm clean")

    async def reset(self, instance: Instance) -> Instance:
        await self._command(instance, "loadvm clean")
        await self._clones[instance.id].monitor.execute("cont")
        return instance

    async def _command(self, instance: Instance, line: str) -> None:
        said = await self._clones[instance.id].monitor.execute("human-monitor-command", command_line=line)
        if said:
            raise MachineFailed(f"{line}: {said}")


class BootEach(QemuProvider):
    """Boots every machine from its kernel."""

    async def _clone(self, instance_id: str) -> Instance:
        clone = self._clones[instance_id] = _Clone(Monitor(instance_id))
        started, monitor = Started(self._local, instance_id, self.hardware), clone.monitor
        folder, secret = started.folder, started.make_secret()
        assert self.golden.overlay is not None
        shutil.copyfile(self.golden.overlay, folder / "disk")
        drives = Drives(folder / "ram", True, folder / "disk")
        command = self.hardware.command(drives, monitor.descriptor, incoming=False, secret=started.secret_file)
        await started.start(command, [monitor.descriptor])
        await monitor.connect()
        ports = await started.reachable(await monitor.ports())
        return Instance(instance_id, self.settings.host, ports.pop(GUEST_PORT), ports, secret=secret)
