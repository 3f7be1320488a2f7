"""What a process and its descendants use, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Footprint", "footprint"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 512
"""Bytes of `st_blocks`, whatever the file system's own blocks are."""


class Footprint(NamedTuple):
    """What a tree of processes uses."""

    memory: int
    """Bytes: resident memory that is not shared with files, and files in memory that have no name."""
    processes: int


def footprint(pid: int, most: int) -> Footprint:
    """Return what a process and its descendants use; counting stops above `most` processes.

    Processes that end meanwhile count as nothing. Where the kernel does not list children, only the process itself counts.
    """
    memory, processes, waiting = 0, 0, [pid]
    while waiting and processes <= most:
        home = Path("/proc") / str(waiting.pop())
        try:
            _, resident, shared, *_ = (home / "statm").read_text().split()
            memory += (int(resident) - int(shared)) * _PAGE
            processes += 1
            for thread in (home / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
            memory += sum(_nameless(file) for file in (home / "fd").iterdir())
        except (OSError, ValueError):
            continue
    return Footprint(memory, processes)


def _nameless(file: Path) -> int:
    return file.stat().st_blocks * _BLOCK if str(file.readlink()).startswith("/memfd:") else 0
