"""`HttpServer`: an HTTP server in a thread of this process, with limits for clients that have not sent a valid request.

Any user of the host can connect to a port of it. A client that opens connections and sends nothing, or half a request, must not
keep others out: connections without a request in progress are limited in number and in time. Applications answer requests
without a valid token at once and close the connection (`CLOSE`), so that only authenticated requests can last.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from paragent.errors import ServerLost, UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["CLOSE", "MOST_IDLE", "HttpServer"]

CLOSE = {"connection": "close"}
"""The header of a response after which the connection is closed."""
MOST_IDLE = 128
"""Connections without a request in progress. Clients send their first request within milliseconds."""
_REQUEST_TIMEOUT = 10.0
"""Seconds from the connection, or from the last response, until the headers of the next request have arrived."""
_MOST_BUSY = 200
"""Requests in progress. A browser opens six connections for each host, and one page one stream of events."""
_START_TIMEOUT = 10.0
_STOP_TIMEOUT = 10.0


class HttpServer:
    """A server in a thread: a context manager that listens from `__enter__` to `__exit__`.

    Args:
        make_app: returns the ASGI application for the port.
        host: where to listen.
        port: 0: a free port.
        name: what it is, for messages and as the name of the thread.

    Raises:
        UsageError: (on entering) the address is in use or not one of this host.
        ServerLost: (on entering) the server does not start.
    """

    def __init__(self, make_app: Callable[[int], Any], host: str, port: int, name: str) -> None:
        self._make_app, self._host, self._name = make_app, host, name
        self.port = port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self._host, self._host)  # noqa: S104 - recognised, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def __enter__(self) -> Self:
        listener = _listen(self._host, self.port)
        self.port = listener.getsockname()[1]
        try:
            app = self._make_app(self.port)
        except BaseException:
            listener.close()
            raise
        connection: Any = functools.partial(_LimitedConnection, {})
        config = uvicorn.Config(
            app,
            http=connection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_BUSY + MOST_IDLE,
            timeout_graceful_shutdown=1,
        )
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, args=([listener],), name=self._name, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT
        while not server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not server.started:
            self.__exit__()
            raise ServerLost(f"{self._name} did not start within {_START_TIMEOUT:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT)  # a daemon thread: a request that takes longer ends with the process

    def wait(self) -> None:
        """Block until the server ends."""
        assert self._thread is not None
        while self._thread.is_alive():
            self._thread.join(0.5)


class _LimitedConnection(H11Protocol):
    """A connection that is closed when it has no request in progress and is the oldest of too many, or too old."""

    def __init__(self, idle: dict[_LimitedConnection, None], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._idle = idle
        """The connections of the server without a request in progress, the oldest first."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_counting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._count()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._count()

    def close(self) -> None:
        """Close the connection at once."""
        self._stop_counting()
        self.transport.abort()

    def _count(self) -> None:
        """Count this connection if it has no request in progress, and close the oldest if there are too many."""
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            self._stop_counting()
        elif self._deadline is None:
            self._idle[self] = None
            self._deadline = self.loop.call_later(_REQUEST_TIMEOUT, self.close)
            if len(self._idle) > MOST_IDLE:
                next(iter(self._idle)).close()

    def _stop_counting(self) -> None:
        self._idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UsageError: the port is in use, or the host has no such address.
    """
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port or --host"
        ) from error
    return listener
