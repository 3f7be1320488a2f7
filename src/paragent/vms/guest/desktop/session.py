"""The desktop itself: an X server, a message bus, a window manager, a panel, and the applications that are open at first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from paragent.vms.guest.desktop import x11
from paragent.vms.guest.desktop.accessible import NoAccessibility
from paragent.vms.guest.desktop.applications import open_all
from paragent.vms.guest.desktop.tree import Observer
from paragent.vms.guest.desktop.wallpaper import Wallpaper

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SessionFailed", "become", "environment", "start_display", "start_session"]

_DISPLAY_SECONDS = 60.0
"""For an X server to start, under emulation."""
_MANAGER_SECONDS = 60.0
_POLL = 0.02
_FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Videos", ".config/gtk-3.0")
_GTK = """[Settings]
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-theme-name=Adwaita
gtk-icon-theme-name=Adwaita
gtk-font-name=DejaVu Sans 10
"""
"""Nothing moves by itself: two desktops that are in the same state show the same pixels."""
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
"""Its colours cover the wallpaper: how a panel that can be seen through looks depends on what it found when it started."""
_KEPT = ("PATH", "PYTHONPATH", "PARAGENT_RUN")
"""What a machine's programs have from those that started the machine: the last one is the mark of its owner."""
_LAUNCHERS = ("thunar", "org.xfce.mousepad", "lxterminal", "galculator", "netsurf-gtk")


class SessionFailed(Exception):
    """The desktop did not come up."""


def _bound() -> None:
    """Let the kernel end this process with its parent, even if that is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def environment(home: str) -> dict[str, str]:
    """Return what programs of the desktop find in their environment, beside the display and the bus."""
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


def become(user: str) -> None:
    """Give up root's rights for those of a user."""
    import pwd

    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{entry.pw_uid}"


def start_display(command: Sequence[str]) -> str:
    """Start an X server that chooses its own number and return its name, as `:7`.

    Raises:
        SessionFailed: it is not installed or does not start.
    """
    if shutil.which(command[0]) is None:
        raise SessionFailed(f"{command[0]} is not installed")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*command, "-displayfd", str(writing)],
        stdin=subprocess.DEVNULL,
        pass_fds=(writing,),
        preexec_fn=_bound,
    )
    os.close(writing)
    with os.fdopen(reading) as answer:
        number = answer.readline().strip()
    if not number:
        raise SessionFailed(f"{command[0]} ended with status {process.wait(_DISPLAY_SECONDS)}")
    return f":{number}"


def start_session(home: str, applications: Sequence[str], application_seconds: float, one_by_one: bool) -> None:
    """Bring up the desktop on the display in DISPLAY; afterwards `os.environ` is that of its programs.

    Raises:
        SessionFailed: there is no bus or no window manager.
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
        Observer().tree()  # who is asked first starts the registry: that shall not be an application, which gives up early
    open_all(display, applications, home, application_seconds, one_by_one)


def _start(program: str, home: str, *arguments: str) -> None:
    if shutil.which(program) is None:
        raise SessionFailed(f"{program} is not installed")
    subprocess.Popen([program, *arguments], cwd=home, stdin=subprocess.DEVNULL, preexec_fn=_bound)


def _start_bus() -> str:
    reading, writing = os.pipe()
    address = f"unix:abstract=paragent-{os.urandom(8).hex()}"  # a file would outlive a bus that is killed
    program = shutil.which("dbus-daemon")
    if program is None:
        raise SessionFailed("dbus-daemon is not installed")
    subprocess.Popen(
        [program, "--session", "--nofork", "--nosyslog", f"--print-address={writing}", f"--address={address}"],
        stdin=subprocess.DEVNULL,
        pass_fds=(writing,),
        preexec_fn=_bound,
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
        time.sleep(_POLL)


def _start_panel(home: str) -> None:
    if shutil.which("tint2") is None:
        return
    files = [f"/usr/share/applications/{name}.desktop" for name in _LAUNCHERS]
    launchers = "\n".join(f"launcher_item_app = {path}" for path in files if os.path.exists(path))
    path = os.path.join(home, ".config/panel")
    with open(path, "w") as file:
        file.write(_PANEL.format(launchers=launchers))
    _start("tint2", home, "-c", path)
