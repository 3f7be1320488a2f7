"""The desktop session: user, X server, message bus, window manager, panel, wallpaper and the applications at the start."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from ctypes import c_ulong
from typing import TYPE_CHECKING, NamedTuple

from paragent.guest.agent import set_clock
from paragent.guest.desktop import x11
from paragent.guest.desktop.accessibility import AccessibilityTree, NoAccessibility
from paragent.guest.desktop.screen import as_png
from paragent.guest.desktop.x11 import ScreenImage, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.guest.desktop.x11 import Display, Window

__all__ = [
    "APPLICATIONS",
    "Application",
    "SessionFailed",
    "Wallpaper",
    "become_user",
    "clock_request",
    "environment",
    "open_applications",
    "start_clock_process",
    "start_display",
    "start_session",
]


_POLL, _POLL_GROWTH, _POLL_MAXIMUM = 0.05, 1.2, 1.0
"""Seconds between checks of the windows, and how they grow: each check takes CPU time from the starting applications."""
_MOVE_ATTEMPTS = 8
"""How often a window is moved. Some apply the position to their frame and never reach it."""
_MOVE_AND_RESIZE = 0x1F0A
"""Flags of _NET_MOVERESIZE_WINDOW: x, y, width and height are set by an application, relative to the upper left corner."""


class Application(NamedTuple):
    """A program with a window."""

    name: str
    programs: tuple[str, ...]
    """Names of programs; the first installed one is used."""
    place: tuple[float, float, float, float]
    """Left, top, width and height of its window, as fractions of the screen."""


APPLICATIONS = (
    Application("files", ("thunar", "pcmanfm"), (0.03, 0.05, 0.44, 0.40)),
    Application("editor", ("mousepad",), (0.50, 0.05, 0.47, 0.46)),
    Application("terminal", ("lxterminal", "xterm"), (0.03, 0.51, 0.44, 0.40)),
    Application("calculator", ("galculator",), (0.62, 0.57, 0.24, 0.34)),
)
"""One of each kind, so that later starts are fast: under emulation the first window of a program takes up to 15 seconds."""


def open_applications(display: Display, names: Sequence[str], home: str, seconds: float, one_by_one: bool) -> None:
    """Start applications, wait for their windows and move them to their places.

    An application that is not installed, or that shows no window within `seconds`, is left out.

    Args:
        display: the display.
        names: names of APPLICATIONS.
        home: the folder in which they start.
        seconds: time limit for all of them together, or for each if they start one by one.
        one_by_one: whether each starts after the window of the previous one appeared. On a slow machine, programs that start
            at the same time exceed their time limit for the message bus.
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
            program = next((name for name in missing if name in window.window_class.lower()), None)
            if program is None:
                continue
            asked[window.id] = asked.get(window.id, 0) + 1
            if _move(display, window, missing[program].place) or asked[window.id] > _MOVE_ATTEMPTS:
                del missing[program]
        time.sleep(pause)
        pause = min(pause * _POLL_GROWTH, _POLL_MAXIMUM)


def _move(display: Display, window: Window, place: tuple[float, float, float, float]) -> bool:
    """Move a window to its place; return whether it is there. A new window may ignore the first requests."""
    width, height = display.size
    left, top, wide, high = place
    wanted = (int(left * width), int(top * height), int(wide * width), int(high * height))
    if display.geometry(window.id)[:2] == wanted[:2]:
        return True
    display.send_to_manager(window.id, "_NET_MOVERESIZE_WINDOW", _MOVE_AND_RESIZE, *wanted)
    return False


_TOP, _BOTTOM = (0x3B, 0x6E, 0x8F), (0x16, 0x2B, 0x3E)
"""Colours (red, green, blue) of the default wallpaper."""
_SECONDS = 60.0
"""For showing an image, under emulation."""


