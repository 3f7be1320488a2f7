"""Windows by name or class: found, brought to the front, closed, measured; as `wmctrl` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paragent.guest.desktop.x11 import Display

__all__ = ["Window", "activate", "active_window", "close", "find", "windows"]

_FROM_A_PAGER = 2
"""Who asks the window manager: a pager is obeyed."""


class Window(NamedTuple):
    """A window of an application."""

    id: int
    title: str
    kind: str
    """Its class as `instance.Class`, as wmctrl shows it."""
    pid: int


def windows(display: Display) -> list[Window]:
    """Return the windows of applications, oldest first."""
    return [_describe(display, number) for number in display.words(display.root, "_NET_CLIENT_LIST")]


def _describe(display: Display, number: int) -> Window:
    _, title = display.property(number, "_NET_WM_NAME")
    if not title:
        _, title = display.property(number, "WM_NAME")
    _, kind = display.property(number, "WM_CLASS")
    pid = display.words(number, "_NET_WM_PID")
    named = ".".join(part.decode(errors="replace") for part in kind.split(b"\0") if part)
    return Window(number, title.decode(errors="replace"), named, pid[0] if pid else 0)


def find(display: Display, name: str, *, strict: bool, by_class: bool) -> Window | None:
    """Return the first window of that name or class: the whole of it if `strict`, else a part in any case."""
    for window in windows(display):
        text = window.kind if by_class else window.title
        if text == name if strict else name.lower() in text.lower():
            return window
    return None


def active_window(display: Display) -> Window | None:
    """Return the window that gets what is typed."""
    numbers = display.words(display.root, "_NET_ACTIVE_WINDOW")
    return _describe(display, numbers[0]) if numbers and numbers[0] else None


def activate(display: Display, window: Window) -> None:
    """Bring a window to the front and give it the keyboard."""
    display.tell_manager(window.id, "_NET_ACTIVE_WINDOW", _FROM_A_PAGER, 0, 0)


def close(display: Display, window: Window) -> None:
    """Ask a window to close, as a click on its cross does."""
    display.tell_manager(window.id, "_NET_CLOSE_WINDOW", 0, _FROM_A_PAGER)
