"""X11 with ctypes: a connection to the display, and the windows of applications, found, activated and closed like `wmctrl`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_long, c_short, c_uint, c_ulong, c_ushort, c_void_p
from typing import Any, NamedTuple

__all__ = [
    "Cursor",
    "Display",
    "NoDisplay",
    "ScreenImage",
    "Window",
    "activate_window",
    "active_window",
    "close_window",
    "connect",
    "find_window",
    "windows",
]

_ALL_PLANES = 0xFFFFFFFF
_Z_PIXMAP = 2
_ANY_PROPERTY = 0
_PROPERTY_LIMIT = 1 << 16
"""Maximum number of words that are read of a property; a list of windows has some dozen."""


class NoDisplay(Exception):
    """There is no X server at the address in DISPLAY, or a library of X is missing."""


class _Image(Structure):
    _fields_ = (
        ("width", c_int),
        ("height", c_int),
        ("xoffset", c_int),
        ("format", c_int),
        ("data", c_void_p),
        ("byte_order", c_int),
        ("bitmap_unit", c_int),
        ("bitmap_bit_order", c_int),
        ("bitmap_pad", c_int),
        ("depth", c_int),
        ("bytes_per_line", c_int),
    )


class _CursorImage(Structure):
    _fields_ = (
        ("x", c_short),
        ("y", c_short),
        ("width", c_ushort),
        ("height", c_ushort),
        ("xhot", c_ushort),
        ("yhot", c_ushort),
        ("serial", c_ulong),
        ("pixels", POINTER(c_ulong)),
    )


class _Attributes(Structure):
    """The first fields of XWindowAttributes, and space for the others."""

    _fields_ = (("x", c_int), ("y", c_int), ("width", c_int), ("height", c_int), ("rest", ctypes.c_char * 256))


class _ClientMessage(Structure):
    """XClientMessageEvent with 32-bit data, in a union of 192 bytes."""

    _fields_ = (
        ("type", c_int),
        ("serial", c_ulong),
        ("send_event", c_int),
        ("display", c_void_p),
        ("window", c_ulong),
        ("message_type", c_ulong),
        ("format", c_int),
        ("data", c_long * 5),
        ("padding", ctypes.c_char * 96),
    )


class ScreenImage:
    """The contents of the screen: rows of pixels of four bytes: blue, green, red and an unused one."""

    def __init__(self, width: int, height: int, pixels: bytearray) -> None:
        self.width, self.height, self.pixels = width, height, pixels


class Cursor:
    """The image of the pointer and the position of its upper left corner; pixels are 0xAARRGGBB, premultiplied."""

    def __init__(self, x: int, y: int, width: int, height: int, pixels: list[int]) -> None:
        self.x, self.y, self.width, self.height, self.pixels = x, y, width, height, pixels


def _ignore(_display: int, _event: int) -> int:
    """Ignore an error, such as a window that has been closed; without a handler, Xlib ends the process."""
    return 0


_ON_ERROR = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(_ignore)


def _library(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise NoDisplay(f"{name}: {error}") from None


_POINTER_RESULTS = {"XOpenDisplay", "XGetImage", "XFixesGetCursorImage"}
_LONG_RESULTS = {"XDefaultRootWindow", "XInternAtom", "XStringToKeysym", "XkbKeycodeToKeysym"}


class Display:
    """A connection to an X server. Methods may be called from any thread.

    Raises:
        NoDisplay: (constructor) there is no X server at `name`.
    """

    def __init__(self, name: str) -> None:
        self._x, self._test, self._fixes = (_library(f"lib{n}") for n in ("X11.so.6", "Xtst.so.6", "Xfixes.so.3"))
        for library in (self._x, self._fixes):
            for function in _POINTER_RESULTS:
                with contextlib.suppress(AttributeError):
                    getattr(library, function).restype = c_void_p
        for function in _LONG_RESULTS:
            getattr(self._x, function).restype = c_ulong
        self._x.XSetErrorHandler(_ON_ERROR)
        self.name = name
        self.lock = threading.RLock()  # a connection of Xlib serves one thread at a time
        handle = self._x.XOpenDisplay(c_char_p(name.encode()))
        if not handle:
            raise NoDisplay(f"there is no display at {name!r}")
        self._display = c_void_p(handle)
        self.root = int(self._x.XDefaultRootWindow(self._display))

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of Xlib or of an extension with this connection as its first argument."""
        libraries = {"XT": self._test, "XF": self._fixes}
        library = libraries.get(function[:2], self._x)
        if function.startswith(("XFree", "XFlush", "XFetch")):
            library = self._x
        with self.lock:
            return getattr(library, function)(self._display, *arguments)

    def flush(self) -> None:
        """Return when the server has processed all requests."""
        self.call("XSync", 0)

    def close(self) -> None:
        """Close the connection."""
        self.call("XCloseDisplay")

    # --- the screen -------------------------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the screen."""
        _, _, width, height = self.geometry(self.root)
        return width, height

    def image(self) -> ScreenImage:
        """Return the contents of the screen, without the pointer.

        Raises:
            NoDisplay: the server returns no image.
        """
        with self.lock:
            width, height = self.size
            area = (0, 0, c_uint(width), c_uint(height), c_ulong(_ALL_PLANES), _Z_PIXMAP)
            address = self.call("XGetImage", c_ulong(self.root), *area)
            if not address:
                raise NoDisplay("the X server returns no image of the screen")
            image = ctypes.cast(c_void_p(address), POINTER(_Image)).contents
            size, line = image.bytes_per_line * image.height, image.width * 4
            pixels = bytearray((ctypes.c_char * size).from_address(image.data))
            self._x.XFree(c_void_p(image.data))
            self._x.XFree(c_void_p(address))
        if size != line * height:
            stride = size // height
            pixels = bytearray(b"".join(pixels[row * stride : row * stride + line] for row in range(height)))
        return ScreenImage(width, height, pixels)

    def cursor(self) -> Cursor | None:
        """Return the image of the pointer, or None if it has none."""
        with self.lock:
            address = self.call("XFixesGetCursorImage")
            if not address:
                return None
            image = ctypes.cast(c_void_p(address), POINTER(_CursorImage)).contents
            pixels = [image.pixels[i] & 0xFFFFFFFF for i in range(image.width * image.height)]
            found = Cursor(image.x - image.xhot, image.y - image.yhot, image.width, image.height, pixels)
            self._x.XFree(c_void_p(address))
            return found

    def pointer(self) -> tuple[int, int]:
        """Return the position of the pointer."""
        root, child, mask = c_ulong(), c_ulong(), c_uint()
        x, y, unused_x, unused_y = c_int(), c_int(), c_int(), c_int()
        places = (byref(x), byref(y), byref(unused_x), byref(unused_y))
        self.call("XQueryPointer", c_ulong(self.root), byref(root), byref(child), *places, byref(mask))
        return x.value, y.value

    def keysym(self, name: str) -> int:
        """Return the keysym with this name."""
        return int(self._x.XStringToKeysym(c_char_p(name.encode())))

    # --- windows ----------------------------------------------------------------------------------------------------

    def atom(self, name: str) -> int:
        """Return the atom with this name."""
        return int(self.call("XInternAtom", c_char_p(name.encode()), 0))

    def property(self, window: int, name: str) -> tuple[int, bytes]:
        """Return the format (8, 16 or 32; 0: no such property) and the bytes of a property of a window; words take 8 bytes."""
        kind, form, count, left = c_ulong(), c_int(), c_ulong(), c_ulong()
        data = c_void_p()
        results = (byref(kind), byref(form), byref(count), byref(left), byref(data))
        with self.lock:
            chosen = (c_ulong(window), c_ulong(self.atom(name)), c_long(0), c_long(_PROPERTY_LIMIT), 0)
            self.call("XGetWindowProperty", *chosen, c_ulong(_ANY_PROPERTY), *results)
            if not data.value:
                return 0, b""
            size = count.value * {8: 1, 16: 2, 32: 8}.get(form.value, 0)
            found = ctypes.string_at(data.value, size)
            self._x.XFree(data)
            return form.value, found

    def words(self, window: int, name: str) -> list[int]:
        """Return a property that is a list of integers."""
        form, data = self.property(window, name)
        return list(memoryview(data).cast("L")) if form == 32 else []

    def geometry(self, window: int) -> tuple[int, int, int, int]:
        """Return x, y, width and height of a window on the screen; zeros if it does not exist."""
        attributes, child = _Attributes(), c_ulong()
        x, y = c_int(), c_int()
        with self.lock:
            if not self.call("XGetWindowAttributes", c_ulong(window), byref(attributes)):
                return 0, 0, 0, 0
            target = (c_ulong(window), c_ulong(self.root), 0, 0, byref(x), byref(y), byref(child))
            self.call("XTranslateCoordinates", *target)
        return x.value, y.value, attributes.width, attributes.height

    def send_to_manager(self, window: int, message: str, *data: int) -> None:
        """Send a client message about a window to the window manager."""
        event = _ClientMessage(type=33, send_event=1, window=window, message_type=self.atom(message), format=32)
        for index, value in enumerate(data):
            event.data[index] = value
        redirect_and_notify = 0x180000  # SubstructureRedirectMask | SubstructureNotifyMask
        self.call("XSendEvent", c_ulong(self.root), 0, c_long(redirect_and_notify), byref(event))
        self.flush()


