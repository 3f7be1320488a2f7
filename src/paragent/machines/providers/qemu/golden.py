"""The golden state: a machine is booted once, stopped when it is ready, and kept as files that nobody writes again.

A folder `<cache>/golden/<key>` has `ram` (the memory, mapped copy-on-write by every clone), `state` (the devices, some
hundred kilobytes), and, for machines with a disk, `disk` (the blocks that booting wrote) and `overlay` (an empty layer over
`disk` that every clone copies). It appears by being renamed, so it is whole or not there.
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
from paragent.machines.machine import verify_clean
from paragent.machines.providers.base import GUEST_PORT, Instance
from paragent.machines.providers.qemu.hardware import Drives
from paragent.machines.providers.qemu.monitor import Monitor
from paragent.machines.providers.qemu.process import Started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import IO

    from paragent.machines.providers.local_processes import LocalProcesses
    from paragent.machines.providers.qemu.hardware import Hardware

__all__ = ["Golden", "layer", "make_golden"]

_ABOUT = "about.json"
_LOCK_POLL = 0.1
_GRACE = 120.0
"""Seconds that another pool may take to make the same golden state, beyond the time for booting."""


@dataclass(frozen=True, slots=True)
class Golden:
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
        """What a clone copies to have a disk of its own."""
        return self.folder / "overlay" if self.has_disk else None

    @property
    def exists(self) -> bool:
        """Whether it was made to the end."""
        return self.state.exists() and (self.overlay is None or self.overlay.exists())

    def hold(self) -> IO[str]:
        """Keep others from removing it until the returned file is closed."""
        file = (self.folder / _ABOUT).open()
        fcntl.flock(file, fcntl.LOCK_SH)
        return file


async def make_golden(
    hardware: Hardware,
    image_name: str,
    disk: Path | None,
    local: LocalProcesses,
    ready: Callable[[Instance], Awaitable[None]],
    boot_seconds: float,
) -> Golden:
    """Return the golden state of `hardware`, made if need be; one pool of this user makes it, others wait.

    Args:
        hardware: The machine.
        image_name: What people call its image.
        disk: The image that its disk starts as; it is only read.
        local: Starts the process that is frozen.
        ready: Waits until a machine may be frozen.
        boot_seconds: How long that takes at most.

    Raises:
        MachineFailed: the machine does not boot or cannot be frozen.
    """
    golden = Golden(cache_folder("golden") / hardware.key, disk is not None)
    if golden.exists:
        return golden
    async with _only_maker(hardware.key, boot_seconds + _GRACE):
        if not golden.exists:
            await _make(golden, hardware, image_name, disk, local, ready)
    return golden


@asynccontextmanager
async def _only_maker(key: str, timeout: float) -> AsyncIterator[None]:
    deadline = monotonic() + timeout
    with (cache_folder("golden") / f".{key}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > deadline:
                    raise MachineFailed(f"another pool has been freezing this machine for {timeout:.0f} s") from None
                await asyncio.sleep(_LOCK_POLL)
        yield


async def _make(
    golden: Golden,
    hardware: Hardware,
    image_name: str,
    disk: Path | None,
    local: LocalProcesses,
    ready: Callable[[Instance], Awaitable[None]],
) -> None:
    draft = Golden(golden.folder.with_name(f".{golden.folder.name}"), golden.has_disk)
    for folder in (draft.folder, golden.folder):
        shutil.rmtree(folder, ignore_errors=True)  # of a maker that was killed: the lock says that there is none now
    draft.folder.mkdir(mode=0o700)
    try:
        if disk is not None:
            await asyncio.to_thread(layer, disk, draft.folder / "disk")
        await _boot_and_freeze(draft, hardware, local, ready)
        # QEMU opens the memory for writing even to map it privately; only root could if it were read-only.
        for name, mode in {"ram": 0o600, "state": 0o400, "disk": 0o400}.items():
            if (draft.folder / name).exists():
                (draft.folder / name).chmod(mode)
        (draft.folder / _ABOUT).write_text(json.dumps({"image": image_name, "image_key": hardware.image_key}))
        draft.folder.rename(golden.folder)
        if disk is not None:
            await asyncio.to_thread(layer, golden.folder / "disk", golden.folder / "overlay")
        await asyncio.to_thread(_remove_older, golden.folder.parent, image_name, hardware.image_key)
        await asyncio.to_thread(_remove_drafts, golden.folder.parent)
    except BaseException:
        shutil.rmtree(draft.folder, ignore_errors=True)
        raise


async def _boot_and_freeze(
    draft: Golden, hardware: Hardware, local: LocalProcesses, ready: Callable[[Instance], Awaitable[None]]
) -> None:
    name = f"golden-{os.urandom(4).hex()}"
    monitor = Monitor(name)
    drives = Drives(draft.ram, True, draft.folder / "disk" if draft.has_disk else None)
    started = Started(local, name, hardware)
    try:
        secret = started.make_secret()
        command = hardware.command(drives, monitor.descriptor, incoming=False, secret=started.secret_file)
        await started.start(command, [monitor.descriptor])
        await monitor.connect()
        ports = await started.reachable(await monitor.ports())
        instance = Instance(name, hardware.host, ports[GUEST_PORT], secret=secret)
        await ready(instance)
        await verify_clean(instance)
        await monitor.freeze(draft.state)
    except MachineFailed as error:
        raise MachineFailed(f"{error} ({local.ending(name)})" if not local.alive(name) else str(error)) from error
    finally:
        await monitor.close()
        await local.end(name)


def _remove_older(home: Path, image_name: str, image_key: str) -> None:
    """Remove what was frozen from an earlier build of the same image, unless a pool uses it."""
    for path in home.glob(f"[!.]*/{_ABOUT}"):
        about = json.loads(path.read_text())
        if about["image"] != image_name or about["image_key"] == image_key:
            continue
        with path.open() as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def _remove_drafts(home: Path) -> None:
    """Remove what makers that were killed have left: nobody else makes the same state again once its image has changed."""
    for draft in home.glob(".*/"):
        with (home / f"{draft.name}.lock").open("w") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(draft, ignore_errors=True)


def layer(base: Path, target: Path) -> None:
    """Make an empty qcow2 file that reads what it does not have from `base`.

    Raises:
        MachineFailed: `base` is no disk image.
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
