"""The applications that a new desktop has open, and where their windows are."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from paragent.vms.guest.desktop.windows import windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.vms.guest.desktop.windows import Window
    from paragent.vms.guest.desktop.x11 import Display

__all__ = ["APPLICATIONS", "Application", "open_all"]

_POLL, _SLOWER, _SLOWEST = 0.05, 1.2, 1.0
"""Seconds between looks at the windows, and how they grow: looking takes the emulated processor from those who start."""
_ASKED = 8
"""How often a window is asked to go to its place. Some take it for that of their frame, and never get there."""
_MOVE_AND_RESIZE = 0x1F0A
"""For _NET_MOVERESIZE_WINDOW: x, y, width and height are given, by an application, and the left upper corner stays."""


class Application(NamedTuple):
    """A program with a window."""

    name: str
    programs: tuple[str, ...]
    """Command lines; the first one that is installed is taken."""
    place: tuple[float, float, float, float]
    """Left, top, width and height of its window, as parts of the screen."""


APPLICATIONS = (
    Application("files", ("thunar", "pcmanfm"), (0.03, 0.05, 0.44, 0.40)),
    Application("editor", ("mousepad",), (0.50, 0.05, 0.47, 0.46)),
    Application("terminal", ("lxterminal", "xterm"), (0.03, 0.51, 0.44, 0.40)),
    Application("calculator", ("galculator",), (0.62, 0.57, 0.24, 0.34)),
)
"""One of each kind, so that every one is warm: under emulation a program's first window takes up to 15 seconds."""


def open_all(display: Display, names: Sequence[str], home: str, seconds: float, one_by_one: bool) -> None:
    """Start applications, wait for their windows and put them where they belong.

    One that is not installed, or shows no window within `seconds`, is left out: a desktop without it is still of use.

    Args:
        display: Where.
        names: Which of APPLICATIONS.
        home: The folder that they start in.
        seconds: For all of them together, or for each if they start one by one.
        one_by_one: For a slow machine: programs that start at the same time there keep each other waiting for longer than
            they wait for the message bus.
    """
    missing: dict[str, Application] = {}
    for application in APPLICATIONS:
        program = next((name for name in application.programs if shutil.which(name)), None)
        if application.name in names and program is not None:
            subprocess.Popen([program], cwd=home, stdin=subprocess.DEVNULL, start_new_session=True)
            missing[program] = application
            if one_by_one:
                _place_all(display, missing, seconds)
                missing.clear()
    _place_all(display, missing, seconds)


def _place_all(display: Display, missing: dict[str, Application], seconds: float) -> None:
    deadline, pause = time.monotonic() + seconds, _POLL
    asked: dict[int, int] = {}
    while missing and time.monotonic() < deadline:
        for window in windows(display):
            program = next((name for name in missing if name in window.kind.lower()), None)
            if program is None:
                continue
            asked[window.id] = asked.get(window.id, 0) + 1
            if _settle(display, window, missing[program].place) or asked[window.id] > _ASKED:
                del missing[program]
        time.sleep(pause)
        pause = min(pause * _SLOWER, _SLOWEST)


def _settle(display: Display, window: Window, place: tuple[float, float, float, float]) -> bool:
    """Put a window where it belongs; return whether it is there. It may have been too new, so it is asked again."""
    width, height = display.size
    left, top, wide, high = place
    wanted = (int(left * width), int(top * height), int(wide * width), int(high * height))
    if display.place(window.id)[:2] == wanted[:2]:
        return True
    display.tell_manager(window.id, "_NET_MOVERESIZE_WINDOW", _MOVE_AND_RESIZE, *wanted)
    return False