_shared: dict[str, Display] = {}
_sharing = threading.Lock()  # protects _shared


def connect() -> Display:
    """Return this process's connection to the display in DISPLAY.

    Raises:
        NoDisplay: there is no such display.
    """
    name = os.environ.get("DISPLAY", "")
    with _sharing:
        if name not in _shared:
            _shared[name] = Display(name)
        return _shared[name]


_PAGER = 2
"""The source of a request: window managers obey pagers."""


class Window(NamedTuple):
    """A window of an application."""

    id: int
    title: str
    window_class: str
    """`instance.Class`, as wmctrl shows it."""
    pid: int


def windows(display: Display) -> list[Window]:
    """Return the windows of applications, oldest first."""
    return [_describe(display, number) for number in display.words(display.root, "_NET_CLIENT_LIST")]


def _describe(display: Display, number: int) -> Window:
    _, title = display.property(number, "_NET_WM_NAME")
    if not title:
        _, title = display.property(number, "WM_NAME")
    _, class_parts = display.property(number, "WM_CLASS")
    pid = display.words(number, "_NET_WM_PID")
    window_class = ".".join(part.decode(errors="replace") for part in class_parts.split(b"\0") if part)
    return Window(number, title.decode(errors="replace"), window_class, pid[0] if pid else 0)


def find_window(display: Display, name: str, *, strict: bool, by_class: bool) -> Window | None:
    """Return the first window with this title or class: equal if `strict`, else containing it, ignoring case."""
    for window in windows(display):
        text = window.window_class if by_class else window.title
        if text == name if strict else name.lower() in text.lower():
            return window
    return None


def active_window(display: Display) -> Window | None:
    """Return the window with the keyboard focus."""
    numbers = display.words(display.root, "_NET_ACTIVE_WINDOW")
    return _describe(display, numbers[0]) if numbers and numbers[0] else None


def activate_window(display: Display, window: Window) -> None:
    """Raise a window and give it the keyboard focus."""
    display.send_to_manager(window.id, "_NET_ACTIVE_WINDOW", _PAGER, 0, 0)


def close_window(display: Display, window: Window) -> None:
    """Ask a window to close, like a click on its close button."""
    display.send_to_manager(window.id, "_NET_CLOSE_WINDOW", 0, _PAGER)
