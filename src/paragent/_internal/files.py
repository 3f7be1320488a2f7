"""Reads files of folders that may come from anyone."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["open_regular_file", "read_small_file"]

_LARGEST = 16 << 20


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. It never waits, as opening a named pipe would.

    Raises:
        OSError: the file does not exist, cannot be read, or is not a regular file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def read_small_file(path: Path) -> bytes:
    """Return the content of a regular file of at most 16 MiB. It never waits, as reading a named pipe would.

    Raises:
        OSError: the file does not exist, cannot be read, is too large, or is not a regular file.
    """
    with open_regular_file(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(f"{path} has more than {_LARGEST:,} bytes")
    return content
