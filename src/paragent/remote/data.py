"""Encoding of data without code: for arguments and frames that are sent to a server that accepts no code.

The encoding is the length of a JSON text, the text, and the raw bytes that it refers to. In the text, null, true, false,
numbers below 2**63 and short strings stand for themselves. An object is a dict whose keys are strings. An array begins with a
tag that says which of the types below it is. Raw bytes are used once each, in order, and there are no other references, so a
value takes no more memory than its bytes suggest. The text names no classes: a reader creates only the types listed here.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from paragent.errors import AccessDenied, LimitExceeded, ProtocolError
from paragent.messages import ActionModel, Msg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TAGS", "ProxyReference", "dump", "load"]


class ProxyReference(NamedTuple):
    """The proxy of a remote agent as data: where the agent is. The reader decides whether and how to connect to it."""

    host: str
    port: int
    session: str
    """The client that created the agent, as its server knows it."""
    number: int
    tls: bool
    """Whether its server uses TLS."""
    kind: str
    """Name of its class, to find the reader's own class of this name."""


_HEAD = 8
"""Number of bytes that hold the length of the text."""
_DEEPEST = 400
"""Levels after which a writer assumes that an object contains itself. Readers have stricter limits."""
_SMALL_INT = 1 << 63
_INT_BITS = 1 << 18
"""Longest integer. Readers and writers have the same limit, so that a value that was read can be written again."""
_INT_DIGITS = _INT_BITS // 4 + 3
"""Hexadecimal digits of the longest integer, including a sign and `0x`."""
_FRACTION_BITS = 1 << 14
"""Longest numerator and denominator. The time to reduce a fraction grows with the square: half a millisecond at this size."""
_DECIMAL_CHARACTERS = 10_000
_DECIMAL_EXPONENT = 10_000
"""Largest exponent of a decimal: converting one with a larger exponent to an integer would fill the memory."""
_TIME_CHARACTERS = 64
_NAME_CHARACTERS = 1_000
"""Longest name of a host, a session or a class."""
_ARRAY = re.compile(r"[<>|=]?[biufcSU][0-9]{1,6}|[<>|=]?[mM]8(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
"""Types of array elements: numbers, strings and times. Not objects, and not records, whose fields may be objects."""
_RECURSION = 2_000
"""The JSON parser counts levels against Python's recursion limit. If the limit was raised above this, the stack may overflow
first, so levels are counted before the text is parsed."""
_STRINGS = re.compile(r'"(?>[^"\\]+|\\.)*+"?', re.DOTALL)
"""Strings; the last one may be cut off. The quantifiers are possessive, so that the time never grows with the square."""
_PARTS = 1 << 22
_TEXT_BYTES = 64 << 20
"""Most parts and bytes of a JSON text. The parser blocks all other threads and takes up to 70 bytes of memory for each part: a
second and 300 MB at these limits."""
_LONG_TEXT = 64 << 10
"""A string of this many characters or more is not part of the JSON text but raw bytes."""
_EQUAL_HASHES = 32
"""Most members of a set, or keys of a dict, with the same hash. Each is compared with all others of its hash: a megabyte of
multiples of 2**61 - 1, whose hash is 0, would block the interpreter for a minute."""
_FRAME_TAGS = frozenset("ltbwifj")
"""Tags that a frame may contain."""
_BRACKETS = re.compile(r"[\[\]{}]")
_LONG = 32
"""A list of this many numbers of one type or more is written as raw bytes, which is fifty times faster."""
_NUMBERS = {"d": "f", "q": "j"}
_PLAIN = frozenset({float, bool, type(None)})
_SCALARS = _PLAIN | {int, str}
_FACTORIES: dict[str, Any] = {"": None, **{kind.__name__: kind for kind in (dict, float, int, list, set, str)}}
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}


def dump(thing: Any, expand: Callable[[Any], Any] | None = None, *, proxies: bool = True) -> bytes:
    """Return an encoded value.

    Args:
        thing: a value of the types that `load` returns.
        expand: called with an object of another type; returns what to write instead, or the same object.
        proxies: whether it may contain proxies of agents.

    Raises:
        AccessDenied: it contains an object of another type.
        LimitExceeded: it is nested too deeply, or contains itself.
    """
    writer = _Writer(expand, proxies=proxies)
    try:
        tree = writer.write(thing, 0)
        sizes = [len(buffer) for buffer in writer.buffers]
        text = json.dumps([tree, sizes], ensure_ascii=False, check_circular=False, separators=(",", ":"))
    except RecursionError:
        raise LimitExceeded("a value is nested too deeply, or contains itself") from None
    encoded = text.encode("utf-8", "surrogatepass")
    return b"".join([len(encoded).to_bytes(_HEAD, "big"), encoded, *writer.buffers])


