"""What programs get that `import pyautogui` inside a machine: its functions for mouse, keyboard and screen, by XTEST.

The package of that name needs Tk, Pillow, Xlib and five more packages and takes seconds to import under emulation. This one
has the same names, arguments and pauses for all that OSWorld's agents send; what looks for pictures on the screen or shows
dialogues is not there. Nothing connects to the display before it is used, so a process that has it imported may fork.
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
"""Of the package whose functions these are."""

PAUSE = 0.1
"""Seconds after every call, as in the package."""
FAILSAFE = True
"""Whether a pointer in a corner stops the program."""
MINIMUM_DURATION = 0.1
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"
KEY_NAMES = KEYBOARD_KEYS
_SECONDS_OF_A_DRAG = 0.0


class PyAutoGUIException(Exception):
    """What this module raises."""


class FailSafeException(PyAutoGUIException):
    """The pointer is in a corner of the screen, which means that a person wants to stop the program."""


class Point(NamedTuple):
    """A place on the screen."""

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
    """Raise FailSafeException if the pointer is in a corner and nobody switched that off."""
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
    """Return where the pointer is, with what is given instead."""
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
    """Press a button and keep it down."""
    _press(x, y, button, duration, (True,))


def mouseUp(x: Any = None, y: Any = None, button: Any = PRIMARY, duration: float = 0.0, **_: Any) -> None:
    """Let a button go."""
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
        raise PyAutoGUIException(f"there is no button {button!r}; there are left, middle, right, 1, 2 and 3")
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
    """Click at a point, or where the pointer is."""
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
    duration: float = _SECONDS_OF_A_DRAG,
    tween: Any = None,
    button: Any = PRIMARY,
    mouseDownUp: bool = True,
    **_: Any,
) -> None:
    """Move to a point with a button down."""
    number, target = _button(button), _point(x, y)
    with _one_call():
        mouse = _mouse()
        if mouseDownUp:
            mouse.button(number, pressed=True)
        # Programs take it for a drag only if they see the pointer on its way.
        mouse.move(*target, max(duration, 2 * MINIMUM_DURATION), tween)
        if mouseDownUp:
            mouse.button(number, pressed=False)


def dragRel(
    xOffset: Any = 0,
    yOffset: Any = 0,
    duration: float = _SECONDS_OF_A_DRAG,
    tween: Any = None,
    button: Any = PRIMARY,
    mouseDownUp: bool = True,
    **_: Any,
) -> None:
    """Move by some pixels with a button down."""
    if isinstance(xOffset, list | tuple):
        xOffset, yOffset = xOffset[0], xOffset[1]
    here = position()
    dragTo(here.x + xOffset, here.y + (yOffset or 0), duration, tween, button, mouseDownUp)


def scroll(clicks: float, x: Any = None, y: Any = None, **_: Any) -> None:
    """Turn the wheel: up is positive."""
    _turn(clicks, x, y, horizontal=False)


def hscroll(clicks: float, x: Any = None, y: Any = None, **_: Any) -> None:
    """Scroll sideways: to the right is positive."""
    _turn(clicks, x, y, horizontal=True)


def _turn(clicks: float, x: Any, y: Any, *, horizontal: bool) -> None:
    with _one_call():
        mouse = _mouse()
        if x is not None or y is not None:
            mouse.move(*_point(x, y))
        mouse.scroll(int(clicks), horizontal=horizontal)


# --- keyboard -----------------------------------------------------------------------------------------------------------


def isValidKey(key: str) -> bool:
    """Return whether a key of that name can be pressed."""
    return len(key) == 1 or key.lower() in KEYBOARD_KEYS


def keyDown(key: str, **_: Any) -> None:
    """Press a key and keep it down."""
    with _one_call():
        _ignore_unknown(_keyboard().down, key)


def keyUp(key: str, **_: Any) -> None:
    """Let a key go."""
    with _one_call():
        _ignore_unknown(_keyboard().up, key)


def press(keys: str | Iterable[str], presses: int = 1, interval: float = 0.0, **_: Any) -> None:
    """Press a key, or several one after the other, and let them go."""
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
    """Press keys one after the other, then let them go from the last to the first."""
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
    """Keep keys down for the length of a `with`."""
    chosen = [keys] if isinstance(keys, str) else list(keys)
    for key in chosen:
        keyDown(key)
    try:
        yield
    finally:
        for key in reversed(chosen):
            keyUp(key)


def _ignore_unknown(act: Callable[[str], None], key: str) -> None:
    """The package does nothing for a key that it does not know."""
    with contextlib.suppress(UnknownKey):
        act(key)


# --- screen and the rest --------------------------------------------------------------------------------------------------


def screenshot(imageFilename: str | None = None, region: Sequence[int] | None = None, **_: Any) -> Any:
    """Return the screen, or a region of it (left, top, width, height), as a picture of Pillow; write it to a file if asked to.

    Without Pillow it is the whole screen as the bytes of a PNG file.
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
    picture: Any = Image.open(io.BytesIO(data))
    picture.load()
    if region is not None:
        left, top, width, height = region
        picture = picture.crop((left, top, left + width, top + height))
    if imageFilename:
        picture.save(imageFilename)
    return picture


def pixel(x: int, y: int) -> tuple[int, int, int]:
    """Return the colour of a point."""
    picture = x11.connect().picture()
    at = (int(y) * picture.width + int(x)) * 4
    blue, green, red = picture.pixels[at : at + 3]
    return red, green, blue


def pixelMatchesColor(x: int, y: int, expected: Sequence[int], tolerance: int = 0) -> bool:
    """Return whether a point has a colour, more or less."""
    return all(abs(seen - wanted) <= tolerance for seen, wanted in zip(pixel(x, y), expected, strict=False))


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def countdown(seconds: int) -> None:
    """Wait."""
    time.sleep(seconds)


def linear(n: float) -> float:
    """Move at the same speed all the way."""
    return n


def easeInQuad(n: float) -> float:
    """Begin slowly."""
    return n * n


def easeOutQuad(n: float) -> float:
    """End slowly."""
    return -n * (n - 2)


def easeInOutQuad(n: float) -> float:
    """Begin and end slowly."""
    return 2 * n * n if n < 0.5 else 1 - 2 * (1 - n) ** 2


def easeInBounce(n: float) -> float:
    """Bounce at the beginning."""
    return 1 - easeOutBounce(1 - n)


def easeInElastic(n: float) -> float:
    """Swing at the beginning."""
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
    """Swing at the end."""
    period = 0.3
    return 2 ** (-10 * n) * math.sin((n - period / 4) * 2 * math.pi / period) + 1


move = moveRel
drag = dragRel
write = typewrite
vscroll = scroll
