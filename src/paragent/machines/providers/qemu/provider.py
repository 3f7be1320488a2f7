"""The provider: every machine is a clone of the golden state, and a reset throws one away and loads another."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paragent._internal.ids import new_id
from paragent.errors import ConfigError, MachineFailed, UsageError
from paragent.machines.cleanup import cache_folder, find_program
from paragent.machines.images import images
from paragent.machines.images.desktop import desktop_image
from paragent.machines.images.tiny import tiny_image
from paragent.machines.providers.base import GUEST_PORT, Instance, MachineSettings, Provider
from paragent.machines.providers.local_processes import LocalProcesses
from paragent.machines.providers.qemu.golden import Golden, make_golden
from paragent.machines.providers.qemu.hardware import Drives, Hardware, kvm_works, qemu_program
from paragent.machines.providers.qemu.monitor import Monitor
from paragent.machines.providers.qemu.network import Namespace
from paragent.machines.providers.qemu.process import Screen, Started

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import IO

    from paragent.machines.cleanup import Run
    from paragent.machines.images import Image

__all__ = ["QemuProvider"]

_log = logging.getLogger("paragent.machines")

_DISK_MIB = 4096
"""What OSWorld's own container gives its guest."""
_BUILT_HERE = {"tiny": tiny_image, "desktop": desktop_image}
_KVM_BOOT_SECONDS = 90.0
"""A guest with hardware virtualization boots in a third of that; one on which KVM does not work never does."""
_NETWORKS = ("none", "internet", "host")
_CONSOLE = "console.log"
_LOG_BYTES = 4 << 20
_CLONES_LOADING = 4
"""Clones that load at a time. Each needs a core for 0.1 s; more at a time are not sooner ready, only all of them later."""


@dataclass(slots=True)
class _Clone:
    monitor: Monitor
    paused: bool = False
    screen: Screen | None = None