def load(
    data: bytes,
    nesting: int,
    refused: str = "",
    *,
    frame: bool = False,
    proxy: Callable[[ProxyReference], Any] | None = None,
) -> Any:
    """Return a decoded value. The bytes may come from an untrusted sender.

    Args:
        data: the encoded value.
        nesting: most levels of containers within containers.
        refused: a key that no dict may have.
        frame: whether it is a frame, which has only None, bool, int, float, str, bytes, tuple, list and dict with str keys.
        proxy: returns the proxy of a remote agent, or raises `AccessDenied`; None: proxies are rejected.

    Raises:
        LimitExceeded: it is nested too deeply, has too many parts, or too many keys with the same hash.
        AccessDenied: a dict has the key `refused`, or a proxy is rejected.
        ProtocolError: the bytes are malformed.
    """
    view = memoryview(data)
    end = _HEAD + int.from_bytes(view[:_HEAD], "big")
    if len(view) < _HEAD or end > len(view):
        raise ProtocolError("an encoded value is cut off")
    if end - _HEAD > _TEXT_BYTES:
        raise LimitExceeded(f"a value of more than {_TEXT_BYTES >> 20} MiB, without its bytes, arrays and long strings")
    try:
        text = str(view[_HEAD:end], "utf-8", "surrogatepass")
        if text.count(",") + text.count("[") + text.count("{") > _PARTS:
            raise LimitExceeded(f"a value of more than {_PARTS} parts; send arrays or lists of numbers of one type")
        if sys.getrecursionlimit() > _RECURSION:
            _count_levels(text, nesting + 3)
        tree, sizes = json.loads(text)
        pieces = _cut(view, end, sizes)
        return _Reader(iter(pieces), nesting, refused, proxy, _FRAME_TAGS if frame else None).read(tree, 0)
    except (LimitExceeded, AccessDenied, ProtocolError):
        raise
    except RecursionError:
        raise LimitExceeded(f"an argument is nested more than {nesting} levels deep") from None
    except Exception as error:  # noqa: BLE001 - malformed bytes cause many kinds of errors
        raise ProtocolError(f"an encoded value is malformed: {type(error).__name__}") from None


def _count_levels(text: str, limit: int) -> None:
    """Check that a text has at most `limit` levels: the root, those of the value, and one for a value without parts."""
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > limit:
            raise LimitExceeded(f"an argument is nested more than {limit - 3} levels deep")


def _cut(view: memoryview, start: int, sizes: Any) -> list[memoryview]:
    """Return the pieces of raw bytes that follow a text."""
    if type(sizes) is not list or not all(type(size) is int and size >= 0 for size in sizes):
        raise ProtocolError("an encoded value has the wrong shape")
    if start + sum(sizes) != len(view):
        raise ProtocolError("the parts of an encoded value do not add up to its length")
    pieces = []
    for size in sizes:
        pieces.append(view[start : start + size])
        start += size
    return pieces


def _stays(thing: Any) -> bool:
    """Return whether a value stands for itself in the JSON text."""
    kind = type(thing)
    return kind in _PLAIN or (kind is str and len(thing) < _LONG_TEXT)


