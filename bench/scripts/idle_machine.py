"""A listener that answers every request of a pool with success, until its standard input ends. Prints its port."""

from __future__ import annotations

import asyncio
import json
import sys

_BODY = json.dumps({"held": False, "marker": False, "status": "success", "output": "", "returncode": 0}).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_BODY), _BODY)


class Guest(asyncio.Protocol):
    """Answers the first request of a connection and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer when the headers have arrived; the body is ignored."""
        if b"\r\n\r\n" in data:
            self._transport.write(_ANSWER)
            self._transport.close()


async def main() -> None:
    """Listen until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Guest, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
