"""A running QEMU process: its files and secrets, its QMP monitor and the screenshots of its display."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any

from qemu.qmp import QMPClient, QMPError

from paragent._internal.clock import monotonic
from paragent.errors import MachineFailed
from paragent.guest.desktop.screen import pixmap_as_png
from paragent.machines.guest_client import TOKEN_HEADER
from paragent.machines.providers.qemu.network import NetworkNamespace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from paragent.machines.providers.base import LocalProcesses
    from paragent.machines.providers.qemu.hardware import Hardware

__all__ = ["Monitor", "QemuProcess", "ScreenServer"]

_PASSWORD_CHARACTERS = 8
"""VNC ignores further characters."""
_REPLY_SECONDS = 20.0
"""For QEMU to answer; on a busy host, loading the program takes a part of it."""
_STATE_SECONDS = 120.0
"""For writing or reading a state: at most some megabytes, because the memory has its own file."""
_POLL = 0.005
_FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)\s+\S+\s+(\d+)")
_REQUEST_SECONDS = 10.0
"""For a client of the screen server to send its request."""

# The library logs as errors what our exceptions already say, and what is normal when a pool stops while machines load.
# A level that the application has set stays.
_library = logging.getLogger("qemu.qmp")
if _library.level == logging.NOTSET:
    _library.setLevel(logging.CRITICAL + 1)


class QemuProcess:
    """The process of one machine with its folder, its secret and its network. `LocalProcesses.stop` ends it."""

    def __init__(self, local: LocalProcesses, name: str, hardware: Hardware) -> None:
        self._local, self._name, self._host = local, name, hardware.host
        self.folder = local.folder(name)
        self.folder.mkdir(exist_ok=True)
        self._network = NetworkNamespace(local, name) if hardware.network == "internet" else None

    @property
    def secret_file(self) -> Path:
        """The file that QEMU shows to the machine."""
        return self.folder / "secret"

    @property
    def password_file(self) -> Path:
        """The file with the password of the display."""
        return self.folder / "password"

    def create_secret(self) -> str:
        """Create and return the secret by which the machine recognizes its pool.

        All secrets have the same length, because clones continue from the state of each other's devices.
        """
        secret = secrets.token_urlsafe(32)
        _write_private(self.secret_file, secret)
        return secret

    def create_password(self) -> str:
        """Create and return a password for the display."""
        password = secrets.token_urlsafe(_PASSWORD_CHARACTERS)[:_PASSWORD_CHARACTERS]
        _write_private(self.password_file, password)
        return password

    async def start(self, command: Sequence[str], descriptors: Collection[int]) -> None:
        """Start the process.

        Raises:
            MachineFailed: it cannot be started.
        """
        if self._network is None:
            self._local.start(self._name, command, descriptors)
        else:
            await self._network.start(command, descriptors)

    async def reachable_ports(self, ports: Mapping[int, int]) -> dict[int, int]:
        """Return the ports of this host that lead into the machine, given those at which QEMU listens.

        Raises:
            MachineFailed: they cannot be forwarded.
        """
        return dict(ports) if self._network is None else await self._network.forward(self._host, ports)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


class Monitor:
    """The QMP connection to one QEMU process, over a socket pair.

    Create it, let the process inherit `descriptor`, then `connect`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ours, self._theirs = socket.socketpair()
        self._client = QMPClient()  # a named client creates a logger, which Python never frees

    @property
    def descriptor(self) -> int:
        """The file descriptor that the process inherits."""
        return self._theirs.fileno()

    async def connect(self) -> None:
        """Connect to the process, which must have been started; raises the same errors as `execute`."""
        self._theirs.close()
        self._ours.setblocking(False)
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                await self._client.connect(self._ours)
        except (QMPError, OSError, EOFError) as error:
            raise MachineFailed(f"QEMU of {self._name} does not answer: {error!r}") from error

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Run a QMP command.

        Raises:
            MachineFailed: QEMU rejected it, does not answer or has ended.
        """
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                return await self._client.execute(command, named)
        except (QMPError, OSError, EOFError) as error:
            raise MachineFailed(f"QEMU of {self._name}: {command}: {str(error) or type(error).__name__}") from error

    async def freeze(self, state: Path) -> None:
        """Pause the machine and write its state, without its memory, to a file; raises the same errors as `execute`."""
        await self._exclude_memory()
        await self.execute("stop")
        await self.execute("migrate-set-parameters", max_bandwidth=1 << 40)
        with state.open("wb") as file:
            await self._pass_file(file)
            await self.execute("migrate", uri="fd:state")
            await self._wait_for_migration()

    async def load(self, state: Path) -> None:
        """Read a state that `freeze` wrote; the machine stays paused; raises the same errors as `execute`."""
        await self._exclude_memory()
        with state.open("rb") as file:
            await self._pass_file(file)
            await self.execute("migrate-incoming", uri="fd:state")
            await self._wait_for_migration()

    async def _pass_file(self, file: IO[bytes]) -> None:
        """Pass an open file to QEMU, which is not allowed to start a program that reads or writes one."""
        try:
            self._client.send_fd_scm(file.fileno())
        except (QMPError, OSError) as error:
            raise MachineFailed(f"QEMU of {self._name} does not accept a file: {error}") from error
        await self.execute("getfd", fdname="state")

    async def _exclude_memory(self) -> None:
        capability = {"capability": "x-ignore-shared", "state": True}
        await self.execute("migrate-set-capabilities", capabilities=[capability])

    async def _wait_for_migration(self) -> None:
        deadline = monotonic() + _STATE_SECONDS
        while (answer := await self.execute("query-migrate")).get("status") != "completed":
            if answer.get("status") in {"failed", "cancelled"} or monotonic() > deadline:
                reason = answer.get("error-desc", answer.get("status"))
                raise MachineFailed(f"QEMU of {self._name}: the state could not be transferred: {reason}")
            await asyncio.sleep(_POLL)

    async def ports(self) -> dict[int, int]:
        """Return the forwarded ports: the machine's port to the port at which QEMU listens."""
        listed = await self.execute("human-monitor-command", command_line="info usernet")
        return {int(inside): int(outside) for outside, inside in _FORWARD.findall(listed)}

    async def display(self) -> str:
        """Return the address of the VNC display; empty if there is none."""
        answer = await self.execute("query-vnc")
        return f"{answer['host']}:{answer['service']}" if answer.get("enabled") else ""

    async def close(self) -> None:
        """Close the connection; the process goes on."""
        with contextlib.suppress(QMPError, OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_REPLY_SECONDS):
                await self._client.disconnect()
        for end in (self._ours, self._theirs):
            end.close()


