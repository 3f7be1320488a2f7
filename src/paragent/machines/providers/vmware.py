"""`vmware`: VMware Workstation, Player or Fusion, by its program `vmrun`.

Every machine is a linked clone of `path_to_vm` (a `.vmx` file) at `snapshot_name`, in a folder of the run. A reset reverts the
clone to the snapshot that was taken when it was made. Every step waits for `vmrun` to end; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paragent._internal.ids import new_id
from paragent.errors import ConfigError, MachineFailed, UsageError
from paragent.machines.providers.base import GUEST_PORT, Instance, MachineSettings, Provider, Tool

if TYPE_CHECKING:
    from collections.abc import Collection

    from paragent.machines.cleanup import Run

__all__ = ["VmwareProvider"]

_CLEAN = "paragent-clean"
_SECONDS = 120.0
"""For one command; cloning and reverting take some seconds."""


class VmwareProvider(Provider):
    """Machines of VMware on this host.

    Options: `host_type` (`ws`, `player` or `fusion`; default `ws`), `port` (of the guest agent; default 5000).
    """

    health_seconds: ClassVar[float] = 5.0
    """Each look starts a program."""

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        super().__init__(settings, run)
        settings.only("vmware", "host_type", "port")
        if not settings.path_to_vm:
            raise ConfigError("vmware needs path_to_vm: the .vmx file of the machine to clone")
        self._base = Path(settings.path_to_vm)
        self._vmrun = Tool("vmrun")
        self._type = str(settings.options.get("host_type", "ws"))
        self._port = int(settings.options.get("port", GUEST_PORT))

    async def _do(self, command: str, *arguments: str, timeout: float = _SECONDS) -> str:
        return await self._vmrun.run("-T", self._type, command, *arguments, timeout=timeout)

    async def prepare(self) -> None:
        if not self._base.is_file():
            raise UsageError(f"path_to_vm={str(self._base)!r} is no file")
        wanted = self.settings.snapshot_name
        names = (await self._do("listSnapshots", str(self._base))).splitlines()[1:]
        if wanted and wanted not in [name.strip() for name in names]:
            raise UsageError(f"{self._base} has no snapshot {wanted!r}; it has: {', '.join(names) or 'none'}")

    async def create(self, machine_id: str) -> Instance:
        instance_id = new_id(machine_id)
        target = self._path(instance_id)
        snapshot = [f"-snapshot={self.settings.snapshot_name}"] if self.settings.snapshot_name else []
        try:
            await self._do("clone", str(self._base), str(target), "linked", *snapshot, f"-cloneName={instance_id}")
            await self._do("snapshot", str(target), _CLEAN)
            return await self._start(instance_id)
        except BaseException:
            await self.stop(instance_id)
            raise

    async def _start(self, instance_id: str) -> Instance:
        path = str(self._path(instance_id))
        await self._do("start", path, "nogui" if self.settings.headless else "gui")
        address = await self._do("getGuestIPAddress", path, "-wait", timeout=self.settings.boot_seconds)
        return Instance(instance_id, address.strip(), self._port, {port: port for port in self.settings.forwards})

    async def reset(self, instance: Instance) -> Instance:
        path = str(self._path(instance.id))
        await self._do("revertToSnapshot", path, _CLEAN)
        return await self._start(instance.id)

    async def alive(self, instance: Instance) -> bool:
        return str(self._path(instance.id)) in await self._running()

    async def stop(self, instance_id: str) -> None:
        path = self._path(instance_id)
        if str(path) in await self._running():
            await self._do("stop", str(path), "hard")
        if path.exists():
            await self._do("deleteVM", str(path))
        await asyncio.to_thread(shutil.rmtree, path.parent, True)
        if path.exists():
            raise MachineFailed(f"{path} is still there")

    async def list_own(self, runs: Collection[str]) -> list[str]:
        """The folder of a run is the mark: clones are nowhere else."""
        home = self.run.folder.parent
        return sorted(path.stem for run in runs for path in (home / run).glob("*/*.vmx"))

    async def _running(self) -> list[str]:
        return [line.strip() for line in (await self._do("list")).splitlines()[1:]]

    def _path(self, instance_id: str) -> Path:
        """Leftovers are of another run, whose folder is beside ours."""
        for folder in self.run.folder.parent.iterdir():
            if (folder / instance_id).is_dir():
                return folder / instance_id / f"{instance_id}.vmx"
        return self.run.folder / instance_id / f"{instance_id}.vmx"
