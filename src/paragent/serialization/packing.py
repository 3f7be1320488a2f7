"""Objects to bytes and back, with code set apart from state.

A class or function that the far side cannot import (because it is defined in `__main__`, in a notebook cell, or inside a
function) travels by value, once, under the digest of its bytes; every object that uses it only names the digest. So a
hundred thousand inputs of a class from a script cost the class once, unpacking one is as fast as unpacking an importable
one, and an answer of that class comes back as the very class that the caller defined.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import OrderedDict
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle

from paragent.serialization import code_cache
from paragent.serialization.diagnose import culprit
from paragent.serialization.exceptions import ErrorWriter, reduce_error
from paragent.serialization.payload import Parcel

__all__ = ["Packer"]

_CODE_KEPT = 1024
"""Classes and functions whose bytes are kept; one that is met again after so many others is read anew."""


class Packer:
    """Packs objects as they are now; the code it meets is read once for many objects, so use one for each run.

    Args:
        carries_modules: parcels bring the program's own modules along, for workers on machines that do not have them.
    """

    def __init__(self, *, carries_modules: bool = False) -> None:
        self._carries_modules = carries_modules
        self._modules: dict[str, bytes] = {}
        self._modules_seen = 0
        self._written: OrderedDict[int, _Written] = OrderedDict()
        """Classes and functions by identity, the one not met for longest first."""
        self._open: set[int] = set()
        """Code whose own blob is being written: met again, it goes by value, or a cycle would never end."""

    def pack(self, thing: Any, what: str, root: str = "it") -> Parcel:
        """Return `thing` as a parcel.

        Args:
            thing: any object.
            what: how to call it in an error: `task 'a'`, `the answer of task 'a'`.
            root: how to call the object itself in the path to a part that cannot travel.

        Raises:
            Unserialisable: some part of it cannot travel; the error names the part.
        """
        buffer = io.BytesIO()
        try:
            _BuiltinsPickler(buffer, protocol=5).dump(thing)
            return Parcel(buffer.getvalue(), {})
        except _NotBuiltin:
            buffer = io.BytesIO()
        pickler = _Pickler(buffer, self)
        try:
            pickler.dump(thing)
        except Exception as error:
            raise culprit(thing, what, root, error) from error
        code = {**self._own_modules(), **pickler.code} if self._carries_modules else pickler.code
        return Parcel(buffer.getvalue(), code)

    def _own_modules(self) -> dict[str, bytes]:
        """Return the program's own modules, collected anew when something was imported meanwhile."""
        if len(sys.modules) != self._modules_seen:
            from paragent.serialization.project_modules import collect

            self._modules = collect()
            self._modules_seen = len(sys.modules)
        return self._modules

    def digest(self, thing: Any) -> tuple[str, dict[str, bytes]]:
        """Return the digest of a class or function and the blobs that the far side needs to load it."""
        arrived = code_cache.digest_of(thing)
        if arrived is not None:
            return arrived, {}
        written = self._written.get(id(thing))
        if written is None:
            written = self._write(thing)
            self._written[id(thing)] = written
            if len(self._written) > _CODE_KEPT:
                self._written.popitem(last=False)
        else:
            self._written.move_to_end(id(thing))
        return written.digest, written.code

    def _write(self, thing: Any) -> _Written:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self, within=thing)
        self._open.add(id(thing))
        try:
            pickler.dump(thing)
        finally:
            self._open.discard(id(thing))
        blob = buffer.getvalue()
        import hashlib

        digest = hashlib.blake2b(blob, digest_size=12).hexdigest()
        code_cache.register(digest, thing)
        return _Written(thing, digest, {**pickler.code, digest: blob})

    def is_open(self, thing: Any) -> bool:
        """Return whether the blob of `thing` is being written right now."""
        return id(thing) in self._open


class _Written(NamedTuple):
    """A class or function in the form in which it travels."""

    thing: Any
    """Kept alive, so that its identity is not used twice."""
    digest: str
    code: dict[str, bytes]
    """Its own bytes by its digest, and those of all code that loading it asks for."""


class _NotBuiltin(Exception):
    """The object holds more than builtin values and containers."""


class _BuiltinsPickler(pickle.Pickler):
    """A quick try: builtin values and containers mean the same in every process."""

    def reducer_override(self, thing: Any) -> Any:  # noqa: ARG002 - pickle's own interface
        """Called only for what is no builtin value."""
        raise _NotBuiltin


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but code that would go by value is set apart and named by digest."""

    def __init__(
        self, buffer: io.BytesIO, packer: Packer, within: Any = None, writer: ErrorWriter | None = None
    ) -> None:
        super().__init__(buffer, protocol=5)
        self.code: dict[str, bytes] = {}
        self._packer = packer
        self._within = within
        self._writer = writer
        """Takes apart the error of which this writes a part."""

    def reducer_override(self, thing: Any) -> Any:
        """Decide how one class, function or other object that is no builtin value is written."""
        if isinstance(thing, BaseException):
            return reduce_error(thing, self._writer, self._write_part, lenient=True)
        reduced = super().reducer_override(thing)
        if reduced is NotImplemented or not isinstance(thing, type | FunctionType) or thing.__module__ == "builtins":
            return reduced
        if self._within is not None and (isinstance(thing, FunctionType) or self._packer.is_open(thing)):
            return reduced  # functions stay with the code that uses them, so that they share their globals
        digest, blobs = self._packer.digest(thing)
        self.code |= blobs
        return code_cache.resolve, (digest,)

    def _write_part(self, part: Any, writer: ErrorWriter) -> bytes:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self._packer, self._within, writer)
        pickler.dump(part)
        self.code |= pickler.code
        return buffer.getvalue()
