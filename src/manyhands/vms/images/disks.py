"""Disk images with a file system, made without mounting anything."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from manyhands.errors import MachineFailed
from manyhands.vms.folders import find_program

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_disk"]

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


def _run(command: list[str]) -> None:
    program = find_program(command[0])
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise MachineFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
