"""Exceptions inside parcels: taken apart into class, arguments, attributes and cause, and rebuilt without their constructor.

`pickle` calls the constructor with `error.args`, which fails for every class whose constructor takes something else than it
passes on. Here the instance is made by its builtin base class and gets its attributes back one by one, so that one which
cannot travel (a stream, a lock) is left out and named in a note instead of costing the whole error.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import threading
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["dump_data", "rebuild", "take_apart"]

_HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: classes made by Python code have it, builtin ones do not."""
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_NOT_SENT = frozenset({"__suppress_context__", "obj"})
"""Attributes of builtin exceptions that stay: `obj` of an `AttributeError` is the object that has no such attribute."""
_DEEPEST = 20
"""Causes of causes, and errors within errors, that travel."""


class _Open(threading.local):
    """The errors that this thread is taking apart: one that contains itself is met again."""

    def __init__(self) -> None:
        self.errors: list[int] = []


_open = _Open()


def take_apart(error: BaseException, write: Callable[[Any], bytes], *, lenient: bool) -> tuple[Any, ...]:
    """Return how a pickler writes an error: `rebuild` and its arguments.

    Args:
        error: any exception; none of its methods is called.
        write: returns the pickle of one part.
        lenient: leave out parts that cannot be written or read; else raise what `write` raises.
    """
    if id(error) in _open.errors or len(_open.errors) >= _DEEPEST:
        return rebuild, (type(error), (), {}, None, ["what it holds, which is nested too deeply"])
    _open.errors.append(id(error))
    try:
        left_out: list[str] = []
        args = []
        for index, arg in enumerate(BaseException.args.__get__(error)):  # type: ignore[attr-defined]
            part = _part(f"args[{index}]", arg, write, left_out if lenient else None)
            args.append(part or (0, f"<{type(arg).__name__}, not sent>"))
        state = {}
        for name, value in _attributes(error):
            if (part := _part(name, value, write, left_out if lenient else None)) is not None:
                state[name] = part
        cause = object.__getattribute__(error, "__cause__")
        if cause is not None:
            cause = _part("__cause__", cause, write, left_out if lenient else None)
        parts = (type(error), tuple(args), state, cause, left_out)
        rebuild(*parts)  # what cannot be rebuilt here cannot be rebuilt anywhere
    finally:
        _open.errors.pop()
    return rebuild, parts


def _part(name: str, value: Any, write: Callable[[Any], bytes], left_out: list[str] | None) -> tuple[int, Any] | None:
    """Return one part in the form in which it travels; None, and its name in `left_out`, if it cannot."""
    if type(value) in _PLAIN:
        return 0, value
    try:
        data = write(value)
        pickle.loads(data)
    except Exception:
        if left_out is None:
            raise
        left_out.append(f"{name} ({type(value).__module__}.{type(value).__qualname__})")
        return None
    return 1, data


def _attributes(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield what an exception holds besides its arguments and its cause, with its notes, without calling its code."""
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


def rebuild(
    cls: type[BaseException],
    args: tuple[tuple[int, Any], ...],
    state: dict[str, tuple[int, Any]],
    cause: tuple[int, Any] | None,
    left_out: list[str],
) -> BaseException:
    """Return the error that was taken apart; pickles call this.

    Raises:
        TypeError: `cls` is no exception class, or one that cannot be made without its constructor.
        Exception: whatever loading a part raises.
    """
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise TypeError(f"{cls!r} is no exception class")
    base: Any = cls
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    values = tuple([_value(part) for part in args])
    error: BaseException = base.__new__(cls, *values)
    try:
        base.__init__(error, *values)
    except TypeError:  # a subclass that stores other arguments than its builtin base class takes
        object.__setattr__(error, "args", values)
    for name, part in state.items():
        value = _value(part)
        try:
            object.__setattr__(error, name, value)
        except (AttributeError, TypeError):  # a property, or a member that the arguments set
            if not isinstance(getattr(base, name, None), MemberDescriptorType):
                object.__getattribute__(error, "__dict__")[name] = value
    if cause is not None:
        object.__setattr__(error, "__cause__", _value(cause))
    if left_out:
        notes = object.__getattribute__(error, "__dict__").setdefault("__notes__", [])
        notes.append(f"left out on the way to this process: {', '.join(left_out)}")
    return error


def _value(part: tuple[int, Any]) -> Any:
    kind, value = part
    return pickle.loads(value) if kind else value


def dump_data(error: BaseException) -> bytes:
    """Return the pickle of an error with builtin values and containers alone: other objects in it are left out.

    This is for receivers who may know that an error happened, but not what else the process has: the request that an HTTP
    library attaches to its errors contains the API key.

    Raises:
        Exception: its class cannot be named, or cannot be made without its constructor.
    """
    return _dump(error)


class _DataPickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        """Take exceptions apart, name their classes, and refuse everything else that is no builtin value."""
        if isinstance(thing, BaseException):
            return take_apart(thing, _dump, lenient=True)
        if thing is rebuild or (isinstance(thing, type) and issubclass(thing, BaseException)):
            return NotImplemented
        raise TypeError(f"a {type(thing).__name__} is no builtin value")


def _dump(thing: Any) -> bytes:
    buffer = io.BytesIO()
    _DataPickler(buffer, protocol=5).dump(thing)
    return buffer.getvalue()
