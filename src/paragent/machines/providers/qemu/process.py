"""A QEMU process with what belongs to it: its folder, the secret that its guest is told, its network."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed
from paragent.guest.desktop.screen import pixmap_as_png
from paragent.machines.guest_client import TOKEN_HEADER
from paragent.machines.providers.qemu.network import Namespace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from paragent.machines.providers.local_processes import LocalProcesses
    from paragent.machines.providers.qemu.hardware import Hardware
    from paragent.machines.providers.qemu.monitor import Monitor

__all__ = ["Screen", "Started"]


_PASSWORD_CHARACTERS = 8
"""As many as VNC looks at."""


class Started:
    """One process of QEMU; whoever made it ends it with its folder, by its name."""

    def __init__(self, local: LocalProcesses, name: str, hardware: Hardware) -> None:
        self._local, self._name, self._host = local, name, hardware.host
        self.folder = local.folder(name)
        self.folder.mkdir(exist_ok=True)
        self._network = Namespace(local, name) if hardware.network == "internet" else None

    @property
    def secret_file(self) -> Path:
        """What QEMU shows the guest."""
        return self.folder / "secret"

    @property
    def password_file(self) -> Path:
        """Has the password of the display."""
        return self.folder / "password"

    def make_secret(self) -> str:
        """Choose what the guest is told, and return it; always of one length, as clones take over each other's devices."""
        secret = secrets.token_urlsafe(32)
        _write(self.secret_file, secret)
        return secret

    def make_password(self) -> str:
        """Choose a password for the display, and return it."""
        password = secrets.token_urlsafe(_PASSWORD_CHARACTERS)[:_PASSWORD_CHARACTERS]
        _write(self.password_file, password)
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

    async def reachable(self, ports: Mapping[int, int]) -> dict[int, int]:
        """Return where ports of the guest are reached on this host, given where QEMU says that they are.

        Raises:
            MachineFailed: they cannot be reached.
        """
        return dict(ports) if self._network is None else await self._network.forward(self._host, ports)


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


_REQUEST_SECONDS = 10.0
"""For a client to send its request."""


class Screen:
    """Serves the display of one machine: `GET /screenshot`."""

    def __init__(self, monitor: Monitor, folder: Path) -> None:
        self._monitor, self._file = monitor, folder / "screen.ppm"
        self._turn = asyncio.Lock()  # one picture at a time is written to the file
        self._server: asyncio.Server | None = None
        self._holder: str | None = None

    async def start(self, host: str) -> int:
        """Listen on a port that the kernel chooses, and return it."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def held_by(self, token: str) -> None:
        """From now on serve this holder."""
        self._holder = token

    async def picture(self) -> bytes:
        """Return what the display shows, as PNG.

        Raises:
            MachineFailed: QEMU does not give it.
        """
        async with self._turn:
            await self._monitor.execute("screendump", filename=str(self._file))
            try:
                return await asyncio.to_thread(self._read)
            except (OSError, ValueError) as error:
                raise MachineFailed(f"QEMU gave no picture: {error}") from error

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
            return "404 Not Found", "text/plain", b"there is only GET /screenshot"
        given, holder = fields.get(TOKEN_HEADER.lower(), ""), self._holder
        if not holder or not hmac.compare_digest(given.encode(), holder.encode()):
            return "409 Conflict", "text/plain", b"this machine has another holder now"
        try:
            return "200 OK", "image/png", await self.picture()
        except MachineFailed as error:
            return "500 Internal Server Error", "text/plain", str(error).encode()