class QemuProvider(Provider):
    """Machines that are QEMU processes of this host.

    Options: `accelerator` (`kvm` or `tcg` instead of what is found out), `network` (what guests reach: `none`, `internet` or
    `host`), `firmware` (a file, for images that need UEFI), `display` (where VNC listens, with `headless=False`).
    """

    default_spares: ClassVar[int] = 1

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        super().__init__(settings, run)
        settings.only("qemu", "accelerator", "network", "firmware", "display")
        self._network = str(settings.options.get("network", "internet" if settings.internet else "none"))
        if self._network not in _NETWORKS:
            raise ConfigError(f"network must be one of {', '.join(_NETWORKS)}, not {self._network!r}")
        if settings.options.get("accelerator", "tcg") not in {"kvm", "tcg"}:
            raise ConfigError(f"accelerator must be 'kvm' or 'tcg', not {settings.options['accelerator']!r}")
        self._local = LocalProcesses(run)
        self._clones: dict[str, _Clone] = {}
        self._loading = asyncio.Semaphore(_CLONES_LOADING)
        self._held: IO[str] | None = None
        self.hardware: Hardware
        self.golden: Golden

    # --- what all machines share --------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        if self._network == "internet":
            await asyncio.to_thread(Namespace.check)
        self.hardware, disk = await asyncio.to_thread(self._describe)
        if self.hardware.accelerator == "kvm":
            try:
                self.golden = await self._freeze(disk, min(self.settings.boot_seconds, _KVM_BOOT_SECONDS))
            except MachineFailed as error:
                if "accelerator" in self.settings.options:
                    raise
                _log.warning("KVM does not work here (%s): machines are emulated, which is several times slower", error)
                self.hardware = replace(self.hardware, accelerator="tcg")
            else:
                return
        elif "accelerator" not in self.settings.options:
            _log.info("this host has no hardware virtualization: machines are emulated, which is several times slower")
        self.golden = await self._freeze(disk, self.settings.boot_seconds)

    def _describe(self) -> tuple[Hardware, Path | None]:
        settings, program = self.settings, qemu_program()
        image = self._image()
        disk = image.disk if image is not None else self._disk_file()
        default = image.memory_mib if image is not None else _DISK_MIB
        hardware = Hardware(
            program=program.path,
            version=program.version,
            machine=program.machine,
            accelerator=settings.options.get("accelerator") or ("kvm" if kvm_works() else "tcg"),
            memory_mib=settings.memory_mib or default,
            cores=settings.cores or 1,
            image_key=image.key if image is not None else _key_of(disk),
            kernel=str(image.kernel or "") if image is not None else "",
            initrd=str(image.initrd or "") if image is not None else "",
            arguments=image.arguments if image is not None else "",
            disk=disk is not None,
            graphics=image is None or image.graphics,
            screen=settings.screen,
            host=settings.host,
            forwards=(GUEST_PORT, *settings.forwards),
            network=self._network,
            firmware=str(settings.options.get("firmware", "")),
        )
        return hardware, disk

    @property
    def image_name(self) -> str:
        """What people call the image; golden states of an earlier build of the same name are removed."""
        return self.settings.path_to_vm or ("desktop" if self.settings.desktop else "tiny")

    def _image(self) -> Image | None:
        """Return the built image that is meant, or None for a disk of the user's."""
        wanted = self.image_name
        if wanted in _BUILT_HERE:
            return _BUILT_HERE[wanted]()
        named = {image.name: image for image in images() if image.part_of is None}
        if wanted in named:
            return named[wanted]
        for image in named.values():
            if image.disk is not None and image.disk.resolve() == Path(wanted).resolve():
                return image
        if not Path(wanted).is_file():
            known = ", ".join(sorted({*_BUILT_HERE, *named}))
            raise UsageError(f"path_to_vm={wanted!r} is no file and no built image; there are: {known}")
        return None

    def _disk_file(self) -> Path:
        assert self.settings.path_to_vm is not None
        disk, snapshot = Path(self.settings.path_to_vm).resolve(), self.settings.snapshot_name
        if not snapshot:
            return disk
        return _extract(disk, snapshot)

    async def _freeze(self, disk: Path | None, boot_seconds: float) -> Golden:
        async def ready(instance: Instance) -> None:
            async with asyncio.timeout(boot_seconds):
                await self.wait_until_ready(instance)

        try:
            golden = await make_golden(self.hardware, self.image_name, disk, self._local, ready, boot_seconds)
        except TimeoutError:
            raise MachineFailed(f"the machine did not answer within {boot_seconds:.0f} s of its boot") from None
        self._held = golden.hold()
        return golden

    # --- machines -----------------------------------------------------------------------------------------------------

    async def create(self, machine_id: str) -> Instance:
        instance_id = new_id(machine_id)
        async with self._loading:
            try:
                return await self._clone(instance_id)
            except BaseException as error:
                ending = "" if self._local.alive(instance_id) else f" ({self._local.ending(instance_id)})"
                await self.stop(instance_id)
                if isinstance(error, MachineFailed):
                    raise MachineFailed(f"{error}{ending}") from error
                raise

    async def _clone(self, instance_id: str) -> Instance:
        started = Started(self._local, instance_id, self.hardware)
        clone = self._clones[instance_id] = _Clone(Monitor(instance_id))
        folder, disk, details = started.folder, None, {}
        if self.golden.overlay is not None:
            disk = folder / "disk"
            shutil.copyfile(self.golden.overlay, disk)
        drives, monitor = Drives(self.golden.ram, False, disk), clone.monitor
        display = "" if self.settings.headless else str(self.settings.options.get("display", "127.0.0.1:0,to=999"))
        secret, password = started.make_secret(), started.password_file
        if display:
            details["vnc_password"] = started.make_password()
        command = self.hardware.command(
            drives, monitor.descriptor, incoming=True, secret=started.secret_file, display=display, password=password
        )
        await started.start(command, [monitor.descriptor])
        await monitor.connect()
        await monitor.load(self.golden.state)
        ports = await started.reachable(await monitor.ports())
        await monitor.execute("cont")
        details["pid"] = str(self._local.pid(instance_id))
        if display:
            details["vnc"] = await monitor.display()
        if self.hardware.graphics:
            clone.screen = Screen(monitor, folder)
            details["screen"] = f"{self.settings.host}:{await clone.screen.start(self.settings.host)}"
        return Instance(instance_id, self.settings.host, ports.pop(GUEST_PORT), ports, details, secret)

    def held_by(self, instance: Instance, token: str) -> None:
        clone = self._clones.get(instance.id)
        if clone is not None and clone.screen is not None:
            clone.screen.held_by(token)

    async def rest(self, instance: Instance) -> None:
        clone = self._find(instance)
        await clone.monitor.execute("stop")
        clone.paused = True

    async def wake(self, instance: Instance) -> None:
        clone = self._find(instance)
        if clone.paused:
            await clone.monitor.execute("cont")
            clone.paused = False

    def _find(self, instance: Instance) -> _Clone:
        clone = self._clones.get(instance.id)
        if clone is None:
            raise MachineFailed(f"{instance.id} is not there any more")
        return clone

    async def reset(self, instance: Instance) -> Instance:
        await self.stop(instance.id)
        return await self.create(instance.id.partition("-")[0])

    async def stop(self, instance_id: str) -> None:
        clone = self._clones.pop(instance_id, None)
        if clone is not None:
            if clone.screen is not None:
                clone.screen.close()
            await clone.monitor.close()
        await self._local.end(instance_id)

    async def list_own(self, runs: Collection[str]) -> list[str]:
        return await self._local.list_own(runs)

    async def close(self) -> None:
        await self._local.close()
        if self._held is not None:
            self._held.close()

    async def alive(self, instance: Instance) -> bool:
        for log in self.logs(instance.id):
            _shorten(log)
        return self._local.alive(instance.id)

    def logs(self, instance_id: str) -> list[Path]:
        return [*self._local.logs(instance_id), self._local.folder(instance_id) / _CONSOLE]


