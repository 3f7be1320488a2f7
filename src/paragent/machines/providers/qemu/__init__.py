"""`qemu`: machines are QEMU processes of this host, each a copy-on-write clone of one frozen machine.

This module is the provider: a reset replaces a machine by another clone of the golden state. `hardware.py` describes a machine
and builds its command line, `process.py` runs and controls one process, `network.py` is its network namespace, and `golden.py`
boots a machine and freezes it.
"""

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
from paragent.machines.kvm import kvm_works
from paragent.machines.machine import Machine
from paragent.machines.providers.base import AGENT_PORT, LocalProcesses, MachineSettings, Provider
from paragent.machines.providers.qemu.golden import GoldenState, golden_state
from paragent.machines.providers.qemu.hardware import Hardware, MachineFiles, qemu_program
from paragent.machines.providers.qemu.network import NetworkNamespace
from paragent.machines.providers.qemu.process import Monitor, QemuProcess, ScreenServer

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import IO

    from paragent.machines.cleanup import Owner
    from paragent.machines.images import Image

__all__ = ["Clone", "QemuProvider", "extract_snapshot"]

_log = logging.getLogger("paragent.machines")

_DISK_IMAGE_MIB = 4096
"""Memory of a machine with a disk of the user; OSWorld's own container gives as much."""
_BUILDERS = {"tiny": tiny_image, "desktop": desktop_image}
KVM_BOOT_SECONDS = 90.0
"""A machine with hardware virtualization boots in a third of that time. If KVM does not work, it never boots."""
_NETWORKS = ("none", "internet", "host")
_CONSOLE = "console.log"
_LOG_BYTES = 4 << 20
_CLONES_LOADING = 4
"""Clones that load at a time. Each needs a core for 0.1 s; with more at a time, all of them are ready later."""


@dataclass(slots=True)
class Clone:
    """What the provider knows of one running clone."""

    monitor: Monitor
    paused: bool = False
    screen: ScreenServer | None = None


