"""A packed object, and the quick ways to pack and unpack one."""

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

__all__ = ["Payload", "is_plain", "pack", "size_of", "unpack"]

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_CLASSES_KEPT = 1024
"""Classes whose way to be reduced is remembered."""
_reduce = methodcaller("__reduce_ex__", 5)


def is_plain(thing: Any) -> bool:
    """Return whether `thing` is an immutable builtin value, which needs no packing of its own."""
    return type(thing) in _PLAIN


class Payload(NamedTuple):
    """A packed object: its pickled state and the code that the state names."""

    body: bytes
    code: dict[str, bytes]

    def without(self, known: Container[str]) -> Payload:
        """Return a payload that leaves out the code which the receiver has."""
        if not self.code:
            return self
        return Payload(self.body, {digest: blob for digest, blob in self.code.items() if digest not in known})


def size_of(thing: Any) -> int:
    """Return about how many bytes a packed or plain value takes on its way, where that is many."""
    if type(thing) is Payload:
        return len(thing.body)
    return len(thing) if isinstance(thing, str | bytes) else 0


def unpack(thing: Any) -> Any:
    """Return a fresh copy of what was packed; a value that was never packed is returned as it is."""
    if type(thing) is not Payload:
        return thing
    if thing.code:
        code_cache.add_code(thing.code)
    return pickle.loads(thing.body)


def pack(thing: Any, what: str, root: str = "it") -> Payload:
    """Return `thing` as a payload, on the side that received the code it uses: by name where that is possible.

    Raises:
        Unserialisable: some part of it cannot travel; the error names the part.
    """
    buffer = io.BytesIO()
    _Pickler.dispatch_table.tidy()
    try:
        try:
            _Pickler(buffer, 5).dump(thing)
            return Payload(buffer.getvalue(), {})
        except _HoldsError:
            return Payload(_write_with_errors(thing, None), {})
    except Exception:  # noqa: BLE001 - not importable by name, or not serialisable: the careful way tells
        from paragent.serialization.packing import Packer  # not at the top: workers rarely need it, and it takes 20 ms

        return Packer().pack(thing, what, root).without(code_cache.known_code())


class _HoldsError(Exception):
    """The object is or holds an exception."""


def _refuse(_: BaseException) -> Any:
    raise _HoldsError


class _Reducers(dict[type, Any]):
    """How the instances of a class are reduced: as `pickle` does, but exceptions are refused.

    A `reducer_override` would be called for every object, which costs a list of objects a quarter more time.
    """

    registered = 0
    """How many classes had a reducer of their own, registered with `copyreg`, when these were remembered."""

    def tidy(self) -> None:
        """Forget everything if more was registered, or if these are too many."""
        if len(copyreg.dispatch_table) != self.registered or len(self) > _CLASSES_KEPT:
            self.clear()
            self.registered = len(copyreg.dispatch_table)

    def __missing__(self, cls: type) -> Any:
        if issubclass(cls, type):
            raise KeyError(cls)  # classes are written by name
        reducer = _refuse if issubclass(cls, BaseException) else copyreg.dispatch_table.get(cls, _reduce)
        self[cls] = reducer
        return reducer


class _Pickler(pickle.Pickler):
    """Python's own, but it refuses exceptions."""

    dispatch_table = _Reducers()


class _ErrorPickler(pickle.Pickler):
    """Python's own, but exceptions are taken apart."""

    def __init__(self, buffer: io.BytesIO, writer: ErrorWriter | None) -> None:
        super().__init__(buffer, protocol=5)
        self._writer = writer

    def reducer_override(self, thing: Any) -> Any:
        """Called for everything that is no builtin value or container."""
        if not isinstance(thing, BaseException):
            return NotImplemented
        from paragent.serialization.exceptions import reduce_error

        return reduce_error(thing, self._writer, _write_with_errors, lenient=False)


def _write_with_errors(thing: Any, writer: ErrorWriter | None) -> bytes:
    buffer = io.BytesIO()
    _ErrorPickler(buffer, writer).dump(thing)
    return buffer.getvalue()
