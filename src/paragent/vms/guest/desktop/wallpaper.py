"""The picture behind the windows."""

from __future__ import annotations

import os
import shutil
import subprocess
from ctypes import c_ulong
from typing import TYPE_CHECKING

from paragent.vms.guest.desktop.pictures import as_png
from paragent.vms.guest.desktop.x11 import Picture

if TYPE_CHECKING:
    from paragent.vms.guest.desktop.x11 import Display

__all__ = ["Wallpaper"]

_TOP, _BOTTOM = (0x3B, 0x6E, 0x8F), (0x16, 0x2B, 0x3E)
"""Red, green and blue of the picture that a new desktop has."""
_SECONDS = 60.0
"""For a picture to be scaled and shown, under emulation."""


class Wallpaper:
    """The wallpaper of a display; its file is remembered in the user's folder."""

    def __init__(self, display: Display, home: str) -> None:
        self._display = display
        self._default = os.path.join(home, ".local/share/backgrounds/default.png")
        self._chosen = os.path.join(home, ".config/wallpaper")

    @property
    def path(self) -> str:
        """Which file is shown."""
        try:
            with open(self._chosen) as file:
                return file.read().strip()
        except OSError:
            return self._default

    def show_default(self) -> None:
        """Show what a new desktop has; a plain colour where there is no program that shows pictures."""
        os.makedirs(os.path.dirname(self._default), exist_ok=True)
        with open(self._default, "wb") as file:
            file.write(as_png(_gradient(*self._display.size)))
        if not self._show(self._default):
            number = _BOTTOM[0] << 16 | _BOTTOM[1] << 8 | _BOTTOM[2]
            self._display.call("XSetWindowBackground", c_ulong(self._display.root), c_ulong(number))
            self._display.call("XClearWindow", c_ulong(self._display.root))
            self._display.flush()

    def change(self, path: str) -> bool:
        """Show a picture from now on; return whether it could be shown."""
        if not self._show(path):
            return False
        os.makedirs(os.path.dirname(self._chosen), exist_ok=True)
        with open(self._chosen, "w") as file:
            file.write(path)
        return True

    def _show(self, path: str) -> bool:
        program = shutil.which("hsetroot")
        if program is None:
            return False
        done = subprocess.run([program, "-cover", path], capture_output=True, timeout=_SECONDS, check=False)
        return done.returncode == 0 and b"Bad image" not in done.stdout + done.stderr


def _gradient(width: int, height: int) -> Picture:
    pixels = bytearray()
    for row in range(height):
        red, green, blue = (top + (low - top) * row // height for top, low in zip(_TOP, _BOTTOM, strict=True))
        pixels += bytes((blue, green, red, 0)) * width
    return Picture(width, height, pixels)
