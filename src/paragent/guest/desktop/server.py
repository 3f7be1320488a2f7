"""OSWorld's guest protocol for machines with a screen, in addition to the requests of `guest/agent.py`.

===========================================  =========================================================================
GET  /screenshot                             the screen with the pointer as PNG
GET  /accessibility                          `{"AT": xml}`
GET  /terminal                               `{"output": text of the active terminal or null, "status": "success"}`
GET  /cursor_position                        `[x, y]`
POST /execute_with_verification, /setup/...  like /execute, then waits for `verification`
POST /screen_size, /window_size              `{"width", "height"}`; the latter of the form field `app_class_name`
POST /desktop_path                           `{"desktop_path"}`
POST /wallpaper                              the image
POST /setup/change_wallpaper                 `{"path"}`
POST /setup/download_file                    `{"url", "path"}`
POST /setup/open_file                        `{"path"}`; waits for its window
POST /setup/activate_window, close_window    `{"window_name", "strict", "by_class"}`
POST /start_recording, /end_recording        a recording
POST /run_python                             `{"code"}`
POST /run_bash_script                        `{"script", "timeout", "working_dir"}`
===========================================  =========================================================================
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, ClassVar

from paragent.guest.agent import COMMAND_SECONDS, BinaryAnswer, Guest, Handler, Rejected, fields_of
from paragent.guest.desktop import x11
from paragent.guest.desktop.accessibility import AccessibilityTree, NoAccessibility
from paragent.guest.desktop.fork_server import PythonForkServer
from paragent.guest.desktop.screen import Recorder, screenshot
from paragent.guest.desktop.session import Wallpaper, clock_request

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DesktopGuest", "DesktopHandler"]

_PYTHON = {"python", "python3"}
_PYTHON_SECONDS = 30.0
"""The time limit of /run_python in OSWorld's guest."""
_SCRIPT_SECONDS = 100.0
_OPEN_SECONDS = 120.0
"""For the window of an opened file to appear."""
_DOWNLOAD_SECONDS = 300.0
_DOWNLOAD_TRIES = 3
_POLL = 0.1


class DesktopGuest(Guest):
    """A machine with a screen."""

    def __init__(self, folder: str, clock: int | None = None, secret: Callable[[], str] = str) -> None:
        super().__init__(folder, clock is not None, secret)
        self._clock = clock
        """File descriptor of the process that sets the clock."""
        self.fork_server = PythonForkServer(folder)
        self.recorder = Recorder(folder)
        self.accessibility = AccessibilityTree()

    def freshen(self, now: float | None, entropy: bytes) -> None:
        if self._clock is not None:
            os.write(self._clock, clock_request(now, entropy))
        random.seed()

    def warm_up(self) -> None:
        """Execute typical requests once, so that the programs that they need are in memory."""
        screenshot(x11.connect())
        with contextlib.suppress(NoAccessibility):  # a desktop without accessibility is usable
            self.accessibility.xml()
        self.python("import pyautogui; pyautogui.position()", COMMAND_SECONDS)

    def path(self, given: str) -> str:
        """Like the agent; `~` and variables such as `$HOME` are replaced, as in OSWorld's guest."""
        return os.path.join(self.folder, os.path.expandvars(os.path.expanduser(given)))

    def run(self, fields: dict[str, Any]) -> tuple[str, str, int]:
        words = None if fields.get("shell") else _words(fields.get("command"))
        if (
            words is not None
            and len(words) == 3
            and words[0] in _PYTHON
            and words[1] == "-c"
            and self.fork_server.alive
        ):
            return self.python(words[2], float(str(fields.get("timeout") or COMMAND_SECONDS)))
        return super().run(fields)

    def start(self, fields: dict[str, Any], output: int) -> subprocess.Popen[bytes]:
        """Like the agent; words that begin with `~/` are paths in the user's folder, as in OSWorld's guest."""
        words = None if fields.get("shell") else _words(fields.get("command"))
        return super().start(fields if words is None else fields | {"command": words}, output)

    def python(self, code: str, seconds: float) -> tuple[str, str, int]:
        """Run a Python program; raises as `run`."""
        try:
            output, errors, returncode = self.fork_server.run(code, seconds)
        except TimeoutError:
            raise Rejected(500, f"Command timed out after {seconds:g} seconds") from None
        return output.decode(errors="replace"), errors.decode(errors="replace"), returncode


def _words(command: Any) -> list[str] | None:
    """Return the words of a command that runs without a shell."""
    if isinstance(command, str):
        command = shlex.split(command)
    if not isinstance(command, list):
        return None
    return [os.path.expanduser(str(word)) if str(word).startswith("~/") else str(word) for word in command]


def _opener() -> list[str]:
    """Return a command that opens a file with the application of its type.

    Raises:
        Rejected: the machine has none.
    """
    for command in (["xdg-open"], ["gio", "open"], ["mousepad"]):
        if shutil.which(command[0]):
            return command
    raise Rejected(501, "this machine has no program that opens files")