class Wallpaper:
    """The wallpaper of a display; the path of its file is stored in the user's folder."""

    def __init__(self, display: Display, home: str) -> None:
        self._display = display
        self._default = os.path.join(home, ".local/share/backgrounds/default.png")
        self._chosen = os.path.join(home, ".config/wallpaper")

    @property
    def path(self) -> str:
        """The path of the current image."""
        try:
            with open(self._chosen) as file:
                return file.read().strip()
        except OSError:
            return self._default

    def show_default(self) -> None:
        """Show the default wallpaper; a plain colour if there is no program that shows images."""
        os.makedirs(os.path.dirname(self._default), exist_ok=True)
        with open(self._default, "wb") as file:
            file.write(as_png(_gradient(*self._display.size)))
        if not self._show(self._default):
            number = _BOTTOM[0] << 16 | _BOTTOM[1] << 8 | _BOTTOM[2]
            self._display.call("XSetWindowBackground", c_ulong(self._display.root), c_ulong(number))
            self._display.call("XClearWindow", c_ulong(self._display.root))
            self._display.flush()

    def change(self, path: str) -> bool:
        """Show an image from now on; return whether it could be shown."""
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


def _gradient(width: int, height: int) -> ScreenImage:
    pixels = bytearray()
    for row in range(height):
        red, green, blue = (top + (low - top) * row // height for top, low in zip(_TOP, _BOTTOM, strict=True))
        pixels += bytes((blue, green, red, 0)) * width
    return ScreenImage(width, height, pixels)


_DISPLAY_SECONDS = 60.0
"""For an X server to start, under emulation."""
_MANAGER_SECONDS = 60.0
_SESSION_POLL = 0.02
_FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Videos", ".config/gtk-3.0")
_GTK = """[Settings]
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-theme-name=Adwaita
gtk-icon-theme-name=Adwaita
gtk-font-name=DejaVu Sans 10
"""
"""No blinking and no animations, so that two desktops in the same state show the same pixels."""
_PANEL = """rounded = 0
border_width = 0
background_color = #14222c 100
border_color = #14222c 100
rounded = 4
border_width = 0
background_color = #3a6881 100
border_color = #3a6881 100
panel_position = bottom center horizontal
panel_size = 100% 34
panel_background_id = 1
panel_items = LT
taskbar_mode = single_desktop
task_maximum_size = 220 34
task_font = DejaVu Sans 10
task_font_color = #ffffff 90
task_active_background_id = 2
task_active_font_color = #ffffff 100
launcher_padding = 6 4 6
launcher_icon_size = 24
launcher_icon_theme = Adwaita
launcher_tooltip = 0
{launchers}
"""
"""Opaque colours: the look of a transparent panel depends on what was on the screen when it started."""
_KEPT = ("PATH", "PYTHONPATH", "PARAGENT_OWNER")
"""Variables that the desktop's programs inherit; the last one identifies the owner of the machine's processes."""
_LAUNCHERS = ("thunar", "org.xfce.mousepad", "lxterminal", "galculator", "netsurf-gtk")


class SessionFailed(Exception):
    """The desktop could not be started."""


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, even if the parent is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def environment(home: str) -> dict[str, str]:
    """Return the environment of the desktop's programs, without the display and the bus."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "HOME": home,
        "LANG": "C.UTF-8",
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "GSETTINGS_BACKEND": "keyfile",
        "GTK_OVERLAY_SCROLLING": "0",
        "LIBGL_ALWAYS_SOFTWARE": "1",
        "XDG_CURRENT_DESKTOP": "openbox",
    }


def start_clock_process(user: str) -> int:
    """Fork: return as `user`, with a file descriptor for `clock_request`s; the parent stays root and never returns.

    Setting the clock and reseeding random numbers needs root, and the server does not run as root. The parent reads requests
    from a pipe and ends when the server has ended.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        become_user(user)
        return writing
    os.close(writing)
    with os.fdopen(reading) as requests:
        for line in requests:
            now, _, entropy = line.strip("\n").partition(" ")
            set_clock(float(now) if now else None, bytes.fromhex(entropy))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def clock_request(now: float | None, entropy: bytes) -> bytes:
    """Return a request for the process that sets the clock."""
    return f"{'' if now is None else now} {entropy.hex()}\n".encode()


def become_user(user: str) -> None:
    """Change from root to a user."""
    import pwd

    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{entry.pw_uid}"


def start_display(command: Sequence[str]) -> str:
    """Start an X server with a free display number and return the display's name, such as `:7`.

    Raises:
        SessionFailed: the X server is not installed or does not start.
    """
    if shutil.which(command[0]) is None:
        raise SessionFailed(f"{command[0]} is not installed")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*command, "-displayfd", str(writing)],
        stdin=subprocess.DEVNULL,
        pass_fds=(writing,),
        preexec_fn=_end_with_parent,
    )
    os.close(writing)
    with os.fdopen(reading) as answer:
        number = answer.readline().strip()
    if not number:
        raise SessionFailed(f"{command[0]} ended with status {process.wait(_DISPLAY_SECONDS)}")
    return f":{number}"