class ScreenServer:
    """Serves screenshots of one machine's display to its holder: `GET /screenshot`."""

    def __init__(self, monitor: Monitor, folder: Path) -> None:
        self._monitor, self._file = monitor, folder / "screen.ppm"
        self._file_lock = asyncio.Lock()  # QEMU writes one screenshot at a time to the file
        self._server: asyncio.Server | None = None
        self._holder_token: str | None = None

    async def start(self, host: str) -> int:
        """Listen at a free port and return it."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def set_holder_token(self, token: str) -> None:
        """Serve the holder with this token, and no other."""
        self._holder_token = token

    async def screenshot(self) -> bytes:
        """Return the display as PNG.

        Raises:
            MachineFailed: QEMU provides no screenshot.
        """
        async with self._file_lock:
            await self._monitor.execute("screendump", filename=str(self._file))
            try:
                return await asyncio.to_thread(self._read)
            except (OSError, ValueError) as error:
                raise MachineFailed(f"QEMU provided no screenshot: {error}") from error

    def _read(self) -> bytes:
        data = self._file.read_bytes()
        self._file.unlink()
        return pixmap_as_png(data)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, kind, data = await self._answer(request)
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + data)
            await writer.drain()
        writer.close()

    async def _answer(self, request: str) -> tuple[str, str, bytes]:
        first, *lines = request.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if not first.startswith("GET /screenshot "):
            return "404 Not Found", "text/plain", b"only GET /screenshot is served here"
        given, expected = fields.get(TOKEN_HEADER.lower(), ""), self._holder_token
        if not expected or not hmac.compare_digest(given.encode(), expected.encode()):
            return "409 Conflict", "text/plain", b"this machine has another holder now"
        try:
            return "200 OK", "image/png", await self.screenshot()
        except MachineFailed as error:
            return "500 Internal Server Error", "text/plain", str(error).encode()
