"""Pickling of exceptions: as class, arguments, attributes and cause, rebuilt without calling their constructor.

`pickle` calls the constructor with `error.args`, which fails for classes whose constructor takes other arguments. Here the
builtin base class creates the instance, and its attributes are set one by one. An attribute that cannot be pickled (a stream, a
lock) is left out and named in a note.

An exception may contain others in its arguments, its attributes and as its cause, often the same one several times. All of them
are records in one list, and parts refer to them by their index.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import threading
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from paragent.serialization.payload import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ErrorWriter", "dump_data", "rebuild", "reduce_error", "refer"]

_HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: set for classes that Python code defines, not for builtin ones."""
_NOT_SENT = frozenset({"__suppress_context__", "obj", "message", "exceptions"})
"""Attributes of builtin exceptions that are not sent: `obj` of an `AttributeError` is the object without the attribute, and a
group gets its message and its exceptions from its arguments."""
_DEEPEST = 20
"""Levels of causes of causes, and of exceptions within exceptions, that are sent."""
_MOST_BYTES = 8 << 20
"""Bytes of one exception, including those inside it; parts beyond that are left out."""

Part = tuple[int, Any]
"""0 and a builtin value, or 1 and the pickle of another object."""
Record = tuple[bytes, tuple[Part, ...], dict[str, Part], "Part | None", list[str]]
"""One exception: its pickled class, arguments, attributes, cause, and the names of parts that were left out."""


class ErrorWriter:
    """Writes one exception and the exceptions inside it: each is written once, and every other use refers to it.

    Args:
        write: returns the pickle of one part; for exceptions in it, it calls `refer`.
        lenient: leave out parts that cannot be written or read; otherwise raise what `write` raises.
    """

    def __init__(self, write: Callable[[Any, ErrorWriter], bytes], *, lenient: bool) -> None:
        self._write = write
        self._lenient = lenient
        self._records: list[Record | None] = []
        self._copies = _Copies(self._records)
        self._places: dict[int, tuple[BaseException, int | None]] = {}
        """The exceptions so far and their indexes in `_records`, by identity; None if one cannot be rebuilt."""
        self._open: list[int] = []
        """The exceptions that are being written, to detect one that contains itself."""
        self._room = _MOST_BYTES

    def take_apart(self, error: BaseException) -> tuple[Any, ...]:
        """Return how a pickler writes the outermost exception: `rebuild` and its arguments. It calls no method of it."""
        self._place_of(error)
        return rebuild, (self._records,)

    def refer(self, error: BaseException) -> tuple[Any, ...]:
        """Return how a pickler writes an exception inside the outermost one."""
        return refer, (self._place_of(error),)

    def _place_of(self, error: BaseException) -> int:
        if id(error) in self._open or len(self._open) >= _DEEPEST:
            cls = self._write(type(error), self)
            self._records.append((cls, (), {}, None, ["its content, which is nested too deeply"]))
            return len(self._records) - 1
        if id(error) not in self._places:
            self._add(error)
        place = self._places[id(error)][1]
        if place is None:
            raise TypeError(f"a {type(error).__qualname__} cannot be created without its constructor")
        return place

    def _add(self, error: BaseException) -> None:
        place = len(self._records)
        self._records.append(None)
        self._places[id(error)] = error, None
        self._open.append(id(error))
        try:
            self._records[place] = self._record(error)
        finally:
            self._open.pop()
        self._copies[place]  # fails here if it cannot be rebuilt
        self._places[id(error)] = error, place

    def _record(self, error: BaseException) -> Record:
        left_out: list[str] = []
        args = []
        for index, arg in enumerate(BaseException.args.__get__(error)):  # type: ignore[attr-defined]
            part = self._part(f"args[{index}]", arg, left_out)
            args.append(part or (0, f"<{type(arg).__name__}, not sent>"))
        state = {}
        for name, value in _attributes(error):
            if (part := self._part(name, value, left_out)) is not None:
                state[name] = part
        cause = object.__getattribute__(error, "__cause__")
        if cause is not None:
            cause = self._part("__cause__", cause, left_out)
        return self._write(type(error), self), tuple(args), state, cause, left_out

    def _part(self, name: str, value: Any, left_out: list[str]) -> Part | None:
        """Return one part as it is sent; None, and its name in `left_out`, if it cannot be sent."""
        try:
            part = (0, value) if type(value) in PLAIN else (1, self._write(value, self))
            size = len(part[1]) if isinstance(part[1], str | bytes) else 0
            if size > self._room:
                raise ValueError(f"an error with more than {_MOST_BYTES >> 20} MiB")
            self._copies.value(part)
        except Exception:
            if not self._lenient:
                raise
            left_out.append(f"{name} ({type(value).__module__}.{type(value).__qualname__})")
            return None
        self._room -= size
        return part


