"""Protocol between a client and an agent server: the messages, and the frames that carry them.

Messages are the dataclasses below. Their fields are builtin values. Objects are inside as bytes (see `values`), which the
receiver unpacks as its policy allows.

A frame is `(number, acknowledged, sizes, batches)`. `batches` holds the messages in order: each batch is the name of a message
class and a list of rows, the field values of consecutive messages of that class. `sizes` announces attachments: large bytes
that follow the frame as gRPC messages of their own, so that they are not copied into it. A frame is a pickle of builtin
values, or `data` where the receiver accepts no code. Sending a frame costs the same for one message as for many, so all
messages that are ready share one.
"""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass, fields
from itertools import groupby, starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from paragent.errors import LimitExceeded, ProtocolError
from paragent.transport.framing import pickled
from paragent.transport.limits import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "ATTACH_BYTES",
    "MAX_ARGUMENTS",
    "MAX_NAME",
    "SESSION",
    "AddCode",
    "Assembler",
    "CallError",
    "CallMethod",
    "CallResult",
    "CancelCall",
    "CreateAgent",
    "DefineClass",
    "DropAgent",
    "FetchResult",
    "Goodbye",
    "GrantCredit",
    "OutcomeKind",
    "PinResult",
    "PushValue",
    "QueryServer",
    "ReadAttribute",
    "ReleaseResult",
    "RequestValue",
    "ResultHeld",
    "StopAgent",
    "StreamItems",
    "encode",
    "fields_of",
]

ATTACH_BYTES = 64 << 10
"""A packed object of this many bytes or more follows its frame as an attachment."""

SESSION = re.compile("[0-9a-f]{32}")
"""Identity of a session, which the client chooses at random."""

MAX_ARGUMENTS = 1 << 16
MAX_NAME = 1_000
"""Most arguments of a call, and characters of a name. A restricted server ends the session of a client that exceeds them, so each
client checks them: its own caller may be another client."""

_FRAME_NESTING = 14
"""Levels of the deepest frame: frame, batches, batch, rows, row, arguments, value, and the same again for an error in a value."""

_DATA_HEAD = 64 << 20
"""Largest head of a frame of data, in bytes. Reading it takes several times as much memory. Attachments are not part of it."""

# --- client to server -------------------------------------------------------------------------------------------------
#
# `number` identifies a call within its session. `agent` is a number that the client chose, or `(session, number)` for an
# agent that another client created.


@dataclass(slots=True)
class Goodbye:
    """The client closes its session."""


@dataclass(slots=True)
class CallMethod:
    """Call a method of an agent."""

    number: int
    agent: Any
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None = None
    credit: int = 0
    """For a generator method: items that may be sent before `GrantCredit`."""
    seconds: float | None = None
    """Deadline of the call; for a generator method, of each item."""


@dataclass(slots=True)
class CancelCall:
    """Cancel a call."""

    number: int


@dataclass(slots=True)
class DefineClass:
    """Name an agent class that `CreateAgent` messages refer to by `number`."""

    number: int
    module: str
    qualname: str
    value: Any
    """Decodes to the class; None for a server that accepts no code."""


@dataclass(slots=True)
class AddCode:
    """Code that later objects need, by digest."""

    code: dict[str, bytes]


@dataclass(slots=True)
class QueryServer:
    """Ask the server about itself, or to stop."""

    number: int
    what: str
    argument: Any


@dataclass(slots=True)
class DropAgent:
    """Free an agent when it has done what it was asked."""

    agent: Any


@dataclass(slots=True)
class FetchResult:
    """Ask for the result of the call `wanted`, of this session (None) or another one."""

    number: int
    session: str | None
    wanted: int


@dataclass(slots=True)
class GrantCredit:
    """Allow a stream to send `count` more items."""

    number: int
    count: int


@dataclass(slots=True)
class CreateAgent:
    """Create an agent: `how` is "init" (constructor arguments), "state" (its state) or "object" (the pickled agent)."""

    agent: int
    cls: int
    how: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None = None


@dataclass(slots=True)
class PinResult:
    """Keep the result of a call, because another call will fetch it."""

    number: int


