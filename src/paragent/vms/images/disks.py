"""Disk images with a file system, made without mounting anything."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed
from paragent.vms.folders import find_program

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["add_to_disk", "make_disk"]

_SECONDS = 300.0
"""For a file system of some hundred megabytes to be written, on a slow disk."""


def make_disk(raw: Path, disk: Path, size: str) -> None:
    """Make a qcow2 image of an ext4 file system: of `raw` if that is there, else of an empty one.

    Raises:
        UsageError: a program is missing.
        MachineFailed: it failed.
    """
    if not raw.exists():
        _run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(raw), size])
    _run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)])


def add_to_disk(base: Path, raw: Path, folder: Path) -> None:
    """Write a copy of the file system image `base` to `raw`, with everything below `folder` added.

    Raises:
        UsageError: a program is missing.
        MachineFailed: it failed.
    """
    _run(["cp", "--sparse=always", "--reflink=auto", str(base), str(raw)])
    orders, inside = [], "/"
    for path in sorted(folder.rglob("*")):
        inside = f"/{path.relative_to(folder)}"
        if path.is_dir():
            orders.append(f'mkdir "{inside}"')
        else:
            orders += [f'rm "{inside}"', f'write "{path}" "{inside}"']
            orders += [f'sif "{inside}" {field} 0' for field in ("uid", "gid")]
            orders.append(f'sif "{inside}" mode 0{path.stat().st_mode:o}')
    _run(["debugfs", "-w", "-f", "-", str(raw)], "\n".join([*orders, ""]))
    _run(["debugfs", "-R", f'stat "{inside}"', str(raw)], wanted="Inode:")


def _run(command: list[str], orders: str | None = None, wanted: str = "") -> None:
    program = find_program(command[0])
    done = subprocess.run(
        [program, *command[1:]], input=orders, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode or wanted not in done.stdout:
        raise MachineFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
