"""Keyboard and mouse input through XTEST, with the key names of pyautogui."""

from __future__ import annotations

import time
from ctypes import c_int, c_ubyte, c_uint, c_ulong
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.guest.desktop.x11 import Display

__all__ = ["BUTTONS", "KEYBOARD_KEYS", "Keyboard", "Mouse", "UnknownKey"]


_FIRST, _LAST = 8, 255
"""The range of key codes in X. Unused ones are assigned to characters that the layout does not have."""
_LAYOUT_SECONDS = 0.1
"""For programs to read a changed layout; they look characters up when a key arrives."""
_UNICODE = 0x01000000
"""Added to a character's number beyond Latin-1 to get its keysym."""
_SYMBOLS = {
    "\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape",
    "enter": "Return", "return": "Return", "tab": "Tab", "backspace": "BackSpace", "esc": "Escape", "escape": "Escape",
    "space": "space", "delete": "Delete", "del": "Delete", "insert": "Insert", "home": "Home", "end": "End",
    "pageup": "Page_Up", "pgup": "Page_Up", "pagedown": "Page_Down", "pgdn": "Page_Down",
    "up": "Up", "down": "Down", "left": "Left", "right": "Right",
    "shift": "Shift_L", "shiftleft": "Shift_L", "shiftright": "Shift_R",
    "ctrl": "Control_L", "ctrlleft": "Control_L", "ctrlright": "Control_R",
    "alt": "Alt_L", "altleft": "Alt_L", "altright": "Alt_R", "option": "Alt_L", "optionleft": "Alt_L", "optionright": "Alt_R",
    "win": "Super_L", "winleft": "Super_L", "winright": "Super_R", "command": "Super_L", "fn": "Mode_switch",
    "apps": "Menu", "menu": "Menu", "capslock": "Caps_Lock", "numlock": "Num_Lock", "scrolllock": "Scroll_Lock",
    "pause": "Pause", "print": "Print", "prtsc": "Print", "prtscr": "Print", "printscreen": "Print", "prntscrn": "Print",
    "add": "KP_Add", "subtract": "KP_Subtract", "multiply": "KP_Multiply", "divide": "KP_Divide",
    "decimal": "KP_Decimal", "separator": "KP_Separator", "clear": "Clear", "help": "Help", "select": "Select",
    "execute": "Execute", "sleep": "XF86Sleep", "stop": "Cancel",
    "volumeup": "XF86AudioRaiseVolume", "volumedown": "XF86AudioLowerVolume", "volumemute": "XF86AudioMute",
    "playpause": "XF86AudioPlay", "nexttrack": "XF86AudioNext", "prevtrack": "XF86AudioPrev",
    "browserback": "XF86Back", "browserforward": "XF86Forward", "browserrefresh": "XF86Refresh",
    "browserhome": "XF86HomePage", "browsersearch": "XF86Search", "browserstop": "XF86Stop",
    "browserfavorites": "XF86Favorites", "launchmail": "XF86Mail",
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
    **{f"num{number}": f"KP_{number}" for number in range(10)},
}  # fmt: skip
"""Names of keys and the names of their X keysyms."""

KEYBOARD_KEYS = [*(chr(code) for code in range(32, 127) if not chr(code).isupper()), *_SYMBOLS]
"""All names of keys; any other single character can be typed, too."""


class UnknownKey(ValueError):
    """There is no key with this name."""


