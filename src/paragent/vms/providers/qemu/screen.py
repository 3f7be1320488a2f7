"""The emulated display as a picture, for a machine's holder wherever it is: a port of the pool's host, beside the guest's.

QEMU writes the picture without the guest's help, so it takes a tenth of the time and works on a machine that is paused. Only
the holder is served, by the same token as in the guest.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed
from paragent.vms.guest.desktop.pictures import pixmap_as_png
from paragent.vms.guest_http import TOKEN_HEADER

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.vms.providers.qemu.monitor import Monitor

__all__ = ["Screen"]

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
