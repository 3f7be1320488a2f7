"""The module `pyautogui` inside a machine: functions for mouse, keyboard and screen, through XTEST.

The package of that name needs Tk, Pillow, Xlib and five more packages and takes seconds to import under emulation. This module
has the same names, arguments and pauses for everything that OSWorld's agents use. Functions that search images on the screen or
show dialogs are missing. It connects to the display at the first use, so that a process that has imported it may fork.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.guest.desktop import x11
from paragent.guest.desktop.input import BUTTONS, KEYBOARD_KEYS, Keyboard, Mouse, UnknownKey
from paragent.guest.desktop.screen import screenshot as _take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__version__ = "0.9.54"
"""The version of the package that this module replaces."""

PAUSE = 0.1
"""Seconds after every call, as in the package."""
FAILSAFE = True
"""Whether moving the pointer into a corner stops the program."""
MINIMUM_DURATION = 0.1
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"
KEY_NAMES = KEYBOARD_KEYS
_DRAG_SECONDS = 0.0


class PyAutoGUIException(Exception):
    """Base class of the errors of this module."""


class FailSafeException(PyAutoGUIException):
    """The pointer is in a corner of the screen, which stops the program."""


class Point(NamedTuple):
    """A point on the screen."""

    x: int
    y: int


class Size(NamedTuple):
    """A width and a height."""

    width: int
    height: int


_keyboards: dict[str, Keyboard] = {}


def _keyboard() -> Keyboard:
    display = x11.connect()
    if display.name not in _keyboards:
        _keyboards[display.name] = Keyboard(display)
    return _keyboards[display.name]


def _mouse() -> Mouse:
    return Mouse(x11.connect())


def failSafeCheck() -> None:
    """Raise FailSafeException if the pointer is in a corner and FAILSAFE is true."""
    if not FAILSAFE:
        return
    width, height = size()
    if tuple(position()) in {(0, 0), (0, height - 1), (width - 1, 0), (width - 1, height - 1)}:
        raise FailSafeException("the pointer is in a corner of the screen; pyautogui.FAILSAFE = False allows that")


@contextlib.contextmanager
def _one_call(pause: bool = True) -> Iterator[None]:
    failSafeCheck()
    yield
    if pause and PAUSE:
        time.sleep(PAUSE)


def size() -> Size:
    """Return the size of the screen."""
    return Size(*x11.connect().size)


def resolution() -> Size:
    """Return the size of the screen."""
    return size()


def position(x: int | None = None, y: int | None = None) -> Point:
    """Return the position of the pointer; given coordinates replace its own."""
    here = x11.connect().pointer()
    return Point(here[0] if x is None else int(x), here[1] if y is None else int(y))


def onScreen(x: Any, y: Any = None) -> bool:
    """Return whether a point is on the screen."""
    point = _point(x, y)
    width, height = size()
    return 0 <= point.x < width and 0 <= point.y < height


def _point(x: Any, y: Any) -> Point:
    if isinstance(x, list | tuple):
        x, y = x[0], x[1]
    return position(x, y)


# --- mouse --------------------------------------------------------------------------------------------------------------


def moveTo(x: Any = None, y: Any = None, duration: float = 0.0, tween: Any = None, **_: Any) -> None:
    """Move the pointer to a point."""
    with _one_call():
        _mouse().move(*_point(x, y), duration, tween)


def moveRel(xOffset: Any = None, yOffset: Any = None, duration: float = 0.0, tween: Any = None, **_: Any) -> None:
    """Move the pointer by some pixels."""
    if isinstance(xOffset, list | tuple):
        xOffset, yOffset = xOffset[0], xOffset[1]
    with _one_call():
        here = position()
        _mouse().move(here.x + (xOffset or 0), here.y + (yOffset or 0), duration, tween)


def mouseDown(x: Any = None, y: Any = None, button: Any = PRIMARY, duration: float = 0.0, **_: Any) -> None:
    """Press a button without releasing it."""
    _press(x, y, button, duration, (True,))


def mouseUp(x: Any = None, y: Any = None, button: Any = PRIMARY, duration: float = 0.0, **_: Any) -> None:
    """Release a button."""
    _press(x, y, button, duration, (False,))


def _press(x: Any, y: Any, button: Any, duration: float, presses: Sequence[bool]) -> None:
    number = _button(button)
    with _one_call():
        mouse = _mouse()
        if x is not None or y is not None:
            mouse.move(*_point(x, y), duration)
        for pressed in presses:
            mouse.button(number, pressed=pressed)


def _button(button: Any) -> int:
    number = BUTTONS.get(button.lower() if isinstance(button, str) else button)
    if number is None:
        raise PyAutoGUIException(f"there is no button {button!r}; buttons: left, middle, right, 1, 2, 3")
    return number


def click(
    x: Any = None,
    y: Any = None,
    clicks: int = 1,
    interval: float = 0.0,
    button: Any = PRIMARY,
    duration: float = 0.0,
    tween: Any = None,
    **_: Any,
) -> None:
    """Click at a point, or at the position of the pointer."""
    number = _button(button)
    with _one_call():
        mouse = _mouse()
        if x is not None or y is not None:
            mouse.move(*_point(x, y), duration, tween)
        for _unused in range(clicks):
            for pressed in (True, False):
                mouse.button(number, pressed=pressed)
            time.sleep(interval)


def leftClick(x: Any = None, y: Any = None, interval: float = 0.0, duration: float = 0.0, **_: Any) -> None:
    """Click with the left button."""
    click(x, y, 1, interval, LEFT, duration)


def rightClick(x: Any = None, y: Any = None, interval: float = 0.0, duration: float = 0.0, **_: Any) -> None:
    """Click with the right button."""
    click(x, y, 1, interval, RIGHT, duration)


def middleClick(x: Any = None, y: Any = None, interval: float = 0.0, duration: float = 0.0, **_: Any) -> None:
    """Click with the middle button."""
    click(x, y, 1, interval, MIDDLE, duration)


def doubleClick(
    x: Any = None, y: Any = None, interval: float = 0.0, button: Any = LEFT, duration: float = 0.0, **_: Any
) -> None:
    """Click twice."""
    click(x, y, 2, interval, button, duration)


def tripleClick(
    x: Any = None, y: Any = None, interval: float = 0.0, button: Any = LEFT, duration: float = 0.0, **_: Any
) -> None:
    """Click three times."""
    click(x, y, 3, interval, button, duration)


def dragTo(
    x: Any = None,
    y: Any = None,
    duration: float = _DRAG_SECONDS,
    tween: Any = None,
    button: Any = PRIMARY,
    mouseDownUp: bool = True,
    **_: Any,
) -> None:
    """Move to a point with a pressed button."""
    number, target = _button(button), _point(x, y)
    with _one_call():
        mouse = _mouse()
        if mouseDownUp:
            mouse.button(number, pressed=True)
        # Programs recognize a drag only if they see the pointer move.
        mouse.move(*target, max(duration, 2 * MINIMUM_DURATION), tween)
        if mouseDownUp:
            mouse.button(number, pressed=False)


def dragRel(
    xOffset: Any = 0,
    yOffset: Any = 0,
    duration: float = _DRAG_SECONDS,
    tween: Any = None,
    button: Any = PRIMARY,
    mouseDownUp: bool = True,
    **_: Any,
) -> None:
    """Move by some pixels with a pressed button."""
    if isinstance(xOffset, list | tuple):
        xOffset, yOffset = xOffset[0], xOffset[1]
    here = position()
    dragTo(here.x + xOffset, here.y + (yOffset or 0), duration, tween, button, mouseDownUp)


def scroll(clicks: float, x: Any = None, y: Any = None, **_: Any) -> None:
    """Scroll vertically; up is positive."""
    _turn(clicks, x, y, horizontal=False)


def hscroll(clicks: float, x: Any = None, y: Any = None, **_: Any) -> None:
    """Scroll horizontally; right is positive."""
    _turn(clicks, x, y, horizontal=True)


def _turn(clicks: float, x: Any, y: Any, *, horizontal: bool) -> None:
    with _one_call():
        mouse = _mouse()
        if x is not None or y is not None:
            mouse.move(*_point(x, y))
        mouse.scroll(int(clicks), horizontal=horizontal)


# --- keyboard -----------------------------------------------------------------------------------------------------------


def isValidKey(key: str) -> bool:
    """Return whether there is a key with this name."""
    return len(key) == 1 or key.lower() in KEYBOARD_KEYS


def keyDown(key: str, **_: Any) -> None:
    """Press a key without releasing it."""
    with _one_call():
        _ignore_unknown(_keyboard().down, key)


def keyUp(key: str, **_: Any) -> None:
    """Release a key."""
    with _one_call():
        _ignore_unknown(_keyboard().up, key)


def press(keys: str | Iterable[str], presses: int = 1, interval: float = 0.0, **_: Any) -> None:
    """Press and release a key, or several keys one after the other."""
    chosen = [keys] if isinstance(keys, str) else list(keys)
    with _one_call():
        for _unused in range(presses):
            for key in chosen:
                _ignore_unknown(_keyboard().press, key)
            time.sleep(interval)


def typewrite(message: str | Iterable[str], interval: float = 0.0, **_: Any) -> None:
    """Type a text, or keys by name."""
    with _one_call():
        for key in message:
            _ignore_unknown(_keyboard().press, key)
            time.sleep(interval)


def hotkey(*args: Any, interval: float = 0.0, **_: Any) -> None:
    """Press keys one after the other, then release them in reverse order."""
    keys = list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else list(args)
    with _one_call():
        for key in keys:
            _ignore_unknown(_keyboard().down, key)
            time.sleep(interval)
        for key in reversed(keys):
            _ignore_unknown(_keyboard().up, key)
            time.sleep(interval)


@contextlib.contextmanager
def hold(keys: str | Iterable[str], **_: Any) -> Iterator[None]:
    """Keep keys pressed during a `with` block."""
    chosen = [keys] if isinstance(keys, str) else list(keys)
    for key in chosen:
        keyDown(key)
    try:
        yield
    finally:
        for key in reversed(chosen):
            keyUp(key)


def _ignore_unknown(act: Callable[[str], None], key: str) -> None:
    """Do nothing for an unknown key, as the package does."""
    with contextlib.suppress(UnknownKey):
        act(key)


# --- screen and the rest --------------------------------------------------------------------------------------------------


def screenshot(imageFilename: str | None = None, region: Sequence[int] | None = None, **_: Any) -> Any:
    """Return the screen or a region of it (left, top, width, height) as an image of Pillow; write it to a file if one is given.

    Without Pillow, return the bytes of a PNG file of the whole screen.
    """
    data = _take(x11.connect())
    try:
        import io

        from PIL import Image  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        if imageFilename:
            with open(imageFilename, "wb") as file:
                file.write(data)
        return data
    image: Any = Image.open(io.BytesIO(data))
    image.load()
    if region is not None:
        left, top, width, height = region
        image = image.crop((left, top, left + width, top + height))
    if imageFilename:
        image.save(imageFilename)
    return image


def pixel(x: int, y: int) -> tuple[int, int, int]:
    """Return the colour of a pixel."""
    image = x11.connect().image()
    at = (int(y) * image.width + int(x)) * 4
    blue, green, red = image.pixels[at : at + 3]
    return red, green, blue


def pixelMatchesColor(x: int, y: int, expected: Sequence[int], tolerance: int = 0) -> bool:
    """Return whether a pixel has a colour within a tolerance."""
    return all(abs(seen - wanted) <= tolerance for seen, wanted in zip(pixel(x, y), expected, strict=False))


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def countdown(seconds: int) -> None:
    """Wait."""
    time.sleep(seconds)


def linear(n: float) -> float:
    """Constant speed."""
    return n


def easeInQuad(n: float) -> float:
    """Start slowly."""
    return n * n


def easeOutQuad(n: float) -> float:
    """End slowly."""
    return -n * (n - 2)


def easeInOutQuad(n: float) -> float:
    """Start and end slowly."""
    return 2 * n * n if n < 0.5 else 1 - 2 * (1 - n) ** 2


def easeInBounce(n: float) -> float:
    """Bounce at the start."""
    return 1 - easeOutBounce(1 - n)


def easeInElastic(n: float) -> float:
    """Oscillate at the start."""
    return 1 - easeOutElastic(1 - n)


def easeOutBounce(n: float) -> float:
    """Bounce at the end."""
    for begin, middle, height in ((1, 0.0, 0.0), (2, 1.5, 0.75), (2.5, 2.25, 0.9375)):
        if n < begin / 2.75:
            n -= middle / 2.75
            return 7.5625 * n * n + height
    n -= 2.625 / 2.75
    return 7.5625 * n * n + 0.984375


def easeOutElastic(n: float) -> float:
    """Oscillate at the end."""
    period = 0.3
    return 2 ** (-10 * n) * math.sin((n - period / 4) * 2 * math.pi / period) + 1


move = moveRel
drag = dragRel
write = typewrite
vscroll = scroll
