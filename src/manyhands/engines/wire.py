"""What a worker process and its supervisor say to each other: length-prefixed pickles over a socket pair.

Both ends are processes of one user that one of them started, so pickles are as safe here as memory is.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from manyhands.tasks.outcome import Ending

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from manyhands.engines.worker.output import Line
    from manyhands.tasks import ErrorInfo

__all__ = ["CANCEL", "RECALL", "STOP", "FrameReader", "Hello", "News", "WireOutcome", "Work", "encode", "read_frame"]

_LENGTH = struct.Struct("!Q")

RECALL, CANCEL, STOP = "recall", "cancel", "stop"
"""Supervisor to worker: give back what has not started; cancel everything; end when done."""


class Hello(NamedTuple):
    """The first thing a worker hears."""

    sys_path: list[str]
    sync_limit: int
    async_limit: int
    shared_limit: bool
    log_level: int


class Work(NamedTuple):
    """Calls for a worker, with the targets and the code it does not have yet."""

    code: dict[str, bytes]
    targets: dict[int, bytes]
    forget: list[int]
    """Targets that will not be named again."""
    calls: list[tuple[int, int, Any, str, float | None, bool]]
    """Each: slot, target, argument, label, limit, is_async."""


WireOutcome = tuple[int, Ending, Any, "ErrorInfo | None", float, "dict[str, float] | None", Any]
"""Slot, ending, value, error, seconds, usage, trajectory: an `Outcome` without what the supervisor knows."""


class News(NamedTuple):
    """What happened in a worker since it last spoke."""

    outcomes: list[WireOutcome]
    lines: list[Line]
    returned: list[int] | None = None
    """The reply to RECALL: slots of calls that had not started."""


def encode(message: Any) -> bytes:
    """Return the bytes of one frame."""
    body = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(body)) + body


def read_frame(connection: socket.socket) -> Any:
    """Return the next message of a blocking socket.

    Raises:
        EOFError: the other end is gone.
    """
    (length,) = _LENGTH.unpack(_read_exactly(connection, _LENGTH.size))
    return pickle.loads(_read_exactly(connection, length))


def _read_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        count = connection.recv_into(view[filled:])
        if not count:
            raise EOFError
        filled += count
    return data


class FrameReader:
    """Cuts a stream of bytes, as it arrives in pieces, into messages."""

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
