"""Where stations report to the driver: a listening socket that lets in only who proves to belong to the run."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from paragent._internal.threads import start_thread, write_traceback
from paragent.engines._node_agent import keep_alive
from paragent.errors import AccessDenied, ProtocolError
from paragent.transport.auth import accept_with_proof

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.transport.auth import Token

__all__ = ["Reception"]

_logger = logging.getLogger("paragent")
_PROVE = 10.0
"""Seconds that a newcomer has to prove itself."""
_PAUSE = 0.01
"""Seconds after a connection that could not be taken, so that a lack of file descriptors does not occupy a core."""
_AT_ONCE = 64
"""Newcomers that may be proving themselves at a time; more wait in the kernel's queue."""


class Reception:
    """Listens on one address until it is closed.

    Args:
        host: the address to listen on, and no other.
        token: what a station must know.
        welcome: called, from a thread of the reception, with the name and the connection of each station that has proved
            itself; returns False to turn it away.
        failed: called with the name of the listening thread and its error if it ends unexpectedly.
    """

    def __init__(
        self,
        host: str,
        token: Token,
        welcome: Callable[[str, socket.socket], bool],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self._token = token
        self._welcome = welcome
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._seats = threading.Semaphore(_AT_ONCE)
        self._closed = False
        self._thread = start_thread(self._receive, name="paragent-reception", failed=failed)

    def close(self) -> None:
        """Stop listening; connections that were handed over are not touched."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self._thread.join(_PROVE)

    def _receive(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # a connection that broke before it was taken, no free file descriptor, or the end
                time.sleep(_PAUSE)
                continue
            self._seats.acquire()
            try:
                start_thread(self._check, connection, name="paragent-proof", failed=write_traceback)
            except RuntimeError as problem:  # no room for another thread: this station ends, and another is ordered
                _logger.warning("a worker that reported could not be let in: %s", problem)
                self._seats.release()
                connection.close()

    def _check(self, connection: socket.socket) -> None:
        connection.settimeout(_PROVE)
        try:
            name = accept_with_proof(connection, self._token)
            keep_alive(connection)
            if self._welcome(name, connection):
                return
        except (AccessDenied, ProtocolError, OSError) as problem:
            _logger.debug("a connection to the engine's port was refused: %s", problem)
        finally:
            self._seats.release()
        connection.close()
