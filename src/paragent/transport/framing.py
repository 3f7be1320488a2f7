"""Length-prefixed frames over a stream, and pickled messages in them.

Frames with pickles are exchanged only between processes of one user: one process started the other, or both have proved that
they know the same secret (`paragent.transport.auth`). Reading a pickle from such a peer is as safe as sharing memory with it.
"""

from __future__ import annotations

import math
import pickle
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from io import FileIO

__all__ = [
    "READ_BUDGET",
    "FrameReader",
    "FramedSocket",
    "encode",
    "frame",
    "pickled",
    "read_frame",
    "receive",
    "write_bytes",
]

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20
READ_BUDGET = 4 * _CHUNK
"""Bytes to read from one connection before other connections get their turn."""


def pickled(message: Any) -> bytes:
    """Return a message as a pickle."""
    return pickle.dumps(message, protocol=5)


def frame(body: bytes) -> bytes:
    """Return a body with its length in front."""
    return _LENGTH.pack(len(body)) + body


def encode(message: Any) -> bytes:
    """Return the frame of one pickled message."""
    return frame(pickled(message))


# --- blocking streams -------------------------------------------------------------------------------------------------


def receive(connection: socket.socket, limit: int) -> bytes:
    """Return the body of the next frame of a blocking socket.

    Raises:
        ProtocolError: the frame is longer than `limit` bytes, or the peer closed the connection.
        OSError: the connection broke or timed out.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes; the limit is {limit}")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ProtocolError("the peer closed the connection")
        data += piece
    return data


def read_frame(stream: FileIO) -> Any:
    """Return the next message of a blocking stream.

    Raises:
        EOFError: the peer closed the stream.
    """
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    return pickle.loads(_read_exactly(stream, length))


def _read_exactly(stream: FileIO, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        count = stream.readinto(view[filled:])
        if not count:
            raise EOFError
        filled += count
    return data


def write_bytes(stream: FileIO, data: bytes) -> None:
    """Write all of `data` to a blocking stream.

    Raises:
        OSError: the peer closed the stream.
    """
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


# --- non-blocking sockets ---------------------------------------------------------------------------------------------


class FrameReader:
    """Splits a stream of bytes that arrives in pieces into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take bytes in and yield every message that is complete."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            message = pickle.loads(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            yield message


class FramedSocket:
    """Sends and receives pickled messages over a socket without blocking.

    It belongs to one thread, which selects on `fileno()`.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        self.closed = False
        """The peer closed the connection, and everything that it had sent was read."""

    def fileno(self) -> int:
        """The file descriptor to select on."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the peer to read."""
        return bool(self._unsent)

    @property
    def backlog(self) -> int:
        """The number of bytes that wait for the peer to read."""
        return sum(map(len, self._unsent))

    def post(self, message: Any) -> None:
        """Send a message, now or when the socket accepts it."""
        self._unsent.append(memoryview(encode(message)))
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts now."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._unsent.clear()  # the peer is gone; `messages` will notice
                return
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def messages(self, budget: float = math.inf) -> Iterator[Any]:
        """Yield the messages that have arrived, and set `closed` at the end of the stream.

        Args:
            budget: stop after about this many bytes, so that one peer does not keep the caller from serving others.
        """
        taken = 0
        while not self.closed and taken < budget:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
            taken += len(data)
            yield from self._reader.feed(data)

    def finish(self, timeout: float, *, until_closed: bool = False) -> None:
        """Wait up to `timeout` seconds until everything is sent, or until the peer closed; drop messages that still arrive."""
        import select

        deadline = time.monotonic() + timeout
        poll = select.poll()
        while not self.closed and (until_closed or self._unsent) and (left := deadline - time.monotonic()) > 0:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(1000 * left)
            self.flush()
            for _ in self.messages():
                pass

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
