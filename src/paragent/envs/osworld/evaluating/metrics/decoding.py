"""Sounds and films, decoded by the program ffmpeg."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from paragent._processes import plain_environment
from paragent.errors import MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["decoded"]


def _program() -> str:
    found = shutil.which("ffmpeg")
    if found is None:
        raise MissingProgram("comparing sounds and films", "there is no ffmpeg here", "install the package `ffmpeg`")
    return found


_program()  # a module that needs it says so when it is loaded


@contextmanager
def decoded(path: str, *options: str) -> Iterator[IO[bytes]]:
    """Decode a file to a stream for the length of a `with`; of what cannot be decoded there is nothing in it.

    Only the file itself is opened: a playlist that names an address gets no answer.
    """
    command = [
        _program(),
        "-v",
        "error",
        "-nostdin",
        "-threads",
        "2",
        "-protocol_whitelist",
        "file",
        "-i",
        f"file:{path}",
    ]
    process = subprocess.Popen(
        [*command, *options, "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=plain_environment()
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.stdout.close()
        process.kill()
        process.wait()
