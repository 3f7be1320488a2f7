"""What programs get that `import pyperclip` inside a machine: the desktop's clipboard, by `xclip`.

The package of that name does the same, with a dozen other ways for other systems.
"""

from __future__ import annotations

import shutil
import subprocess

__all__ = ["PyperclipException", "copy", "is_available", "paste"]

_SECONDS = 30.0
"""For `xclip` to hand over a text, under emulation."""


class PyperclipException(RuntimeError):
    """The clipboard cannot be used."""


def is_available() -> bool:
    """Return whether the machine has what the clipboard needs."""
    return shutil.which("xclip") is not None


def _xclip(*options: str, given: bytes | None = None) -> bytes:
    if not is_available():
        raise PyperclipException("the clipboard needs the program xclip: apt install xclip")
    # What `xclip` keeps for others stays with a process of its own; with our standard output it would look like a part of us.
    output = subprocess.PIPE if given is None else subprocess.DEVNULL
    command = ["xclip", "-selection", "clipboard", *options]
    done = subprocess.run(command, input=given, stdout=output, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False)
    return done.stdout or b""


def copy(text: object) -> None:
    """Put a text, or a number as its text, on the clipboard."""
    if not isinstance(text, str | int | float | bool):
        raise PyperclipException(
            f"only str, int, float, and bool values can be copied to the clipboard, not {type(text).__name__}"
        )
    _xclip(given=str(text).encode())


def paste() -> str:
    """Return the text on the clipboard, empty if there is none."""
    return _xclip("-o").decode(errors="replace")
