"""Cores, memory and disks of this host, with the limits of cgroups."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from paragent._internal.cgroups import cgroup_limits, read_text
from paragent._internal.text import counted
from paragent.config import usable_cores

__all__ = ["Host", "describe_host"]

_LITTLE_DISK = 1_000_000_000
"""Bytes of free disk below which a run, or an image of 400 MB with its golden state of 1 GB, is likely to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What this host offers to a process."""

    system: str
    cores: int
    """All cores of the host."""
    usable_cores: int
    """How many of them this process may use: by its affinity and the CPU time that its cgroup allows."""
    cgroup_cores: float | None
    """CPU time per second that the cgroup allows; None: no limit."""
    memory: int | None
    """Bytes; None: unknown."""
    free_memory: int | None
    cgroup_memory: int | None
    folder: Path
    writable: bool
    free_disk: int | None
    cache: Path
    free_cache_disk: int | None

    def lines(self) -> list[str]:
        """Return the description, for people."""
        cores = counted(self.usable_cores, "core")
        if self.cores > self.usable_cores:
            cores += f" of {self.cores}"
        if self.cgroup_cores is not None:
            cores += f" (a cgroup allows the time of {self.cgroup_cores:g})"
        memory = f"{_gb(self.memory)} of memory, {_gb(self.free_memory)} available"
        if self.cgroup_memory is not None:
            memory += f" (a cgroup allows {_gb(self.cgroup_memory)})"
        disks = f"disk: {_gb(self.free_disk)} free in {self.folder}, {_gb(self.free_cache_disk)} in {self.cache}"
        return [f"{self.system}; {cores}; {memory}", f"{disks} (images and other caches)"]

    def notes(self) -> list[str]:
        """Return what may be a problem, and what to do about it."""
        found = []
        if not self.writable:
            found.append(f"you may not write to {self.folder}: change to another folder, or use --output-dir")
        if self.free_cache_disk is None:
            found.append(
                f"the folder {self.cache} cannot be used: set PARAGENT_CACHE to a folder for images and caches"
            )
        for place, free in ((self.folder, self.free_disk), (self.cache, self.free_cache_disk)):
            if free is not None and free < _LITTLE_DISK:
                found.append(f"there is little free disk in {place}: {_gb(free)}")
        return found


def describe_host() -> Host:
    """Return the description of this host. What is unknown, and the free disk of a cache that cannot be used, is None."""
    from paragent.machines.cleanup import cache_folder

    folder = Path.cwd()
    try:
        cache = cache_folder()
    except (OSError, RuntimeError):  # a home folder that is read-only or missing
        cache = Path(os.environ.get("PARAGENT_CACHE") or "~/.cache/paragent")
    cgroup_cores, cgroup_memory = cgroup_limits()
    usable = os.access(cache, os.W_OK | os.X_OK)
    return Host(
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        cgroup_cores=cgroup_cores,
        memory=_meminfo("MemTotal"),
        free_memory=_meminfo("MemAvailable"),
        cgroup_memory=cgroup_memory,
        folder=folder,
        writable=os.access(folder, os.W_OK | os.X_OK),
        free_disk=_free_disk(folder),
        cache=cache,
        free_cache_disk=_free_disk(cache) if usable else None,
    )


def _meminfo(name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", read_text(Path("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _free_disk(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _gb(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size / 1e9:.1f} GB"