class QemuProvider(Provider):
    """QEMU processes of this host.

    Options: `accelerator` (`kvm` or `tcg`; the default is detected), `network` (what machines can reach: `none`, `internet` or
    `host`), `firmware` (a file, for images that need UEFI), `display` (where VNC listens, with `headless=False`).
    """

    default_spares: ClassVar[int] = 1

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        super().__init__(settings, owner)
        settings.check_options("qemu", "accelerator", "network", "firmware", "display")
        self._network = str(settings.options.get("network", "internet" if settings.internet else "none"))
        if self._network not in _NETWORKS:
            raise ConfigError(f"network must be one of {', '.join(_NETWORKS)}, not {self._network!r}")
        if settings.options.get("accelerator", "tcg") not in {"kvm", "tcg"}:
            raise ConfigError(f"accelerator must be 'kvm' or 'tcg', not {settings.options['accelerator']!r}")
        self._local = LocalProcesses(owner)
        self._clones: dict[str, Clone] = {}
        self._loading = asyncio.Semaphore(_CLONES_LOADING)
        self._golden_lock: IO[str] | None = None
        self.hardware: Hardware
        self.golden: GoldenState

    # --- hardware, image and golden state --------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        if self._network == "internet":
            await asyncio.to_thread(NetworkNamespace.check)
        self.hardware, disk = await asyncio.to_thread(self._describe)
        if self.hardware.accelerator == "kvm":
            try:
                self.golden = await self._freeze(disk, min(self.settings.boot_seconds, KVM_BOOT_SECONDS))
            except MachineFailed as error:
                if "accelerator" in self.settings.options:
                    raise
                _log.warning(
                    "KVM does not work on this host (%s); machines are emulated, which is several times slower", error
                )
                self.hardware = replace(self.hardware, accelerator="tcg")
            else:
                return
        elif "accelerator" not in self.settings.options:
            _log.info("this host has no hardware virtualization; machines are emulated, which is several times slower")
        self.golden = await self._freeze(disk, self.settings.boot_seconds)

    def _describe(self) -> tuple[Hardware, Path | None]:
        settings, program = self.settings, qemu_program()
        image = self._image()
        disk = image.disk if image is not None else self._disk_file()
        default = image.memory_mib if image is not None else _DISK_IMAGE_MIB
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
            forwards=(AGENT_PORT, *settings.forwards),
            network=self._network,
            firmware=str(settings.options.get("firmware", "")),
        )
        return hardware, disk

    @property
    def host_memory_mib(self) -> int | None:
        """The memory of a machine. Clones share what they do not change, so most of them use less."""
        return self.settings.memory_mib or next(
            (image.memory_mib for image in images() if image.name == self.image_name), None
        )

    @property
    def image_name(self) -> str:
        """The name of the image; golden states of an earlier build of the same name are removed."""
        return self.settings.path_to_vm or ("desktop" if self.settings.desktop else "tiny")

    @classmethod
    def check_image(cls, settings: MachineSettings) -> None:
        wanted = settings.path_to_vm
        named = {*_BUILDERS, *(image.name for image in images() if image.part_of is None)}
        if wanted is not None and wanted not in named and not Path(wanted).is_file():
            known = ", ".join(sorted(named))
            raise UsageError(
                f"path_to_vm (--path-to-vm): {str(wanted)!r} is neither a file nor a built image; images: {known}; "
                "`paragent vm build` builds them"
            )

    def _image(self) -> Image | None:
        """Return the built image with this name or disk; None for a disk of the user."""
        wanted = self.image_name
        if wanted in _BUILDERS:
            return _BUILDERS[wanted]()
        named = {image.name: image for image in images() if image.part_of is None}
        if wanted in named:
            return named[wanted]
        for image in named.values():
            if image.disk is not None and image.disk.resolve() == Path(wanted).resolve():
                return image
        self.check_image(self.settings)
        return None

    def _disk_file(self) -> Path:
        assert self.settings.path_to_vm is not None
        disk, snapshot = Path(self.settings.path_to_vm).resolve(), self.settings.snapshot_name
        if not snapshot:
            return disk
        return extract_snapshot(disk, snapshot)

    async def _freeze(self, disk: Path | None, boot_seconds: float) -> GoldenState:
        async def ready(machine: Machine) -> None:
            async with asyncio.timeout(boot_seconds):
                await self.wait_until_ready(machine)

        try:
            golden = await golden_state(self.hardware, self.image_name, disk, self._local, ready, boot_seconds)
        except TimeoutError:
            raise MachineFailed(f"the machine did not answer within {boot_seconds:.0f} s after its start") from None
        self._golden_lock = golden.lock()
        return golden

    # --- machines -----------------------------------------------------------------------------------------------------

    async def create(self, machine_id: str) -> Machine:
        name = new_id(machine_id)
        async with self._loading:
            try:
                return await self.start_clone(name)
            except BaseException as error:
                ending = "" if self._local.alive(name) else f" ({self._local.describe_end(name)})"
                await self.stop(name)
                if isinstance(error, MachineFailed):
                    raise MachineFailed(f"{error}{ending}") from error
                raise

    async def start_clone(self, name: str) -> Machine:
        """Start a clone of the golden state; `create` ends it if this fails."""
        process = QemuProcess(self._local, name, self.hardware)
        clone = self._clones[name] = Clone(Monitor(name))
        disk, details = None, {}
        if self.golden.overlay is not None:
            disk = process.folder / "disk"
            shutil.copyfile(self.golden.overlay, disk)
        files, monitor = MachineFiles(self.golden.ram, False, disk), clone.monitor
        display = "" if self.settings.headless else str(self.settings.options.get("display", "127.0.0.1:0,to=999"))
        secret, password = process.create_secret(), process.password_file
        if display:
            details["vnc_password"] = process.create_password()
        command = self.hardware.command(
            files, monitor.descriptor, incoming=True, secret=process.secret_file, display=display, password=password
        )
        await process.start(command, [monitor.descriptor])
        await monitor.connect()
        await monitor.load(self.golden.state)
        ports = await process.reachable_ports(await monitor.ports())
        await monitor.execute("cont")
        details["pid"] = str(self._local.pid(name))
        if display:
            details["vnc"] = await monitor.display()
        if self.hardware.graphics:
            clone.screen = ScreenServer(monitor, process.folder)
            details["screen"] = f"{self.settings.host}:{await clone.screen.start(self.settings.host)}"
        return Machine(name, self.settings.host, ports.pop(AGENT_PORT), secret, ports, details)

    def set_holder_token(self, machine: Machine, token: str) -> None:
        clone = self._clones.get(machine.id)
        if clone is not None and clone.screen is not None:
            clone.screen.set_holder_token(token)

    async def pause(self, machine: Machine) -> None:
        clone = self._find(machine)
        await clone.monitor.execute("stop")
        clone.paused = True

    async def resume(self, machine: Machine) -> None:
        clone = self._find(machine)
        if clone.paused:
            await clone.monitor.execute("cont")
            clone.paused = False

    def _find(self, machine: Machine) -> Clone:
        clone = self._clones.get(machine.id)
        if clone is None:
            raise MachineFailed(f"{machine.id} has ended")
        return clone

    async def reset(self, machine: Machine) -> Machine:
        await self.stop(machine.id)
        return await self.create(machine.id.partition("-")[0])

    async def stop(self, machine_id: str) -> None:
        clone = self._clones.pop(machine_id, None)
        if clone is not None:
            if clone.screen is not None:
                clone.screen.close()
            await clone.monitor.close()
        await self._local.stop(machine_id)

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        return await self._local.list_owned(owners)

    async def close(self) -> None:
        await self._local.close()
        if self._golden_lock is not None:
            self._golden_lock.close()

    async def alive(self, machine: Machine) -> bool:
        for log in self.logs(machine.id):
            _truncate_if_large(log)
        return self._local.alive(machine.id)

    def logs(self, machine_id: str) -> list[Path]:
        return [*self._local.logs(machine_id), self._local.folder(machine_id) / _CONSOLE]

    def has_screen(self, machine: Machine) -> bool:
        clone = self._clones.get(machine.id)
        return clone is not None and clone.screen is not None

    async def screenshot(self, machine: Machine) -> bytes:
        """Return the emulated display, which also works while the machine is paused."""
        screen = self._find(machine).screen
        if screen is None:
            raise MachineFailed(f"{machine.id} has no screen")
        return await screen.screenshot()


def _truncate_if_large(log: Path) -> None:
    """Empty a log before the output of a machine or of its QEMU fills the disk of this host."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_BYTES:
            os.truncate(log, 0)


def _key_of(disk: Path | None) -> str:
    """Return a key of a disk from its path, size and time: reading tens of gigabytes takes longer than booting it."""
    assert disk is not None
    status = disk.stat()
    return hashlib.sha256(f"{disk} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def extract_snapshot(disk: Path, snapshot: str) -> Path:
    """Return a disk with the contents of an internal snapshot of `disk`; it is created once and kept.

    Raises:
        UsageError: the disk has no such snapshot.
        MachineFailed: the disk or the snapshot cannot be read.
    """
    program = find_program("qemu-img")
    command = [program, "info", "-U", "--output=json", str(disk)]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        raise MachineFailed(f"{disk} cannot be read: {listed.stderr.strip()[-300:]}")
    names = [each["name"] for each in json.loads(listed.stdout).get("snapshots", [])]
    if snapshot not in names:
        raise UsageError(f"{disk} has no snapshot {snapshot!r}; snapshots: {', '.join(names) or 'none'}")
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