class DesktopHandler(Handler):
    """Handles the requests of one connection."""

    get_routes: ClassVar[dict[str, Any]] = {}
    post_routes: ClassVar[dict[str, Any]] = {}

    @property
    def guest(self) -> DesktopGuest:
        """The state of this machine."""
        guest = self.server.guest
        assert isinstance(guest, DesktopGuest)
        return guest

    # --- the screen -------------------------------------------------------------------------------------------------

    def screenshot(self, _: bytes) -> BinaryAnswer:
        return BinaryAnswer("image/png", screenshot(x11.connect()))

    def accessibility(self, _: bytes) -> dict[str, Any]:
        return {"AT": self.guest.accessibility.xml()}

    def terminal(self, _: bytes) -> dict[str, Any]:
        """Read the terminal only if the active window is one, because clients use this request as a liveness check."""
        front, output = x11.active_window(x11.connect()), None
        if front is not None and "term" in front.window_class.lower():
            output = self.guest.accessibility.terminal(front.window_class) or None
        return {"output": output, "status": "success"}

    def cursor_position(self, _: bytes) -> list[int]:
        return list(x11.connect().pointer())

    def screen_size(self, _: bytes) -> dict[str, Any]:
        width, height = x11.connect().size
        return {"width": width, "height": height}

    def start_recording(self, _: bytes) -> dict[str, Any]:
        self.guest.recorder.start(x11.connect().size)
        return {"status": "success", "message": "Started recording successfully."}

    def end_recording(self, _: bytes) -> BinaryAnswer:
        return BinaryAnswer("video/mp4", self.guest.recorder.end())

    # --- windows and the wallpaper ----------------------------------------------------------------------------------

    def window_size(self, body: bytes) -> dict[str, Any]:
        name = urllib.parse.parse_qs(body.decode()).get("app_class_name", [""])[0]
        display = x11.connect()
        window = x11.find_window(display, name, strict=False, by_class=True)
        if window is None:
            raise Rejected(404, f"there is no window with class {name!r}")
        _, _, width, height = display.geometry(window.id)
        return {"width": width, "height": height}

    def activate_window(self, body: bytes) -> str:
        x11.activate_window(x11.connect(), self._window(fields_of(body)))
        return "Window activated successfully"

    def close_window(self, body: bytes) -> str:
        x11.close_window(x11.connect(), self._window(fields_of(body)))
        return "Window closed successfully."

    def _window(self, fields: dict[str, Any]) -> x11.Window:
        name = str(fields.get("window_name") or "")
        if not name:
            raise Rejected(400, "window_name is required")
        strict, by_class = bool(fields.get("strict")), bool(fields.get("by_class"))
        window = x11.find_window(x11.connect(), name, strict=strict, by_class=by_class)
        if window is None:
            raise Rejected(404, f"Window {name} not found.")
        return window

    def wallpaper(self, _: bytes) -> BinaryAnswer:
        path = self._wallpaper().path
        try:
            with open(path, "rb") as file:
                return BinaryAnswer("image/png", file.read())
        except OSError as error:
            raise Rejected(404, f"{path}: {error.strerror}") from None

    def change_wallpaper(self, body: bytes) -> str:
        path = self.guest.path(str(fields_of(body).get("path") or ""))
        if not os.path.isfile(path):
            raise Rejected(404, f"Path not found: {path}")
        if not self._wallpaper().change(path):
            raise Rejected(500, f"{path} cannot be shown as wallpaper")
        return "Wallpaper changed successfully"

    def _wallpaper(self) -> Wallpaper:
        return Wallpaper(x11.connect(), self.guest.folder)

    def desktop_path(self, _: bytes) -> dict[str, Any]:
        return {"desktop_path": os.path.join(self.guest.folder, "Desktop")}

    # --- files ------------------------------------------------------------------------------------------------------

    def open_file(self, body: bytes) -> str:
        """Open a file with its application, or start a program by its name, and activate its window."""
        given = str(fields_of(body).get("path") or "")
        path = self.guest.path(given)
        if given and os.path.exists(path):
            self.guest.start({"command": [*_opener(), path]}, subprocess.DEVNULL)
            name = os.path.splitext(os.path.basename(path.rstrip("/")))[0]
        elif given and shutil.which(given):
            self.guest.start({"command": [given]}, subprocess.DEVNULL)
            name = os.path.basename(given)
        else:
            raise Rejected(404, f"Application/file not found: {given}")
        x11.activate_window(x11.connect(), self._window_of(name, _OPEN_SECONDS))
        return "File opened and window activated successfully"

    def _window_of(self, name: str, seconds: float) -> x11.Window:
        """Wait for a window with this name in its title or class and return it."""
        display, deadline = x11.connect(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            for by_class in (False, True):
                if window := x11.find_window(display, name, strict=False, by_class=by_class):
                    return window
            time.sleep(_POLL)
        raise Rejected(500, f"no window shows {name} after {seconds:.0f} s")

    def download_file(self, body: bytes) -> str:
        fields = fields_of(body)
        url, path = str(fields.get("url") or ""), self.guest.path(str(fields.get("path") or ""))
        if not url.startswith(("http://", "https://")) or not fields.get("path"):
            raise Rejected(400, "a url and a path are required")
        import urllib.request

        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        last_error: Exception | None = None
        for _ in range(_DOWNLOAD_TRIES):
            try:
                with urllib.request.urlopen(url, timeout=_DOWNLOAD_SECONDS) as reply, open(path, "wb") as file:  # noqa: S310 - checked above
                    shutil.copyfileobj(reply, file)
            except OSError as error:
                last_error = error
            else:
                return f"File downloaded successfully to {path}"
        raise Rejected(500, f"Failed to download {url}: {last_error}")

    # --- programs ---------------------------------------------------------------------------------------------------

    def execute_with_verification(self, body: bytes) -> dict[str, Any]:
        fields, began = fields_of(body), time.monotonic()
        answer = self.execute(body)
        wanted = fields.get("verification") or {}
        deadline = began + float(str(fields.get("max_wait_time") or 10))
        while not self._verified(wanted):
            if time.monotonic() > deadline:
                raise Rejected(500, f"Verification failed after {time.monotonic() - began:.1f} seconds: {wanted}")
            time.sleep(float(str(fields.get("check_interval") or 1)))
        return answer | {"verification": wanted, "wait_time": time.monotonic() - began}

    def _verified(self, wanted: dict[str, Any]) -> bool:
        if name := wanted.get("window_exists"):
            if x11.find_window(x11.connect(), str(name), strict=False, by_class=False) is None:
                return False
        if command := wanted.get("command_success"):
            return self.guest.run({"command": command, "shell": isinstance(command, str)})[2] == 0
        return True

    def run_python(self, body: bytes) -> dict[str, Any]:
        fields = fields_of(body)
        if not (code := str(fields.get("code") or "")):
            raise Rejected(400, "Code not supplied!")
        output, errors, status = self.guest.python(code, float(str(fields.get("timeout") or _PYTHON_SECONDS)))
        return {
            "status": "error" if status else "success",
            "message": output + errors,
            "need_more": False,
            "output": output,
            "error": errors,
            "return_code": status,
        }

    def run_bash_script(self, body: bytes) -> dict[str, Any]:
        fields = fields_of(body)
        if not (script := str(fields.get("script") or "")):
            raise _script_rejected(400, "Script not supplied!")
        folder = self.guest.path(str(fields.get("working_dir") or self.guest.folder))
        if not os.path.isdir(folder):
            raise _script_rejected(400, f"Working directory does not exist: {folder}")
        seconds = float(str(fields.get("timeout") or _SCRIPT_SECONDS))
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(script)
            file.flush()
            command = ["bash", "-c", f'cd "$0" && exec bash {file.name} 2>&1', folder]
            try:
                output, _, status = self.guest.run({"command": command, "timeout": seconds})
            except Rejected as rejected:
                timed_out = f"Script execution timed out after {seconds:g} seconds"
                raise _script_rejected(500, timed_out if "timed out" in str(rejected) else str(rejected)) from None
        return {"status": "error" if status else "success", "output": output, "error": "", "returncode": status}


def _script_rejected(status: int, reason: str) -> Rejected:
    """Return an error with the fields of a script's result, as OSWorld's guest answers."""
    return Rejected(status, reason, output=reason, error="", returncode=-1)


DesktopHandler.get_routes = Handler.get_routes | {
    "/screenshot": DesktopHandler.screenshot,
    "/accessibility": DesktopHandler.accessibility,
    "/terminal": DesktopHandler.terminal,
    "/cursor_position": DesktopHandler.cursor_position,
}
DesktopHandler.post_routes = Handler.post_routes | {
    "/execute_with_verification": DesktopHandler.execute_with_verification,
    "/setup/execute_with_verification": DesktopHandler.execute_with_verification,
    "/screen_size": DesktopHandler.screen_size,
    "/window_size": DesktopHandler.window_size,
    "/desktop_path": DesktopHandler.desktop_path,
    "/wallpaper": DesktopHandler.wallpaper,
    "/setup/change_wallpaper": DesktopHandler.change_wallpaper,
    "/setup/download_file": DesktopHandler.download_file,
    "/setup/open_file": DesktopHandler.open_file,
    "/setup/activate_window": DesktopHandler.activate_window,
    "/setup/close_window": DesktopHandler.close_window,
    "/start_recording": DesktopHandler.start_recording,
    "/end_recording": DesktopHandler.end_recording,
    "/run_python": DesktopHandler.run_python,
    "/run_bash_script": DesktopHandler.run_bash_script,
}