@dataclass(slots=True)
class PushValue:
    """The value, or the error, that an argument `("v", key)` stands for."""

    key: int
    failed: bool
    value: Any


@dataclass(slots=True)
class ReleaseResult:
    """Free the result of a call that the server keeps."""

    number: int


@dataclass(slots=True)
class ReadAttribute:
    """Ask for an attribute of an agent."""

    number: int
    agent: Any
    attribute: str


@dataclass(slots=True)
class StopAgent:
    """Free an agent now; calls that wait or run fail."""

    number: int
    agent: Any


# --- server to client -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CallResult:
    """The result of a call."""

    number: int
    value: Any


@dataclass(slots=True)
class CallError:
    """The error of a call; `value` decodes to an exception."""

    number: int
    value: Any


@dataclass(slots=True)
class ResultHeld:
    """The result of a call has `size` bytes and stays on the server until it is fetched or released."""

    number: int
    size: int


@dataclass(slots=True)
class RequestValue:
    """The server cannot reach the server of a result that is an argument: the client is to push the value.

    `number` is the key that the reference names.
    """

    number: int
    value: None


@dataclass(slots=True)
class StreamItems:
    """Items that a generator has yielded."""

    number: int
    values: list[Any]


OutcomeKind = type[CallResult] | type[CallError]
"""How a call ended."""


# --- frames -----------------------------------------------------------------------------------------------------------


