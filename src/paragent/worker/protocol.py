"""What the two ends of a worker's link say to each other: length-prefixed pickles over a socket.

A link exists only between processes of one user: one end started the other, or both have proved that they know the secret
of the run (`paragent.engines._node_auth`). So pickles are as safe here as memory is.
"""

from __future__ import annotations

import math
import pickle
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.serialization import Parcel
from paragent.tasks import Ending

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
    from io import FileIO

    from paragent.tasks import ErrorInfo
    from paragent.worker.output import Line

__all__ = [
    "AT_A_TIME",
    "CANCEL",
    "RECALL",
    "STOP",
    "Call",
    "FrameReader",
    "Hello",
    "Link",
    "News",
    "WireOutcome",
    "Work",
    "encode",
    "read_frame",
    "write_bytes",
    "write_frame",
]

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20
AT_A_TIME = 4 * _CHUNK
"""Bytes that are taken from a link before others have their turn."""

RECALL, CANCEL, STOP = "recall", "cancel", "stop"
"""Supervisor to worker: give back what has not started; cancel everything; end when done."""


class Call:
    """One attempt as an engine sees it: `unpack(target)(unpack(argument))`, under a limit. It can be pickled.

    No dataclass, as the other records that workers know: making one takes as long as loading three modules.
    """

    __slots__ = ("argument", "company", "is_async", "label", "limit", "number", "target")

    number: int
    """Names the call; its outcome carries the same number. Unique in the life of an engine."""
    target: Parcel
    """What to call; unpacked anew for every call, so that calls do not share state."""
    argument: Any
    """A `Parcel`, or a plain immutable value."""
    label: str
    """The task's id: marks prints and logs, and is what `current_task()` returns to the code."""
    limit: float | None
    """Seconds of work after which the code is stopped."""
    is_async: bool
    """The target returns a coroutine: run it on an event loop with many others."""
    company: int
    """How many calls may be in one worker together with this one, itself included; 0: any number. Used to find out which
    of several calls kills workers."""

    def __init__(
        self,
        number: int,
        target: Parcel,
        argument: Any,
        label: str,
        limit: float | None = None,
        is_async: bool = False,
        company: int = 0,
    ) -> None:
        self.number = number
        self.target = target
        self.argument = argument
        self.label = label
        self.limit = limit
        self.is_async = is_async
        self.company = company


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
    """Each: number, target, argument, label, limit, is_async. The sender chooses the numbers; outcomes name them."""
    forget_code: Sequence[str] = ()
    """Code that neither these calls nor those under way nor the targets name."""

    def unwrap(self, targets: dict[int, Parcel]) -> list[Call]:
        """Return the calls, and bring `targets`, in which the receiver keeps the targets it was sent, up to date."""
        for key, body in self.targets.items():
            targets[key] = Parcel(body, {})
        calls = [
            Call(number, targets[target], argument, label, limit, is_async)
            for number, target, argument, label, limit, is_async in self.calls
        ]
        for key in self.forget:
            targets.pop(key, None)
        return calls


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


def read_frame(link: FileIO) -> Any:
    """Return the next message of a blocking link.

    Raises:
        EOFError: the other end is gone.
    """
    (length,) = _LENGTH.unpack(_read_exactly(link, _LENGTH.size))
    return pickle.loads(_read_exactly(link, length))


def _read_exactly(link: FileIO, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        count = link.readinto(view[filled:])
        if not count:
            raise EOFError
        filled += count
    return data


def write_frame(link: FileIO, message: Any) -> None:
    """Send a message over a blocking link.

    Raises:
        OSError: the other end is gone.
    """
    write_bytes(link, encode(message))


def write_bytes(link: FileIO, frame: bytes) -> None:
    """Send the bytes of a frame over a blocking link.

    Raises:
        OSError: the other end is gone.
    """
    left = memoryview(frame)
    while left:
        left = left[link.write(left) :]


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


class Link:
    """One end of a link that is never waited for: frames out go when the other end reads, frames in are taken as they come.

    Belongs to one thread, which selects on `fileno()`.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        self.closed = False
        """The other end is gone, and everything that it had sent was read."""

    def fileno(self) -> int:
        """The file descriptor to select on."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the other end to read."""
        return bool(self._unsent)

    @property
    def backlog(self) -> int:
        """How many bytes wait for the other end to read."""
        return sum(map(len, self._unsent))

    def post(self, message: Any) -> None:
        """Send a message, now or when there is room."""
        self._unsent.append(memoryview(encode(message)))
        self.flush()

    def flush(self) -> None:
        """Send as much as goes without waiting."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._unsent.clear()  # the other end is gone; reading will find that out
                return
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def messages(self, most: float = math.inf) -> Iterator[Any]:
        """Yield the messages that are there, and note when there will be no more.

        Args:
            most: stop after about so many bytes, so that somebody who writes without end does not keep the caller here.
        """
        taken = 0
        while not self.closed and taken < most:
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

    def finish(self, seconds: float, *, until_closed: bool = False) -> None:
        """Wait until everything is sent, or even until the other end has closed; what still comes in is dropped."""
        import select

        deadline = time.monotonic() + seconds
        poll = select.poll()
        while not self.closed and (until_closed or self._unsent) and (left := deadline - time.monotonic()) > 0:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(1000 * left)
            self.flush()
            for _ in self.messages():
                pass

    def close(self) -> None:
        """Free the socket."""
        self._socket.close()
