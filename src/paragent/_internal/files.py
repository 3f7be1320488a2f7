"""Reads small files of folders that may come from anyone."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_small_file"]

_LARGEST = 16 << 20


def read_small_file(path: Path) -> bytes:
    """Return the content of a regular file of at most 16 MiB. It never waits, as reading a named pipe would.

    Raises:
        OSError: the file does not exist, cannot be read, is too large, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(f"{path} has more than {_LARGEST:,} bytes")
    return content
