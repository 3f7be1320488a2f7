"""Golden states: a machine is booted once, frozen when it is ready, and kept as files that are never written again.

The folder `<cache>/golden/<key>` contains `ram` (the memory, mapped copy-on-write by every clone), `state` (the devices, some
hundred kilobytes) and, for machines with a disk, `disk` (the blocks that booting wrote) and `overlay` (an empty layer over
`disk` that every clone copies). The folder gets its name when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent._internal.clock import monotonic
from paragent.errors import MachineFailed
from paragent.machines.cleanup import cache_folder, find_program
from paragent.machines.machine import Machine, verify_clean
from paragent.machines.providers.base import AGENT_PORT
from paragent.machines.providers.qemu.hardware import MachineFiles
from paragent.machines.providers.qemu.process import Monitor, QemuProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import IO

    from paragent.machines.providers.base import LocalProcesses
    from paragent.machines.providers.qemu.hardware import Hardware

__all__ = ["GoldenState", "golden_state", "remove_drafts"]

_ABOUT = "about.json"
_LOCK_POLL = 0.1
_EXTRA_SECONDS = 120.0
"""How long another pool may take to create the same golden state, beyond the time for booting."""


@dataclass(frozen=True, slots=True)
class GoldenState:
    """The files of one golden state."""

    folder: Path
    has_disk: bool

    @property
    def ram(self) -> Path:
        """The memory."""
        return self.folder / "ram"

    @property
    def state(self) -> Path:
        """The state of all devices."""
        return self.folder / "state"

    @property
    def overlay(self) -> Path | None:
        """The file that a clone copies as its own disk."""
        return self.folder / "overlay" if self.has_disk else None

    @property
    def exists(self) -> bool:
        """Whether it is complete."""
        return self.state.exists() and (self.overlay is None or self.overlay.exists())

    def lock(self) -> IO[str]:
        """Prevent its removal by others until the returned file is closed."""
        file = (self.folder / _ABOUT).open()
        fcntl.flock(file, fcntl.LOCK_SH)
        return file


async def golden_state(
    hardware: Hardware,
    image_name: str,
    disk: Path | None,
    local: LocalProcesses,
    ready: Callable[[Machine], Awaitable[None]],
    boot_seconds: float,
) -> GoldenState:
    """Return the golden state of `hardware`. If it is missing, one pool of this user creates it and others wait.

    Args:
        hardware: the hardware of the machine.
        image_name: the name of its image.
        disk: the initial contents of its disk; it is only read.
        local: starts the process that is frozen.
        ready: waits until the machine may be frozen.
        boot_seconds: how long that may take.

    Raises:
        MachineFailed: the machine does not boot or cannot be frozen.
    """
    golden = GoldenState(cache_folder("golden") / hardware.key, disk is not None)
    if golden.exists:
        return golden
    async with _creation_lock(hardware.key, boot_seconds + _EXTRA_SECONDS):
        if not golden.exists:
            await _create(golden, hardware, image_name, disk, local, ready)
    return golden


@asynccontextmanager
async def _creation_lock(key: str, timeout: float) -> AsyncIterator[None]:
    deadline = monotonic() + timeout
    with (cache_folder("golden") / f".{key}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > deadline:
                    raise MachineFailed(
                        f"another pool has not finished freezing this machine after {timeout:.0f} s"
                    ) from None
                await asyncio.sleep(_LOCK_POLL)
        yield


async def _create(
    golden: GoldenState,
    hardware: Hardware,
    image_name: str,
    disk: Path | None,
    local: LocalProcesses,
    ready: Callable[[Machine], Awaitable[None]],
) -> None:
    draft = GoldenState(golden.folder.with_name(f".{golden.folder.name}"), golden.has_disk)
    # These are left by a process that was killed: the lock shows that no other process is creating them.
    for folder in (draft.folder, golden.folder):
        shutil.rmtree(folder, ignore_errors=True)
    draft.folder.mkdir(mode=0o700)
    try:
        if disk is not None:
            await asyncio.to_thread(_create_overlay, disk, draft.folder / "disk")
        await _boot_and_freeze(draft, hardware, local, ready)
        # QEMU opens the memory file for writing even to map it privately; only root can open a read-only file so.
        for name, mode in {"ram": 0o600, "state": 0o400, "disk": 0o400}.items():
            if (draft.folder / name).exists():
                (draft.folder / name).chmod(mode)
        (draft.folder / _ABOUT).write_text(json.dumps({"image": image_name, "image_key": hardware.image_key}))
        draft.folder.rename(golden.folder)
        if disk is not None:
            await asyncio.to_thread(_create_overlay, golden.folder / "disk", golden.folder / "overlay")
        await asyncio.to_thread(_remove_older, golden.folder.parent, image_name, hardware.image_key)
        await asyncio.to_thread(remove_drafts, golden.folder.parent)
    except BaseException:
        shutil.rmtree(draft.folder, ignore_errors=True)
        raise


async def _boot_and_freeze(
    draft: GoldenState, hardware: Hardware, local: LocalProcesses, ready: Callable[[Machine], Awaitable[None]]
) -> None:
    name = f"golden-{os.urandom(4).hex()}"
    monitor = Monitor(name)
    files = MachineFiles(draft.ram, True, draft.folder / "disk" if draft.has_disk else None)
    process = QemuProcess(local, name, hardware)
    try:
        secret = process.create_secret()
        command = hardware.command(files, monitor.descriptor, incoming=False, secret=process.secret_file)
        await process.start(command, [monitor.descriptor])
        await monitor.connect()
        ports = await process.reachable_ports(await monitor.ports())
        machine = Machine(name, hardware.host, ports[AGENT_PORT], secret)
        await ready(machine)
        await verify_clean(machine)
        await monitor.freeze(draft.state)
    except MachineFailed as error:
        raise MachineFailed(f"{error} ({local.describe_end(name)})" if not local.alive(name) else str(error)) from error
    finally:
        await monitor.close()
        await local.stop(name)


def _remove_older(home: Path, image_name: str, image_key: str) -> None:
    """Remove golden states of earlier builds of the same image, unless a pool uses them."""
    for path in home.glob(f"[!.]*/{_ABOUT}"):
        about = json.loads(path.read_text())
        if about["image"] != image_name or about["image_key"] == image_key:
            continue
        with path.open() as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def remove_drafts(home: Path) -> None:
    """Remove incomplete states of processes that were killed: once the image has changed, they are never completed."""
    for draft in home.glob(".*/"):
        with (home / f"{draft.name}.lock").open("w") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(draft, ignore_errors=True)


def _create_overlay(base: Path, target: Path) -> None:
    """Create an empty qcow2 file on top of `base`.

    Raises:
        MachineFailed: `base` is not a disk image.
    """
    program = find_program("qemu-img")
    listed = subprocess.run(
        [program, "info", "-U", "--output=json", str(base)], capture_output=True, text=True, timeout=60, check=False
    )
    form = "raw" if '"format": "raw"' in listed.stdout else "qcow2"
    done = subprocess.run(
        [program, "create", "-q", "-f", "qcow2", "-F", form, "-b", str(base.resolve()), str(target)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise MachineFailed(f"{base} cannot be used as a disk: {(listed.stderr + done.stderr).strip()[-300:]}")