class _Writer:
    """Creates the tree of a JSON text, and collects the raw bytes that it refers to."""

    def __init__(self, expand: Callable[[Any], Any] | None, *, proxies: bool) -> None:
        self._expand, self._proxies = expand, proxies
        self.buffers: list[Any] = []

    def write(self, thing: Any, depth: int) -> Any:
        kind = type(thing)
        if kind in _PLAIN or (kind is int and -_SMALL_INT < thing < _SMALL_INT):
            return thing
        if kind is str:
            return thing if len(thing) < _LONG_TEXT else self._write_text(thing)
        if depth > _DEEPEST:
            raise LimitExceeded("a value is nested too deeply, or contains itself")
        if kind is dict and all(type(key) is str for key in thing):
            return {key: value if _stays(value) else self.write(value, depth + 1) for key, value in thing.items()}
        sequence = _SEQUENCE_TAGS.get(kind)
        if kind is list and len(thing) >= _LONG and (tag := self._write_numbers(thing)):
            return [tag]
        if sequence is not None:
            return [sequence, *[part if _stays(part) else self.write(part, depth + 1) for part in thing]]
        writer = _WRITERS.get(kind)
        if writer is not None:
            tag, *parts = writer(thing)
            return [tag, *[self.write(part, depth + 1) for part in parts]]
        if kind is bytes or kind is bytearray:
            self.buffers.append(thing)
            return ["b" if kind is bytes else "y"]
        return self._write_other(thing, depth)

    def _write_text(self, thing: str) -> list[str]:
        self.buffers.append(thing.encode("utf-8", "surrogatepass"))
        return ["w"]

    def _write_numbers(self, thing: list[Any]) -> str | None:
        """Write a list of floats or of 64-bit integers as raw bytes; return its tag, or None for any other list."""
        kinds = set(map(type, thing))
        code = "d" if kinds == {float} else "q" if kinds == {int} else None
        if code is None:
            return None
        try:
            numbers = array(code, thing)
        except OverflowError:
            return None
        if sys.byteorder == "big":
            numbers.byteswap()
        self.buffers.append(numbers.tobytes())
        return _NUMBERS[code]

    def _write_other(self, thing: Any, depth: int) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and (type(thing) is numpy.ndarray or isinstance(thing, numpy.generic)):
            if not _ARRAY.fullmatch(thing.dtype.str):
                raise AccessDenied(f"the server accepts no code, so arrays of {thing.dtype} cannot be sent")
            self.buffers.append(thing.tobytes())
            return ["n", thing.dtype.str, *thing.shape] if type(thing) is numpy.ndarray else ["N", thing.dtype.str]
        if hasattr(type(thing), "__paragent_agent__"):
            if not self._proxies:
                raise AccessDenied("an attribute with the proxy of an agent cannot be read: a method may return it")
            return ["P", *thing.__paragent_reference__()]
        expanded = thing if self._expand is None else self._expand(thing)
        if expanded is not thing:
            return self.write(expanded, depth)
        kind = thing if isinstance(thing, type) else type(thing)
        raise AccessDenied(
            f"the server accepts no code: {kind.__module__}.{kind.__qualname__} is not one of the types that it reads "
            "(numbers, strings, bytes, containers, times, arrays, Msg, ActionModel, proxies of agents on its trusted servers)"
        )