class Keyboard:
    """The keyboard of a display. The layout is read once, when the object is created."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._shift = self._code(self._number("Shift_L"))
        self._unused = [code for code in range(_FIRST, _LAST + 1) if not any(self._symbols(code))]

    def down(self, key: str) -> None:
        """Press a key without releasing it; an upper-case letter presses Shift, too.

        Raises:
            UnknownKey: there is no key with this name.
        """
        code, shifted = self._find(key)
        if shifted:
            self._fake(self._shift, pressed=True)
        self._fake(code, pressed=True)
        if shifted:
            self._fake(self._shift, pressed=False)
        self._display.flush()

    def up(self, key: str) -> None:
        """Release a key; raises as `down`."""
        self._fake(self._find(key)[0], pressed=False)
        self._display.flush()

    def press(self, key: str) -> None:
        """Press and release a key; raises as `down`."""
        code, shifted = self._find(key)
        if shifted:
            self._fake(self._shift, pressed=True)
        self._fake(code, pressed=True)
        self._fake(code, pressed=False)
        if shifted:
            self._fake(self._shift, pressed=False)
        self._display.flush()

    def _fake(self, code: int, *, pressed: bool) -> None:
        self._display.call("XTestFakeKeyEvent", c_uint(code), int(pressed), c_ulong(0))

    def _find(self, key: str) -> tuple[int, bool]:
        """Return the code of a key and whether it needs Shift."""
        number = self._keysym(key)
        code = self._code(number)
        if code and number in (symbols := self._symbols(code)):
            return code, symbols[0] != number
        return self._assign_unused_code(number), False

    def _keysym(self, key: str) -> int:
        name = _SYMBOLS.get(key if len(key) == 1 else key.lower())
        if name is not None:
            return self._number(name)
        if len(key) != 1:
            raise UnknownKey(f"there is no key {key!r}")
        return ord(key) if ord(key) < 0x100 else _UNICODE + ord(key)

    def _number(self, name: str) -> int:
        return self._display.keysym(name)

    def _symbols(self, code: int) -> tuple[int, int]:
        """Return the keysyms of a key without and with Shift."""
        plain, shifted = (int(self._display.call("XkbKeycodeToKeysym", c_ubyte(code), 0, level)) for level in (0, 1))
        return plain, shifted

    def _code(self, keysym: int) -> int:
        return int(self._display.call("XKeysymToKeycode", c_ulong(keysym))) & 0xFF

    def _assign_unused_code(self, keysym: int) -> int:
        """Assign a character that the layout does not have to an unused key code, and wait until programs have read it."""
        if not self._unused:
            raise UnknownKey(f"there is no key for {chr(keysym & 0xFFFFFF)!r}, and no key code is unused")
        code = self._unused.pop()
        self._display.call("XChangeKeyboardMapping", code, 2, (c_ulong * 2)(keysym, keysym), c_int(1))
        self._display.flush()
        time.sleep(_LAYOUT_SECONDS)
        return code


BUTTONS = {"left": 1, "primary": 1, "middle": 2, "right": 3, "secondary": 3, 1: 1, 2: 2, 3: 3}
_STEP_SECONDS = 0.02
"""Between two points of a slow movement: 50 per second."""
_MINIMUM_SECONDS = 0.1
"""Shorter movements happen at once, as in pyautogui."""


class Mouse:
    """The pointer of a display."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def move(self, x: float, y: float, seconds: float = 0.0, tween: Callable[[float], float] | None = None) -> None:
        """Move to a point, at once or within `seconds`; `tween` maps the fraction of time to the fraction of the way."""
        if seconds > _MINIMUM_SECONDS:
            from_x, from_y = self._display.pointer()
            began = time.monotonic()
            while (part := (time.monotonic() - began) / seconds) < 1:
                way = tween(part) if tween else part
                self._move_at_once(from_x + (x - from_x) * way, from_y + (y - from_y) * way)
                time.sleep(_STEP_SECONDS)
        self._move_at_once(x, y)

    def _move_at_once(self, x: float, y: float) -> None:
        width, height = self._display.size
        place = (min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1))
        self._display.call("XTestFakeMotionEvent", -1, *place, c_ulong(0))
        self._display.flush()

    def button(self, number: int, *, pressed: bool) -> None:
        """Press or release a button."""
        self._display.call("XTestFakeButtonEvent", c_uint(number), int(pressed), c_ulong(0))
        self._display.flush()

    def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """Scroll; up and right are positive."""
        towards, back = (7, 6) if horizontal else (4, 5)
        for _ in range(abs(clicks)):
            for pressed in (True, False):
                self.button(towards if clicks > 0 else back, pressed=pressed)
