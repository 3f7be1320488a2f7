"""`Payload`, a packed object, and fast packing and unpacking."""

from __future__ import annotations

import copyreg
import io
import pickle
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.serialization import code_cache

if TYPE_CHECKING:
    from collections.abc import Container

    from paragent.serialization.exceptions import ErrorWriter

__all__ = ["PLAIN", "Payload", "is_plain", "pack", "size_of", "unpack"]

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
"""The types of immutable builtin values, which need not be packed."""
_CLASSES_KEPT = 1024
"""Classes whose reducers are cached."""
_reduce = methodcaller("__reduce_ex__", 5)


def is_plain(thing: Any) -> bool:
    """Return whether `thing` is of one of the types in `PLAIN`."""
    return type(thing) in PLAIN


class Payload(NamedTuple):
    """A packed object: its pickled state, and the code that the state refers to."""

    body: bytes
    code: dict[str, bytes]

    def without(self, known: Container[str]) -> Payload:
        """Return a payload without the code that the receiver has."""
        if not self.code:
            return self
        return Payload(self.body, {digest: blob for digest, blob in self.code.items() if digest not in known})


def size_of(thing: Any) -> int:
    """Return the approximate size in bytes of a packed or plain value; 0 for small ones."""
    if type(thing) is Payload:
        return len(thing.body)
    return len(thing) if isinstance(thing, str | bytes) else 0


def unpack(thing: Any) -> Any:
    """Return a new copy of a packed object; a plain value is returned unchanged."""
    if type(thing) is not Payload:
        return thing
    if thing.code:
        code_cache.add_code(thing.code)
    return pickle.loads(thing.body)


def pack(thing: Any, what: str, root: str = "it") -> Payload:
    """Return `thing` as a payload. For workers, which return objects of classes that they received or can import.

    Raises:
        Unserialisable: a part of it cannot be pickled; the error names the part.
    """
    buffer = io.BytesIO()
    _Pickler.dispatch_table.tidy()
    try:
        try:
            _Pickler(buffer, 5).dump(thing)
            return Payload(buffer.getvalue(), {})
        except _ContainsError:
            return Payload(_write_with_errors(thing, None), {})
    except Exception:  # noqa: BLE001 - not importable by name, or not serialisable: the packer finds out
        # Imported here because workers rarely need it and it takes 20 ms.
        from paragent.serialization.packing import Packer

        return Packer().pack(thing, what, root).without(code_cache.known_code())


class _ContainsError(Exception):
    """The object is or contains an exception."""


def _reject(_: BaseException) -> Any:
    raise _ContainsError


class _Reducers(dict[type, Any]):
    """The reducer of each class: that of `pickle`, but exceptions are rejected.

    A `reducer_override` would be called for every object, which makes pickling a list of objects 25 % slower.
    """

    registered = 0
    """How many reducers were registered with `copyreg` when these were cached."""

    def tidy(self) -> None:
        """Empty the cache if reducers were registered since, or if it has too many entries."""
        if len(copyreg.dispatch_table) != self.registered or len(self) > _CLASSES_KEPT:
            self.clear()
            self.registered = len(copyreg.dispatch_table)

    def __missing__(self, cls: type) -> Any:
        if issubclass(cls, type):
            raise KeyError(cls)  # classes are written by name
        reducer = _reject if issubclass(cls, BaseException) else copyreg.dispatch_table.get(cls, _reduce)
        self[cls] = reducer
        return reducer


class _Pickler(pickle.Pickler):
    """Python's pickler, but it rejects exceptions."""

    dispatch_table = _Reducers()


class _ErrorPickler(pickle.Pickler):
    """Python's pickler, but exceptions are written by `paragent.serialization.exceptions`."""

    def __init__(self, buffer: io.BytesIO, writer: ErrorWriter | None) -> None:
        super().__init__(buffer, protocol=5)
        self._writer = writer

    def reducer_override(self, thing: Any) -> Any:
        """Called for all objects that are not builtin values or containers."""
        if not isinstance(thing, BaseException):
            return NotImplemented
        from paragent.serialization.exceptions import reduce_error

        return reduce_error(thing, self._writer, _write_with_errors, lenient=False)


def _write_with_errors(thing: Any, writer: ErrorWriter | None) -> bytes:
    buffer = io.BytesIO()
    _ErrorPickler(buffer, writer).dump(thing)
    return buffer.getvalue()
