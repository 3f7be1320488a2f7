"""A packed object, and the quick ways to pack and unpack one."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.parcels import codebook

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["Parcel", "is_plain", "pack", "size_of", "unpack"]

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def is_plain(thing: Any) -> bool:
    """Return whether `thing` is an immutable builtin value, which needs no packing of its own."""
    return type(thing) in _PLAIN


class Parcel(NamedTuple):
    """A packed object: its pickled state and the code that the state names."""

    body: bytes
    code: dict[str, bytes]

    def without(self, known: Container[str]) -> Parcel:
        """Return a parcel that leaves out the code which the receiver has."""
        if not self.code:
            return self
        return Parcel(self.body, {digest: blob for digest, blob in self.code.items() if digest not in known})


def size_of(thing: Any) -> int:
    """Return about how many bytes a packed or plain value takes on its way, where that is many."""
    if type(thing) is Parcel:
        return len(thing.body)
    return len(thing) if isinstance(thing, str | bytes) else 0


def unpack(thing: Any) -> Any:
    """Return a fresh copy of what was packed; a value that was never packed is returned as it is."""
    if type(thing) is not Parcel:
        return thing
    if thing.code:
        codebook.learn(thing.code)
    return pickle.loads(thing.body)


def pack(thing: Any, what: str, root: str = "it") -> Parcel:
    """Return `thing` as a parcel, on the side that received the code it uses: by name where that is possible.

    Raises:
        Unserialisable: some part of it cannot travel; the error names the part.
    """
    try:
        return Parcel(_dumps(thing), {})
    except Exception:  # noqa: BLE001 - not importable by name, or not serialisable: the careful way tells
        from paragent.parcels.packing import Packer  # not at the top: workers rarely need it, and it takes 20 ms

        return Packer().pack(thing, what, root).without(codebook.known_code())


class _Pickler(pickle.Pickler):
    """Python's own, but exceptions are taken apart."""

    def reducer_override(self, thing: Any) -> Any:
        """Called for everything that is no builtin value or container."""
        if not isinstance(thing, BaseException):
            return NotImplemented
        from paragent.parcels.exceptions import take_apart

        return take_apart(thing, _dumps, lenient=False)


def _dumps(thing: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(thing)
    return buffer.getvalue()
