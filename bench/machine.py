"""Description of the host, the versions and the state of the repository with which results were measured."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from bench.peers.environments import peer_versions

__all__ = ["Machine", "code_state", "describe"]

_REPOSITORY = Path(__file__).parent.parent
_MEASURED = ("src", "bench", "web")
"""What results depend on: a commit to the documentation does not make them outdated."""

_PACKAGES = ("paragent", "joblib", "loky", "ray", "pyspark", "grpcio")
"""Packages whose versions are reported if they are installed. loky is usually the copy inside joblib."""
_PROGRAMS = {"QEMU": "qemu-system-x86_64 --version", "Java": "java -version", "Chromium": "chromium --version"}
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


def code_state() -> str:
    """Return the last commit that changed the measured files, with a digest of uncommitted changes; empty outside Git."""
    try:
        commit = _git("log", "-1", "--format=%h", "--", *_MEASURED).strip()
        changes = _git("diff", "HEAD", "--", *_MEASURED)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}+{hashlib.sha256(changes.encode()).hexdigest()[:7]}" if changes else commit


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=_REPOSITORY, check=True, capture_output=True, text=True, errors="replace"
    ).stdout


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
    return found | peer_versions() | _program_versions()


def _program_versions() -> dict[str, str]:
    found = {}
    for name, command in _PROGRAMS.items():
        try:
            said = subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            continue
        if number := re.search(r"\d+(\.\d+)+", said.stdout + said.stderr):
            found[name] = number.group()
    return found