class _Copies(dict[int, BaseException]):
    """Exceptions rebuilt from their records, each when it is first used."""

    def __init__(self, records: list[Record | None]) -> None:
        super().__init__()
        self._records = records

    def __missing__(self, place: int) -> BaseException:
        record = self._records[place]
        if record is None:
            raise TypeError("an exception refers to one that could not be rebuilt")
        self[place] = copy = _remade(self.load(record[0]), record, self.value)
        return copy

    def value(self, part: Part) -> Any:
        """Return what a part stands for."""
        kind, value = part
        return self.load(value) if kind else value

    def load(self, data: bytes) -> Any:
        """Return what was pickled; where it refers to an error, that is one of these."""
        outer, _loading.copies = _loading.copies, self
        try:
            return pickle.loads(data)
        finally:
            _loading.copies = outer


class _Loading(threading.local):
    """Whose parts this thread is loading."""

    copies: _Copies | None = None


_loading = _Loading()


def _attributes(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an exception without its arguments and cause, with its notes; calls none of its methods."""
    for cls in type(error).__mro__:
        if issubclass(cls, BaseException) and not cls.__flags__ & _HEAP_TYPE:
            for name, member in vars(cls).items():
                if isinstance(member, MemberDescriptorType) and name not in _NOT_SENT:
                    value = member.__get__(error)
                    if value is not None:
                        yield name, value
    for name in copyreg._slotnames(type(error)):  # type: ignore[attr-defined]
        try:
            yield name, object.__getattribute__(error, name)
        except AttributeError:
            continue
    yield from dict(object.__getattribute__(error, "__dict__")).items()


def reduce_error(
    error: BaseException, writer: ErrorWriter | None, write: Callable[[Any, ErrorWriter], bytes], *, lenient: bool
) -> tuple[Any, ...]:
    """Return how a pickler writes an exception; `writer` is None unless it is part of another exception."""
    return writer.refer(error) if writer else ErrorWriter(write, lenient=lenient).take_apart(error)


def rebuild(records: list[Record | None]) -> BaseException:
    """Return the outermost exception, the first of `records`; pickles call this function.

    Raises:
        TypeError: a class is not an exception class, or its instances cannot be created without their constructor.
        Exception: loading a part failed.
    """
    return _Copies(records)[0]


def refer(place: int) -> BaseException:
    """Return the exception at an index of the records that are being rebuilt; pickles of parts call this function."""
    if _loading.copies is None:
        raise TypeError("a part of an exception was loaded without the exception")
    return _loading.copies[place]


def _remade(cls: type[BaseException], record: Record, value_of: Callable[[Part], Any]) -> BaseException:
    _, args, state, cause, left_out = record
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise TypeError(f"{cls!r} is not an exception class")
    base: Any = cls
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    values = tuple([value_of(part) for part in args])
    error: BaseException = base.__new__(cls, *values)
    try:
        base.__init__(error, *values)
    except TypeError:  # a subclass whose `args` do not fit its builtin base class
        object.__setattr__(error, "args", values)
    for name, part in state.items():
        value = value_of(part)
        try:
            object.__setattr__(error, name, value)
        except (AttributeError, TypeError):  # a property, or a member that the arguments set
            if not isinstance(getattr(base, name, None), MemberDescriptorType):
                object.__getattribute__(error, "__dict__")[name] = value
    if cause is not None:
        object.__setattr__(error, "__cause__", value_of(cause))
    if left_out:
        notes = object.__getattribute__(error, "__dict__").setdefault("__notes__", [])
        notes.append(f"not sent to this process: {', '.join(left_out)}")
    return error


def dump_data(error: BaseException) -> bytes:
    """Return the pickle of an exception with only builtin values and containers; other objects are left out.

    This is for receivers that are not trusted with objects of this process: for example, the request that an HTTP library
    attaches to its errors contains the API key.

    Raises:
        Exception: its class cannot be pickled by name, or its instances cannot be created without their constructor.
    """
    return _write_data(error, None)


class _DataPickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, writer: ErrorWriter | None) -> None:
        super().__init__(buffer, protocol=5)
        self._writer = writer

    def reducer_override(self, thing: Any) -> Any:
        """Write exceptions, and their classes by name; reject everything else that is not a builtin value."""
        if isinstance(thing, BaseException):
            return reduce_error(thing, self._writer, _write_data, lenient=True)
        if thing is rebuild or thing is refer or (isinstance(thing, type) and issubclass(thing, BaseException)):
            return NotImplemented
        raise TypeError(f"a {type(thing).__name__} is not a builtin value")


def _write_data(thing: Any, writer: ErrorWriter | None) -> bytes:
    buffer = io.BytesIO()
    _DataPickler(buffer, writer).dump(thing)
    return buffer.getvalue()
