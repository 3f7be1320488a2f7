"""Other ways to reset a QEMU machine, to compare with: loading a snapshot in the same process, and booting."""

from __future__ import annotations

import shutil

from paragent.errors import MachineFailed
from paragent.machines import Machine
from paragent.machines.providers.base import AGENT_PORT
from paragent.machines.providers.qemu import Clone, QemuProvider
from paragent.machines.providers.qemu.hardware import MachineFiles
from paragent.machines.providers.qemu.process import Monitor, QemuProcess

__all__ = ["BootEach", "SnapshotLoad"]


class SnapshotLoad(QemuProvider):
    """Saves each machine's memory and disk once, inside its disk, and loads them for every reset."""

    async def wait_until_ready(self, machine: Machine) -> None:
        await super().wait_until_ready(machine)
        if machine.id in self._clones and machine.id not in getattr(self, "_saved", set()):
            self._saved: set[str] = {*getattr(self, "_saved", set()), machine.id}
            await self._command(machine, "savevm clean")

    async def reset(self, machine: Machine) -> Machine:
        await self._command(machine, "loadvm clean")
        await self._clones[machine.id].monitor.execute("cont")
        return machine

    async def _command(self, machine: Machine, line: str) -> None:
        said = await self._clones[machine.id].monitor.execute("human-monitor-command", command_line=line)
        if said:
            raise MachineFailed(f"{line}: {said}")


class BootEach(QemuProvider):
    """Boots every machine from its kernel."""

    async def start_clone(self, name: str) -> Machine:
        clone = self._clones[name] = Clone(Monitor(name))
        process, monitor = QemuProcess(self._local, name, self.hardware), clone.monitor
        folder, secret = process.folder, process.create_secret()
        assert self.golden.overlay is not None
        shutil.copyfile(self.golden.overlay, folder / "disk")
        files = MachineFiles(folder / "ram", True, folder / "disk")
        command = self.hardware.command(files, monitor.descriptor, incoming=False, secret=process.secret_file)
        await process.start(command, [monitor.descriptor])
        await monitor.connect()
        ports = await process.reachable_ports(await monitor.ports())
        return Machine(name, self.settings.host, ports.pop(AGENT_PORT), secret, ports)