def start_session(home: str, applications: Sequence[str], application_seconds: float, one_by_one: bool) -> None:
    """Start the desktop on the display in DISPLAY and add the bus to `os.environ`.

    Raises:
        SessionFailed: the message bus or the window manager does not start.
        NoDisplay: the X server cannot be reached.
    """
    for folder in _FOLDERS:
        os.makedirs(os.path.join(home, folder), exist_ok=True)
    with open(os.path.join(home, ".config/gtk-3.0/settings.ini"), "w") as file:
        file.write(_GTK)
    os.environ["DBUS_SESSION_BUS_ADDRESS"] = _start_bus()
    display = x11.connect()
    _start("openbox", home)
    _wait_for_manager(display)
    Wallpaper(display, home).show_default()
    _start_panel(home)
    with contextlib.suppress(NoAccessibility):
        AccessibilityTree().xml()  # starts the registry, for which an application would not wait long enough
    open_applications(display, applications, home, application_seconds, one_by_one)


def _start(program: str, home: str, *arguments: str) -> None:
    if shutil.which(program) is None:
        raise SessionFailed(f"{program} is not installed")
    subprocess.Popen([program, *arguments], cwd=home, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)


def _start_bus() -> str:
    reading, writing = os.pipe()
    address = f"unix:abstract=paragent-{os.urandom(8).hex()}"  # a file would stay if the bus is killed
    program = shutil.which("dbus-daemon")
    if program is None:
        raise SessionFailed("dbus-daemon is not installed")
    subprocess.Popen(
        [program, "--session", "--nofork", "--nosyslog", f"--print-address={writing}", f"--address={address}"],
        stdin=subprocess.DEVNULL,
        pass_fds=(writing,),
        preexec_fn=_end_with_parent,
    )
    os.close(writing)
    with os.fdopen(reading) as answer:
        address = answer.readline().strip()
    if not address:
        raise SessionFailed("the message bus did not start")
    return address


def _wait_for_manager(display: x11.Display) -> None:
    deadline = time.monotonic() + _MANAGER_SECONDS
    while not display.words(display.root, "_NET_SUPPORTING_WM_CHECK"):
        if time.monotonic() > deadline:
            raise SessionFailed("the window manager did not start")
        time.sleep(_SESSION_POLL)


def _start_panel(home: str) -> None:
    if shutil.which("tint2") is None:
        return
    files = [f"/usr/share/applications/{name}.desktop" for name in _LAUNCHERS]
    launchers = "\n".join(f"launcher_item_app = {path}" for path in files if os.path.exists(path))
    path = os.path.join(home, ".config/panel")
    with open(path, "w") as file:
        file.write(_PANEL.format(launchers=launchers))
    _start("tint2", home, "-c", path)
