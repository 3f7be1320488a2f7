"""The pointer: moved, pressed and turned by XTEST."""

from __future__ import annotations

import time
from ctypes import c_uint, c_ulong
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.vms.guest.desktop.x11 import Display

__all__ = ["BUTTONS", "Mouse"]

BUTTONS = {"left": 1, "primary": 1, "middle": 2, "right": 3, "secondary": 3, 1: 1, 2: 2, 3: 3}
_STEP_SECONDS = 0.02
"""Between two points of a slow movement: 50 a second, as many as a person sees."""
_SHORTEST = 0.1
"""Movements that shall take less than this happen at once, as pyautogui does it."""


class Mouse:
    """The pointer of a display."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def move(self, x: float, y: float, seconds: float = 0.0, tween: Callable[[float], float] | None = None) -> None:
        """Go to a point, at once or within some time; `tween` turns the part of the time into the part of the way."""
        if seconds > _SHORTEST:
            from_x, from_y = self._display.pointer()
            began = time.monotonic()
            while (part := (time.monotonic() - began) / seconds) < 1:
                way = tween(part) if tween else part
                self._go(from_x + (x - from_x) * way, from_y + (y - from_y) * way)
                time.sleep(_STEP_SECONDS)
        self._go(x, y)

    def _go(self, x: float, y: float) -> None:
        width, height = self._display.size
        place = (min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1))
        self._display.call("XTestFakeMotionEvent", -1, *place, c_ulong(0))
        self._display.flush()

    def button(self, number: int, *, pressed: bool) -> None:
        """Press a button or let it go."""
        self._display.call("XTestFakeButtonEvent", c_uint(number), int(pressed), c_ulong(0))
        self._display.flush()

    def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """Turn the wheel: up and right are positive."""
        towards, back = (7, 6) if horizontal else (4, 5)
        for _ in range(abs(clicks)):
            for pressed in (True, False):
                self.button(towards if clicks > 0 else back, pressed=pressed)
