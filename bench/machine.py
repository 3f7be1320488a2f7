"""Description of the host and the package versions with which results were measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

__all__ = ["Machine", "describe"]

_PACKAGES = ("paragent", "joblib", "loky", "ray", "pyspark", "grpcio")
"""Packages whose versions are reported if they are installed. loky is usually the copy inside joblib."""
_BUSY = 0.5
"""A load above this before the start means that other programs use the host."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The host on which a benchmark ran."""

    cpu: str
    cores: int
    memory_gb: float
    system: str
    python: str
    versions: dict[str, str]
    load_before: float
    """The one-minute load average before the first measurement."""

    @property
    def was_busy(self) -> bool:
        """Whether other programs used the host, so that only ratios are reliable."""
        return self.load_before > _BUSY

    def lines(self) -> list[str]:
        """Return the description for people."""
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        busy = ": other programs used the host, so only ratios are reliable" if self.was_busy else ""
        return [
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB, {self.system}",
            f"{self.python}, {packages}",
            f"load before the start {self.load_before:.2f}{busy}",
        ]


def describe() -> Machine:
    """Describe this host in its current state."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=psutil.virtual_memory().total / 1e9,
        system=platform.platform(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions=_versions(),
        load_before=os.getloadavg()[0],
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if "joblib" in found and "loky" not in found:
        from joblib.externals import loky

        found["loky (in joblib)"] = loky.__version__
    return found
