"""`vmware`: machines of VMware Workstation, Player or Fusion, controlled with the program `vmrun`.

Every machine is a linked clone of `path_to_vm` (a `.vmx` file) at `snapshot_name`, in a folder of the owner. A reset reverts the
clone to the snapshot that was taken after it was cloned. Every step waits for `vmrun` to end; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paragent._internal.ids import new_id
from paragent.errors import ConfigError, MachineFailed, UsageError
from paragent.machines.machine import Machine
from paragent.machines.providers.base import AGENT_PORT, CommandLineTool, MachineSettings, Provider, check_file

if TYPE_CHECKING:
    from collections.abc import Collection

    from paragent.machines.cleanup import Owner

__all__ = ["VmwareProvider"]

_CLEAN_SNAPSHOT = "paragent-clean"
_SECONDS = 120.0
"""For one command; cloning and reverting take some seconds."""


class VmwareProvider(Provider):
    """Machines of VMware on this host.

    Options: `host_type` (`ws`, `player` or `fusion`; default `ws`), `port` (of the guest agent; default 5000).
    """

    health_check_seconds: ClassVar[float] = 5.0
    """Each check starts a program."""

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        super().__init__(settings, owner)
        settings.check_options("vmware", "host_type", "port")
        if not settings.path_to_vm:
            raise ConfigError("vmware needs path_to_vm (--path-to-vm): the .vmx file of the machine to clone")
        self._base = Path(settings.path_to_vm)
        self._vmrun = CommandLineTool("vmrun")
        self._type = str(settings.options.get("host_type", "ws"))
        self._port = int(settings.options.get("port", AGENT_PORT))

    async def _do(self, command: str, *arguments: str, timeout: float = _SECONDS) -> str:
        return await self._vmrun.run("-T", self._type, command, *arguments, timeout=timeout)

    @classmethod
    def check_image(cls, settings: MachineSettings) -> None:
        check_file(settings.path_to_vm)

    async def prepare(self) -> None:
        self.check_image(self.settings)
        wanted = self.settings.snapshot_name
        names = (await self._do("listSnapshots", str(self._base))).splitlines()[1:]
        if wanted and wanted not in [name.strip() for name in names]:
            raise UsageError(f"{self._base} has no snapshot {wanted!r}; snapshots: {', '.join(names) or 'none'}")

    async def create(self, machine_id: str) -> Machine:
        name = new_id(machine_id)
        target = self._path(name)
        snapshot = [f"-snapshot={self.settings.snapshot_name}"] if self.settings.snapshot_name else []
        try:
            await self._do("clone", str(self._base), str(target), "linked", *snapshot, f"-cloneName={name}")
            await self._do("snapshot", str(target), _CLEAN_SNAPSHOT)
            return await self._start(name)
        except BaseException:
            await self.stop(name)
            raise

    async def _start(self, machine_id: str) -> Machine:
        path = str(self._path(machine_id))
        await self._do("start", path, "nogui" if self.settings.headless else "gui")
        address = await self._do("getGuestIPAddress", path, "-wait", timeout=self.settings.boot_seconds)
        ports = {port: port for port in self.settings.forwards}
        return Machine(machine_id, address.strip(), self._port, ports=ports)

    async def reset(self, machine: Machine) -> Machine:
        path = str(self._path(machine.id))
        await self._do("revertToSnapshot", path, _CLEAN_SNAPSHOT)
        return await self._start(machine.id)

    async def alive(self, machine: Machine) -> bool:
        return str(self._path(machine.id)) in await self._running()

    async def stop(self, machine_id: str) -> None:
        path = self._path(machine_id)
        if str(path) in await self._running():
            await self._do("stop", str(path), "hard")
        if path.exists():
            await self._do("deleteVM", str(path))
        await asyncio.to_thread(shutil.rmtree, path.parent, True)
        if path.exists():
            raise MachineFailed(f"{path} still exists")

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        """Return the clones in the folders of these owners; there are no clones elsewhere."""
        home = self.owner.folder.parent
        return sorted(path.stem for owner in owners for path in (home / owner).glob("*/*.vmx"))

    async def _running(self) -> list[str]:
        return [line.strip() for line in (await self._do("list")).splitlines()[1:]]

    def _path(self, machine_id: str) -> Path:
        """Return the path of a clone; leftovers belong to other owners, whose folders are next to ours."""
        for folder in self.owner.folder.parent.iterdir():
            if (folder / machine_id).is_dir():
                return folder / machine_id / f"{machine_id}.vmx"
        return self.owner.folder / machine_id / f"{machine_id}.vmx"