def _row_reader(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that reads the field values of a message."""
    names = [field.name for field in fields(cls)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: tuple([getattr(message, name) for name in names])


_MESSAGES = {
    cls.__name__: cls
    for cls in (
        *(AddCode, CallError, CallMethod, CallResult, CancelCall, CreateAgent, DefineClass, DropAgent, FetchResult),
        *(Goodbye, GrantCredit, PinResult, PushValue, QueryServer, ReadAttribute, ReleaseResult, RequestValue),
        *(ResultHeld, StopAgent, StreamItems),
    )
}
_ROW_READERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {cls: _row_reader(cls) for cls in _MESSAGES.values()}


def fields_of(message: Any) -> tuple[Any, ...]:
    """Return the field values of a message, in order."""
    return _ROW_READERS[type(message)](message)


def _to_batches(messages: Iterable[Any]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    return [(cls.__name__, list(map(_ROW_READERS[cls], group))) for cls, group in groupby(messages, type)]


def _from_batches(batches: list[Any]) -> list[Any]:
    """Return the messages of a frame.

    Raises:
        ProtocolError: a batch is malformed.
    """
    messages: list[Any] = []
    for batch in batches:
        if type(batch) is not tuple or len(batch) != 2 or type(batch[0]) is not str or type(batch[1]) is not list:
            raise ProtocolError("a frame of the wrong shape")
        name, rows = batch
        cls: Any = _MESSAGES.get(name)
        if cls is None or set(map(type, rows)) != {tuple}:
            raise ProtocolError(f"malformed messages of kind {name[:20]!r}")
        try:
            messages += starmap(cls, rows)
        except TypeError:
            raise ProtocolError(f"a message of kind {name!r} with the wrong number of fields") from None
    return messages


def encode(
    number: int, acknowledged: int, messages: Sequence[Any], attachments: Sequence[Any], *, as_data: bool = False
) -> list[bytes]:
    """Return one frame as the parts that gRPC sends; `as_data` for a receiver that unpickles nothing of the sender."""
    dumps = _as_data if as_data else pickled
    sizes = tuple(len(attachment) for attachment in attachments)
    head = dumps((number, acknowledged, sizes, _to_batches(messages)))
    parts = [bytes(piece) for piece in _pieces(head)] if len(head) > MESSAGE_BYTES else [head]
    if len(parts) > 1:
        # A head of several parts is announced as the attachment of a frame that has nothing else.
        parts = [dumps((number, acknowledged, len(head), None)), *parts]
    for attachment in attachments:
        if len(attachment) <= MESSAGE_BYTES and type(attachment) is bytes:
            parts.append(attachment)
        else:
            parts += [bytes(piece) for piece in _pieces(attachment)]
    return parts


def _pieces(data: Any) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(view), MESSAGE_BYTES):
        yield view[start : start + MESSAGE_BYTES]


class _BuiltinsOnly(pickle.Unpickler):
    """Reads builtin values and containers; a frame never names a class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse: there is no reason for a frame to ask."""
        raise ProtocolError(f"a frame names {module}.{name}")


class Assembler:
    """Assembles frames from the parts that gRPC delivers.

    Args:
        limit: the largest frame, in bytes.
        as_data: whether frames are read as data, which the sender must have written them as; nothing is unpickled then.

    Raises:
        ProtocolError: (by `feed`) a part is malformed or out of place.
        LimitExceeded: (by `feed`) a frame is larger than `limit` bytes.
    """

    def __init__(self, limit: int, *, as_data: bool = False) -> None:
        self._limit = limit
        self._head_limit = min(limit, _DATA_HEAD) if as_data else limit
        self._load = _load_data if as_data else _load_pickle
        self._head: tuple[int, int, tuple[int, ...], Any] | None = None
        self._missing: list[int] = []
        self._pieces: list[bytes] = []
        self._filled = 0
        self._attachments: list[bytes] = []
        self._long_head = False

    def feed(self, part: bytes) -> tuple[int, int, list[Any], list[bytes]] | None:
        """Add a part; return `(number, acknowledged, messages, attachments)` when it completes a frame."""
        if not self._missing:
            return self._begin(part)
        if not part:
            raise ProtocolError("an empty part of a frame")
        self._pieces.append(part)
        self._filled += len(part)
        if self._filled > self._missing[0]:
            raise ProtocolError("an attachment is longer than announced")
        if self._filled == self._missing[0]:
            whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces, self._filled = [], 0
            del self._missing[0]
            if self._long_head:
                self._long_head = False
                return self._begin(whole)
            self._attachments.append(whole)
        return None if self._missing else self._complete()

    def _begin(self, data: bytes) -> tuple[int, int, list[Any], list[bytes]] | None:
        head = _read_head(data, self._load)
        if isinstance(head[2], int):
            self._announce((head[2],), self._head_limit)
            self._long_head = True
            return None
        self._head = head
        self._announce(head[2], self._limit)
        return None if self._missing else self._complete()

    def _announce(self, sizes: tuple[int, ...], limit: int) -> None:
        if sum(sizes) > limit:
            raise LimitExceeded(f"a frame of {sum(sizes)} bytes; the limit is {limit}")
        self._missing = list(sizes)

    def _complete(self) -> tuple[int, int, list[Any], list[bytes]]:
        assert self._head is not None
        number, acknowledged, _, messages = self._head
        attachments, self._attachments, self._head = self._attachments, [], None
        return number, acknowledged, messages, attachments


def _load_pickle(data: bytes) -> Any:
    return _BuiltinsOnly(io.BytesIO(data)).load()


def _as_data(head: Any) -> bytes:
    from paragent.remote.data import dump  # not at the top: only restricted servers and their clients need it

    return dump(head)


def _load_data(data: bytes) -> Any:
    from paragent.remote.data import load  # as above

    return load(data, _FRAME_NESTING, frame=True)


def _read_head(data: bytes, loads: Callable[[bytes], Any]) -> tuple[int, int, Any, Any]:
    try:
        head = loads(data)
    except ProtocolError:
        raise
    except Exception as error:  # noqa: BLE001 - the unpickler raises anything for random bytes
        raise ProtocolError(f"a frame that cannot be read: {type(error).__name__}") from None
    if type(head) is not tuple or len(head) != 4 or type(head[0]) is not int or type(head[1]) is not int:
        raise ProtocolError("a frame of the wrong shape")
    number, acknowledged, sizes, batches = head
    if type(sizes) is int and batches is None and sizes > 0:
        return number, acknowledged, sizes, None
    if type(sizes) is not tuple or type(batches) is not list:
        raise ProtocolError("a frame of the wrong shape")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ProtocolError("a frame of the wrong shape")
    return number, acknowledged, sizes, _from_batches(batches)
