"""Machine controller: sends every request of OSWorld's guest protocol to a machine's server, asynchronously.

Each call has a time limit. A request is repeated only if that is safe: for reads, for writing the same file again, and for
requests that never reached the machine because the connection was refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import MachineFailed
from paragent.machines.guest_client import (
    FILE_BYTES,
    REPLY_BYTES,
    GuestReply,
    GuestRequest,
    form_body,
    json_body,
    upload_body,
)
from paragent.osworld.context import MachineRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.machines import Machine
    from paragent.machines.guest_client import RequestBody

__all__ = ["COMMAND_SECONDS", "RETRY_PAUSES", "CommandReply", "Controller", "checked"]

COMMAND_SECONDS = 90.0
"""Time limit that OSWorld's client gives a command."""
_GUEST_SECONDS = 120.0
"""Time limit that OSWorld's server gives a command, whatever the client requests; its answer arrives after that."""
_TRAVEL = 10.0
"""Seconds for the answer to arrive, in addition to the time of the work itself."""
_LOOK_SECONDS = 30.0
"""For a screenshot, a wallpaper or a list of files."""
_TREE_SECONDS = 75.0
"""For an accessibility tree: the server sends thousands of queries to the applications, which takes half a minute in an
emulated machine on a busy host.
"""
_FILE_SECONDS = 120.0
"""For transferring a file: a recording or a document has tens of megabytes."""
_DOWNLOAD_SECONDS = 300.0
"""Time limit that OSWorld's server gives a download."""
_OPEN_SECONDS = 120.0
"""For opening a file until its window appears; the server itself would wait 1800 s."""
_RECORDING_SECONDS = 60.0
RETRY_PAUSES = (0.5, 2.0)
"""Seconds before the second and the third try; a server that restarts is back within two seconds."""
_CHROME_PORT = 9222
_REFUSALS = frozenset({400, 404, 500, 501})
"""Status codes by which the machine's server refuses a request; any other failure is one of the machine or the connection."""
_MOST_PIXELS = 1 << 20


@dataclass(frozen=True, slots=True)
class CommandReply:
    """Reply of the machine's server to a command."""

    output: str
    error: str
    returncode: int
    """-1 if the server could not run the command or stopped it."""
    status: str = "success"
    """`success` if the command ran, whatever its exit status; otherwise `error`, and the field `error` has the reason."""


