"""Archives in the `newc` form that the Linux kernel unpacks as its first file system."""

from __future__ import annotations

import os
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_archive"]

_TRAILER = "TRAILER!!!"


def write_archive(root: Path, archive: IO[bytes]) -> None:
    """Write everything below `root`, sorted by name and without times, so that the same tree gives the same bytes."""
    for inode, path in enumerate(sorted(root.rglob("*")), 1):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            data = str(path.readlink()).encode()
        elif stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
        else:
            data = b""
        _write_entry(archive, str(path.relative_to(root)), status.st_mode, inode, data)
    _write_entry(archive, _TRAILER, 0, 0, b"")
    archive.write(b"\0" * (-archive.tell() % 512))


def _write_entry(archive: IO[bytes], name: str, mode: int, inode: int, data: bytes) -> None:
    encoded = os.fsencode(name) + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    numbers = (inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    archive.write(b"070701" + "".join(f"{number:08X}" for number in numbers).encode() + encoded)
    archive.write(b"\0" * (-archive.tell() % 4))
    archive.write(data)
    archive.write(b"\0" * (-archive.tell() % 4))
