"""The module `pyperclip` inside a machine: the desktop's clipboard, through the program `xclip`.

It has the functions of the package of that name that work on X11.
"""

from __future__ import annotations

import shutil
import subprocess

__all__ = ["PyperclipException", "copy", "is_available", "paste"]

_SECONDS = 30.0
"""For `xclip` to transfer a text, under emulation."""


class PyperclipException(RuntimeError):
    """The clipboard cannot be used."""


def is_available() -> bool:
    """Return whether the machine has the program that the clipboard needs."""
    return shutil.which("xclip") is not None


def _xclip(*options: str, given: bytes | None = None) -> bytes:
    if not is_available():
        raise PyperclipException("the clipboard needs the program xclip: apt install xclip")
    # `xclip` leaves a process that serves the clipboard. It must not inherit our standard output, which would stay open.
    output = subprocess.PIPE if given is None else subprocess.DEVNULL
    command = ["xclip", "-selection", "clipboard", *options]
    done = subprocess.run(command, input=given, stdout=output, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False)
    return done.stdout or b""


def copy(text: object) -> None:
    """Copy a string, or a number as a string, to the clipboard."""
    if not isinstance(text, str | int | float | bool):
        raise PyperclipException(
            f"only str, int, float, and bool values can be copied to the clipboard, not {type(text).__name__}"
        )
    _xclip(given=str(text).encode())


def paste() -> str:
    """Return the text of the clipboard; empty if there is none."""
    return _xclip("-o").decode(errors="replace")