def _shorten(log: Path) -> None:
    """Empty what a guest writes to its console, or makes QEMU say, before that fills the disk of this host."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_BYTES:
            os.truncate(log, 0)


def _key_of(disk: Path | None) -> str:
    """A disk is known by its path, size and time: reading tens of gigabytes would take longer than booting it."""
    assert disk is not None
    status = disk.stat()
    return hashlib.sha256(f"{disk} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def _extract(disk: Path, snapshot: str) -> Path:
    """Return a disk with the contents that `disk` had at an internal snapshot; made once and kept.

    Raises:
        UsageError: the disk has no such snapshot.
        MachineFailed: it cannot be read.
    """
    program = find_program("qemu-img")
    command = [program, "info", "-U", "--output=json", str(disk)]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        raise MachineFailed(f"{disk} cannot be read: {listed.stderr.strip()[-300:]}")
    names = [each["name"] for each in json.loads(listed.stdout).get("snapshots", [])]
    if snapshot not in names:
        raise UsageError(f"{disk} has no snapshot {snapshot!r}; it has: {', '.join(names) or 'none'}")
    target = (
        cache_folder("snapshots") / f"{_key_of(disk)[:16]}-{hashlib.sha256(snapshot.encode()).hexdigest()[:8]}.qcow2"
    )
    if not target.exists():
        draft = target.with_suffix(".part")
        command = [program, "convert", "-U", "-O", "qcow2", "-l", f"snapshot.name={snapshot}", str(disk), str(draft)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
        if done.returncode:
            raise MachineFailed(f"the snapshot {snapshot!r} cannot be read: {done.stderr.strip()[-300:]}")
        draft.rename(target)
    return target
