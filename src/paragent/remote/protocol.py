"""Frames: what a client and an agent server say to each other once they trust each other.

A frame is a tuple `(number, acknowledged, sizes, items)`. Items are tuples whose first element is one of the kinds below;
everything in them is a builtin value, and what is more than that is inside as bytes which the receiver opens as its
policy allows. A frame is a pickle, or `data` where the receiver accepts no code. `sizes` announces attachments, large bytes
that follow the frame as messages of their own, so that they are not copied into it. A frame of many items costs as much to
send as a frame of one, so whatever is ready goes together.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from paragent.errors import LimitExceeded, ProtocolError
from paragent.transport.framing import pickled
from paragent.transport.limits import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "ATTACH_BYTES",
    "BYE",
    "CALL",
    "CALL_MORE",
    "CANCEL",
    "CLASS",
    "CODE",
    "CONTROL",
    "DROP",
    "ERROR",
    "FETCH",
    "GRANT",
    "HELD",
    "NEW",
    "PIN",
    "PUSH",
    "READ",
    "RELEASE",
    "RESULT",
    "STOP",
    "STREAMED",
    "Assembler",
    "encode",
]

ATTACH_BYTES = 64 << 10
"""Bytes from which on a packed object follows its frame instead of being copied into it."""

_FRAME_NESTING = 12
"""Levels of the deepest item: frame, items, item, arguments, value, and the same again for an error in a value."""

_DATA_HEAD = 64 << 20
"""Bytes of the head of a frame of data, which takes several times as much memory while it is read. Arguments from `ATTACH_BYTES`
on are not part of it."""

# Client to server; BYE means that nothing more will come.
# `agent` is a number that the client chose, or (session, number) for an agent of somebody else.
BYE = "q"
CALL = "c"  # call, agent, method, args
CALL_MORE = "C"  # call, agent, method, args, kwargs or None, credit (of a stream) or 0, seconds it may take or None
CANCEL = "x"  # call
CLASS = "k"  # number, module, qualified name, value that unpacks to the class
CODE = "y"  # {digest: bytes}
CONTROL = "?"  # call, what, argument
DROP = "d"  # agent: free it when it has done what it was asked
FETCH = "f"  # call, session or None, the call whose result is wanted
GRANT = "g"  # call, items more that a stream may send
NEW = "n"  # agent, class, how, args, kwargs or None
PIN = "p"  # call: keep its result, somebody else will fetch it
PUSH = "v"  # key, status, value: what an argument stands for
RELEASE = "l"  # call: its result is not needed any more
READ = "a"  # call, agent, attribute
STOP = "s"  # call, agent: free it now

# Server to client.
RESULT = "r"  # call, value
ERROR = "e"  # call, value that unpacks to an exception
HELD = "h"  # call, bytes: the result stays on the server until it is fetched or released
STREAMED = "i"  # call, [values]


def encode(
    number: int, acknowledged: int, items: Sequence[Any], attachments: Sequence[Any], *, as_data: bool = False
) -> list[bytes]:
    """Return the messages of one frame; `as_data` for a receiver that unpickles nothing of the sender."""
    dumps = _as_data if as_data else pickled
    sizes = tuple(len(attachment) for attachment in attachments)
    head = dumps((number, acknowledged, sizes, items))
    messages = [bytes(piece) for piece in _pieces(head)] if len(head) > MESSAGE_BYTES else [head]
    if len(messages) > 1:
        # A head of several messages is announced as the attachment of a frame that has nothing else.
        messages = [dumps((number, acknowledged, len(head), None)), *messages]
    for attachment in attachments:
        if len(attachment) <= MESSAGE_BYTES and type(attachment) is bytes:
            messages.append(attachment)
        else:
            messages += [bytes(piece) for piece in _pieces(attachment)]
    return messages


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
    """Puts frames together from messages as they arrive.

    Args:
        limit: the largest frame, in bytes.
        as_data: whether frames are read as data, which the sender must have written them as; nothing is unpickled then.

    Raises:
        ProtocolError: (by `feed`) a message is not what must come now.
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

    def feed(self, message: bytes) -> tuple[int, int, list[Any], list[bytes]] | None:
        """Take a message in; return `(number, acknowledged, items, attachments)` when it completes a frame."""
        if not self._missing:
            return self._begin(message)
        if not message:
            raise ProtocolError("a message without content")
        self._pieces.append(message)
        self._filled += len(message)
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
        number, acknowledged, _, items = self._head
        attachments, self._attachments, self._head = self._attachments, [], None
        return number, acknowledged, items, attachments


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
    sizes, items = head[2], head[3]
    if type(sizes) is int and items is None and sizes > 0:
        return head
    if type(sizes) is not tuple or type(items) is not list:
        raise ProtocolError("a frame of the wrong shape")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ProtocolError("a frame of the wrong shape")
    if not all(type(item) is tuple and item and type(item[0]) is str for item in items):
        raise ProtocolError("a frame of the wrong shape")
    return head
