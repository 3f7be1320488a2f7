"""Limits that cgroups, such as those of containers, set for this process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["cgroup_limits", "read_text"]

_NO_LIMIT = 1 << 60
"""Larger limits of memory mean that there is none."""


def cgroup_limits(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> tuple[float | None, int | None]:
    """Return how many cores' time and how many bytes of memory the cgroups of this process allow; None: no limit.

    Args:
        root: where cgroups are mounted.
        membership: the file with the cgroups of the process.
    """
    cores: list[float] = []
    memory: list[int] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None, None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):  # empty: version 2, which has one tree for all controllers
            for folder in _with_parents(root / controller, path):
                cores += _core_limits(folder)
                memory += _memory_limits(folder)
    return min(cores, default=None), min(memory, default=None)


def _with_parents(base: Path, path: str) -> list[Path]:
    """Return the folders of a cgroup and its parents. In a container only the last may exist."""
    inner = base / path.lstrip("/")
    return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(base)]


def _core_limits(folder: Path) -> list[float]:
    quota, _, period = read_text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    return [int(quota) / int(period)] if quota.isdecimal() and period.isdecimal() and int(period) else []


def _memory_limits(folder: Path) -> list[int]:
    texts = (read_text(folder / "memory.max"), read_text(folder / "memory.limit_in_bytes"))
    return [int(text) for text in texts if text.isdecimal() and int(text) < _NO_LIMIT]


def read_text(path: Path) -> str:
    """Return the text of a file of the kernel; empty if it does not exist or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