class Controller:
    """Controls one machine. The machine is borrowed, not owned.

    Raises:
        MachineRefused: (all methods) the machine's server refuses the request.
        MachineFailed: (all methods) the server does not answer in time, or breaks the protocol.
        LeaseLost: (all methods) the machine has been leased to another holder.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def devtools(self) -> str:
        """`host:port` of the DevTools of the machine's browser."""
        return f"{self._machine.host}:{self._machine.ports.get(_CHROME_PORT, _CHROME_PORT)}"

    # --- observing --------------------------------------------------------------------------------------------------------

    async def screenshot(self) -> bytes:
        """Return the screen as PNG, from the machine's emulated display if the provider serves it, otherwise from the server."""
        address = self._machine.details.get("screen", "")
        reply = await self._send("GET", "/screenshot", limit=_LOOK_SECONDS, again=True, address=address)
        return checked(reply, "screenshot").body

    async def accessibility_tree(self) -> str:
        """Return the accessibility tree as XML."""
        return str(_field(await self._read_json("GET", "/accessibility", limit=_TREE_SECONDS), "AT"))

    async def terminal(self) -> str | None:
        """Return the text of the terminal; None if there is no terminal."""
        output = _field(await self._read_json("GET", "/terminal"), "output", None)
        return None if output is None else str(output)

    async def platform(self) -> str:
        """Return the name of the operating system, such as `Linux`."""
        return (await self._read("GET", "/platform")).decode(errors="replace").strip()

    async def cursor_position(self) -> tuple[int, int]:
        """Return the position of the pointer."""
        match await self._read_json("GET", "/cursor_position"):
            case [x, y]:
                return _pixels(x), _pixels(y)
            case other:
                raise MachineFailed(f"/cursor_position: the machine answered {str(other)[:200]}")

    async def screen_size(self) -> tuple[int, int]:
        """Return the width and height of the screen."""
        return _size(await self._read_json("POST", "/screen_size", json_body({})))

    async def window_size(self, app_class_name: str) -> tuple[int, int]:
        """Return the width and height of an application's window."""
        return _size(await self._read_json("POST", "/window_size", form_body({"app_class_name": app_class_name})))

    async def desktop_path(self) -> str:
        """Return the path of the user's desktop folder."""
        return str(_field(await self._read_json("POST", "/desktop_path", json_body({})), "desktop_path"))

    async def wallpaper(self) -> bytes:
        """Return the image of the wallpaper."""
        return await self._read("POST", "/wallpaper", json_body({}), limit=_LOOK_SECONDS)

    async def list_directory(self, path: str) -> Mapping[str, Any]:
        """Return the directory tree below a path: `type`, `name`, `children`."""
        reply = await self._read_json("POST", "/list_directory", json_body({"path": path}), limit=_LOOK_SECONDS)
        tree: Mapping[str, Any] = _field(reply, "directory_tree")
        return tree

    async def file(self, path: str) -> bytes | None:
        """Return the contents of a file; None if the server cannot read it, for example because it is a directory."""
        reply = await self._send(
            "POST", "/file", form_body({"file_path": path}), limit=_FILE_SECONDS, again=True, size=FILE_BYTES
        )
        return None if reply.status in _REFUSALS else checked(reply, f"file {path}").body

    # --- acting -----------------------------------------------------------------------------------------------------------

    async def execute(
        self, command: str | list[str], *, shell: bool = False, timeout: float = COMMAND_SECONDS
    ) -> CommandReply:
        """Run a command and wait for its end. It is never sent twice."""
        fields = {"command": command, "shell": shell, "timeout": timeout}
        return await self._execute("/execute", fields, timeout)

    async def execute_with_verification(
        self,
        command: str | list[str],
        verification: Mapping[str, Any],
        *,
        shell: bool = False,
        max_wait_time: float = 10.0,
        check_interval: float = 1.0,
    ) -> CommandReply:
        """Run a command and let the server wait until the conditions in `verification` hold."""
        fields: dict[str, Any] = {"command": command, "shell": shell, "verification": dict(verification)}
        fields |= {"max_wait_time": max_wait_time, "check_interval": check_interval}
        return await self._execute("/execute_with_verification", fields, COMMAND_SECONDS + max_wait_time)

    async def run_python(self, code: str) -> CommandReply:
        """Run Python code on the machine, which allows it 30 s."""
        reply = await self._send("POST", "/run_python", json_body({"code": code}), limit=COMMAND_SECONDS)
        return _command_reply(reply, "run_python", code_field="return_code")

    async def run_bash_script(
        self, script: str, *, timeout: float = COMMAND_SECONDS, working_dir: str | None = None
    ) -> CommandReply:
        """Run a bash script."""
        fields = {"script": script, "timeout": timeout, "working_dir": working_dir}
        reply = await self._send("POST", "/run_bash_script", json_body(fields), limit=timeout + _TRAVEL)
        return _command_reply(reply, "run_bash_script")

    async def launch(self, command: str | list[str], *, shell: bool = False) -> None:
        """Start a program without waiting for it."""
        await self._do("/setup/launch", {"command": command, "shell": shell})

    async def open_file(self, path: str) -> None:
        """Open a file with its default application and wait for the window."""
        await self._do("/setup/open_file", {"path": path}, limit=_OPEN_SECONDS)

    async def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Bring a window to the front."""
        fields = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._do("/setup/activate_window", fields, again=True)

    async def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Close a window."""
        await self._do("/setup/close_window", {"window_name": name, "strict": strict, "by_class": by_class})

    async def change_wallpaper(self, path: str) -> None:
        """Set the wallpaper to an image file of the machine."""
        await self._do("/setup/change_wallpaper", {"path": path}, again=True)

    async def download(self, url: str, path: str) -> None:
        """Let the machine download a file itself."""
        await self._do("/setup/download_file", {"url": url, "path": path}, limit=_DOWNLOAD_SECONDS, again=True)

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file and create its parent directories."""
        body = upload_body(path, data)
        reply = await self._send("POST", "/setup/upload", body, limit=_FILE_SECONDS, again=True)
        checked(reply, f"upload {path}")

    async def start_recording(self) -> None:
        """Start a video recording of the screen."""
        await self._do("/start_recording", {}, limit=_RECORDING_SECONDS)

    async def end_recording(self) -> bytes:
        """Stop the recording and return it as MP4."""
        reply = await self._send("POST", "/end_recording", json_body({}), limit=_RECORDING_SECONDS, size=FILE_BYTES)
        return checked(reply, "end_recording").body

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def _read(self, method: str, path: str, body: RequestBody | None = None, *, limit: float = _TRAVEL) -> bytes:
        return checked(await self._send(method, path, body, limit=limit, again=True), path).body

    async def _read_json(
        self, method: str, path: str, body: RequestBody | None = None, *, limit: float = _TRAVEL
    ) -> Any:
        return checked(await self._send(method, path, body, limit=limit, again=True), path).json()

    async def _do(self, path: str, fields: dict[str, Any], *, limit: float = 60.0, again: bool = False) -> None:
        checked(await self._send("POST", path, json_body(fields), limit=limit, again=again), path)

    async def _execute(self, path: str, fields: dict[str, Any], timeout: float) -> CommandReply:
        limit = max(timeout, _GUEST_SECONDS) + _TRAVEL
        return _command_reply(
            await self._send("POST", path, json_body(fields), limit=limit), f"execute {fields['command']!r}"
        )

    async def _send(
        self,
        method: str,
        path: str,
        body: RequestBody | None = None,
        *,
        limit: float,
        again: bool = False,
        address: str = "",
        size: int = REPLY_BYTES,
    ) -> GuestReply:
        machine = self._machine
        host, _, port = (address or machine.address).rpartition(":")
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit  # for all tries together, so that a machine that hangs is not waited for three times
        pauses = iter(RETRY_PAUSES)
        while True:
            left = deadline - clock()
            try:
                request = GuestRequest(host, int(port), method, path, body, machine.token, left, size)
                return await request.send_async()
            except MachineFailed as error:
                # After a refused connection the server has received nothing; after any other failure it may have acted.
                unsent = isinstance(error.__cause__, ConnectionRefusedError)
                pause = next(pauses, None)
                if pause is None or not (again or unsent) or clock() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)


def checked(reply: GuestReply, what: str) -> GuestReply:
    """Return the reply if it is a success.

    Raises:
        MachineRefused: the machine's server refuses the request.
        LeaseLost: the machine has been leased to another holder.
        MachineFailed: any other failure.
    """
    if reply.status in _REFUSALS:
        raise MachineRefused(f"{what}: the machine refused: {reply.body[:500].decode(errors='replace')}")
    return reply.check(what)


_REQUIRED = object()


def _field(reply: Any, name: str, otherwise: Any = _REQUIRED) -> Any:
    """Return a field of a JSON answer.

    Raises:
        MachineFailed: the answer is not an object, or the field is missing.
    """
    if not isinstance(reply, dict) or (name not in reply and otherwise is _REQUIRED):
        raise MachineFailed(f"the machine answered {str(reply)[:200]} without {name!r}")
    return reply.get(name, otherwise)


def _size(reply: Any) -> tuple[int, int]:
    return _pixels(_field(reply, "width")), _pixels(_field(reply, "height"))


def _pixels(value: Any) -> int:
    if not isinstance(value, int | float) or not abs(value) < _MOST_PIXELS:
        raise MachineFailed(f"the machine answered {str(value)[:200]} instead of a number of pixels")
    return int(value)


def _command_reply(reply: GuestReply, what: str, *, code_field: str = "returncode") -> CommandReply:
    """Parse the reply to a command; status 500, or 400 for a malformed command, means that it could not be run."""
    try:
        if reply.status in {400, 500}:
            try:
                message = reply.fields()
            except MachineFailed:
                message = {}
            error_text = str(
                message.get("error") or message.get("message") or reply.body[:500].decode(errors="replace")
            )
            return CommandReply(
                str(message.get("output") or ""), error_text, int(message.get(code_field) or -1), "error"
            )
        answer = checked(reply, what).fields()
        return CommandReply(
            output=str(answer.get("output") or ""),
            error=str(answer.get("error") or ""),
            returncode=int(answer.get(code_field) or 0),
            status=str(answer.get("status") or "success"),
        )
    except (TypeError, ValueError, OverflowError):
        raise MachineFailed(f"{what}: the machine answered {reply.body[:200]!r}") from None