class _Reader:
    """Creates a value from the tree of a JSON text, and counts levels."""

    def __init__(
        self,
        buffers: Iterator[memoryview],
        nesting: int,
        refused: str,
        proxy: Callable[[ProxyReference], Any] | None,
        tags: frozenset[str] | None,
    ) -> None:
        self._buffers, self._nesting, self._refused, self._proxy, self._tags = buffers, nesting, refused, proxy, tags

    def read(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind is not list and kind is not dict:
            return node
        if depth >= self._nesting and not (kind is list and node[0] in _LEAVES):
            raise LimitExceeded(f"an argument is nested more than {self._nesting} levels deep")
        deeper = depth + 1
        if kind is dict:
            self._check_key(self._refused in node)
            return {key: value if type(value) in _SCALARS else self.read(value, deeper) for key, value in node.items()}
        tag = node[0]
        if self._tags is not None and tag not in self._tags:
            raise ProtocolError("a frame has a value of a type that frames cannot have")
        if tag in _LEAVES:
            return _LEAVES[tag](self._buffers, *node[1:])
        parts = [part if type(part) in _SCALARS else self.read(part, deeper) for part in node[1:]]
        return _READERS[tag](self, parts)

    def pairs(self, parts: list[Any]) -> list[tuple[Any, Any]]:
        """Return the pairs of a list in which keys and values alternate."""
        if len(parts) % 2:
            raise ProtocolError("a dict with a key that has no value")
        keys = _hashable(parts[::2])
        self._check_key(self._refused in keys)
        return list(zip(keys, parts[1::2], strict=True))

    def proxy(self, parts: list[Any]) -> Any:
        """Return the proxy of a remote agent."""
        kinds = [str, int, str, int, bool, str]
        if [type(part) for part in parts] != kinds or max(
            len(parts[0]), len(parts[2]), len(parts[5])
        ) > _NAME_CHARACTERS:
            raise ProtocolError("a malformed proxy of an agent")
        if self._proxy is None:
            raise AccessDenied("proxies of agents are not read here")
        return self._proxy(ProxyReference(*parts))

    def _check_key(self, found: bool) -> None:
        if found and self._refused:
            raise AccessDenied(f"arguments for this server must not have a key {self._refused!r}")


def _hashable(parts: list[Any]) -> list[Any]:
    """Return the parts, after checking that they can become members of a set or keys of a dict."""
    if len(parts) > _EQUAL_HASHES and max(Counter(map(hash, parts)).values()) > _EQUAL_HASHES:
        raise LimitExceeded(f"more than {_EQUAL_HASHES} keys or members with the same hash")
    return parts


# --- values of one kind -------------------------------------------------------------------------------------------------


def _integer(_: Any, digits: str) -> int:
    if len(digits) > _INT_DIGITS:
        raise LimitExceeded(f"an integer of more than {_INT_BITS} bits")
    return _checked(int(digits, 16))


def _hexadecimal(thing: int) -> tuple[str, str]:
    return "i", hex(_checked(thing))


def _checked(thing: int) -> int:
    if thing.bit_length() > _INT_BITS:
        raise LimitExceeded(f"an integer of more than {_INT_BITS} bits")
    return thing


def _decimal(_: Any, text: str) -> Decimal:
    if type(text) is not str or len(text) > _DECIMAL_CHARACTERS:
        raise LimitExceeded(f"a decimal of more than {_DECIMAL_CHARACTERS} characters")
    number = Decimal(text)
    if number.is_finite() and abs(number.as_tuple().exponent) > _DECIMAL_EXPONENT:  # type: ignore[arg-type]
        raise LimitExceeded(f"a decimal with an exponent beyond {_DECIMAL_EXPONENT}")
    return number


def _fraction(_: _Reader, parts: list[Any]) -> Fraction:
    numerator, denominator = parts
    if type(numerator) is not int or type(denominator) is not int:
        raise ProtocolError("a fraction must consist of integers")
    if max(numerator.bit_length(), denominator.bit_length()) > _FRACTION_BITS:
        raise LimitExceeded(f"a fraction of integers of more than {_FRACTION_BITS} bits")
    return Fraction(numerator, denominator)


def _moment(thing: dt.datetime | dt.time) -> tuple[str, str, int]:
    if thing.tzinfo is not None and type(thing.tzinfo) is not dt.timezone:
        raise AccessDenied(
            f"the server accepts no code, and the time zone {type(thing.tzinfo).__name__} is a class of its own"
        )
    return "T" if type(thing) is dt.datetime else "h", thing.isoformat(), thing.fold


def _time_of(kind: Any) -> Callable[..., Any]:
    def read(_: Any, text: str, fold: int = 0) -> Any:
        if len(text) > _TIME_CHARACTERS:
            raise LimitExceeded(f"a time of more than {_TIME_CHARACTERS} characters")
        made = kind.fromisoformat(text)
        return made.replace(fold=fold) if fold else made

    return read


def _array(buffers: Iterator[memoryview], kind: str, *shape: int) -> Any:
    numpy, dtype = _dtype(kind)
    buffer = next(buffers)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ProtocolError("an array of the wrong shape")
    if math.prod(shape) * dtype.itemsize != len(buffer):
        raise ProtocolError("an array whose bytes do not fit its shape")
    if not len(buffer):
        return numpy.zeros(shape, dtype) if 0 in shape else numpy.zeros(0, dtype).reshape(shape)
    flat = numpy.frombuffer(buffer, dtype)
    if (dtype.kind == "b" and flat.view("u1").max() > 1) or (
        dtype.kind == "U" and flat.view(numpy.dtype("u4").newbyteorder(dtype.byteorder)).max() > sys.maxunicode
    ):
        raise ProtocolError("an array with values that its type does not have")
    return flat.reshape(shape).copy()


def _numbers(code: str) -> Callable[..., Any]:
    def read(buffers: Iterator[memoryview]) -> list[Any]:
        numbers = array(code)
        numbers.frombytes(next(buffers))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()

    return read


def _scalar(buffers: Iterator[memoryview], kind: str) -> Any:
    _, dtype = _dtype(kind)
    if not dtype.itemsize:
        next(buffers)
        return dtype.type()
    return _array(buffers, kind, 1)[0]


def _dtype(kind: str) -> tuple[Any, Any]:
    if not _ARRAY.fullmatch(kind):
        raise ProtocolError("an array of a type that is not allowed")
    try:
        import numpy as np
    except ImportError:
        raise AccessDenied("this server cannot read arrays: numpy is not installed there") from None
    return np, np.dtype(kind)


def _message(_: _Reader, parts: list[Any]) -> Msg:
    name, _content, role, metadata, identifier, timestamp = parts
    texts = type(name) is str and type(role) is str and type(identifier) is str
    if not texts or type(metadata) is not dict or type(timestamp) not in (float, int):
        raise ProtocolError("a message with fields of the wrong types")
    return Msg(*parts)


def _default_dict(reader: _Reader, parts: list[Any]) -> Any:
    return defaultdict(_FACTORIES[parts[0]], reader.pairs(parts[1:]))


def _write_default_dict(thing: Any) -> tuple[Any, ...]:
    if thing.default_factory not in _FACTORY_NAMES:
        raise AccessDenied("the server accepts no code: the factory of a defaultdict must be a builtin type")
    return ("E", _FACTORY_NAMES[thing.default_factory], *_flat(thing))


def _flat(thing: Any) -> chain[Any]:
    return chain.from_iterable(thing.items())


def _counter(reader: _Reader, parts: list[Any]) -> Any:
    return Counter(dict(reader.pairs(parts)))


_SEQUENCE_TAGS: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}

_WRITERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    int: _hexadecimal,
    dict: lambda thing: ("d", *_flat(thing)),
    complex: lambda thing: ("c", thing.real, thing.imag),
    range: lambda thing: ("r", thing.start, thing.stop, thing.step),
    slice: lambda thing: ("e", thing.start, thing.stop, thing.step),
    deque: lambda thing: ("q", thing.maxlen, *thing),
    Counter: lambda thing: ("C", *_flat(thing)),
    OrderedDict: lambda thing: ("O", *_flat(thing)),
    defaultdict: _write_default_dict,
    dt.datetime: _moment,
    dt.time: _moment,
    dt.date: lambda thing: ("a", thing.isoformat()),
    dt.timedelta: lambda thing: ("g", thing.days, thing.seconds, thing.microseconds),
    dt.timezone: lambda thing: ("o", thing.utcoffset(None)),
    Decimal: lambda thing: ("D", str(thing)),
    Fraction: lambda thing: ("F", thing.numerator, thing.denominator),
    UUID: lambda thing: ("u", thing.hex),
    Msg: lambda thing: ("M", thing.name, thing.content, thing.role, thing.metadata, thing.id, thing.timestamp),
    ActionModel: lambda thing: ("A", *(getattr(thing, name) for name in ActionModel.__dataclass_fields__)),
}

_READERS: dict[str, Callable[[_Reader, list[Any]], Any]] = {
    "l": lambda _, parts: parts,
    "t": lambda _, parts: tuple(parts),
    "s": lambda _, parts: set(_hashable(parts)),
    "z": lambda _, parts: frozenset(_hashable(parts)),
    "d": lambda reader, parts: dict(reader.pairs(parts)),
    "r": lambda _, parts: range(*parts),
    "e": lambda _, parts: slice(*parts),
    "q": lambda _, parts: deque(parts[1:], parts[0]),
    "C": _counter,
    "O": lambda reader, parts: OrderedDict(reader.pairs(parts)),
    "E": _default_dict,
    "o": lambda _, parts: dt.timezone(*parts),
    "F": _fraction,
    "M": _message,
    "A": lambda _, parts: ActionModel(*parts),
    "P": lambda reader, parts: reader.proxy(parts),
}

_LEAVES: dict[str, Callable[..., Any]] = {
    "i": _integer,
    "b": lambda buffers: bytes(next(buffers)),
    "y": lambda buffers: bytearray(next(buffers)),
    "w": lambda buffers: str(next(buffers), "utf-8", "surrogatepass"),
    "c": lambda _, real, imaginary: complex(real, imaginary),
    "T": _time_of(dt.datetime),
    "h": _time_of(dt.time),
    "a": _time_of(dt.date),
    "g": lambda _, days, seconds, microseconds: dt.timedelta(days, seconds, microseconds),
    "D": _decimal,
    "u": lambda _, digits: UUID(digits),
    **{tag: _numbers(code) for code, tag in _NUMBERS.items()},
    "n": _array,
    "N": _scalar,
}
"""Types without parts. They do not count as levels."""

TAGS = frozenset({*_READERS, *_LEAVES})
"""Tags of all types that are written as an array."""
