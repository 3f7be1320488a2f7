"""Objects to bytes and back, with code set apart from state.

A class or function that the far side cannot import (because it is defined in `__main__`, in a notebook cell, or inside a
function) travels by value, once, under the digest of its bytes; every object that uses it only names the digest. So a
hundred thousand inputs of a class from a script cost the class once, unpacking one is as fast as unpacking an importable
one, and an answer of that class comes back as the very class that the caller defined.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any

import cloudpickle

from manyhands.parcels import codebook
from manyhands.parcels.diagnosis import culprit
from manyhands.parcels.parcel import Parcel

__all__ = ["Packer"]


class Packer:
    """Packs objects as they are now; the code it meets is read once in its life, so use one for each run."""

    def __init__(self) -> None:
        self._digests: dict[int, str] = {}
        self._blobs: dict[str, bytes] = {}
        self._needs: dict[str, set[str]] = {}
        """For each digest: itself and every other piece of code that loading it asks for."""
        self._kept: list[Any] = []
        """Keeps what `_digests` names alive, so that no identity is used twice."""
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
        return Parcel(buffer.getvalue(), pickler.code)

    def digest(self, thing: Any) -> tuple[str, dict[str, bytes]]:
        """Return the digest of a class or function and the blobs that the far side needs to load it."""
        arrived = codebook.digest_of(thing)
        if arrived is not None:
            return arrived, {}
        digest = self._digests.get(id(thing))
        if digest is None:
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
            self._digests[id(thing)] = digest
            self._kept.append(thing)
            self._blobs |= pickler.code | {digest: blob}
            codebook.register(digest, thing)
            self._needs[digest] = {*pickler.code, digest}
        return digest, {needed: self._blobs[needed] for needed in self._needs[digest]}

    def is_open(self, thing: Any) -> bool:
        """Return whether the blob of `thing` is being written right now."""
        return id(thing) in self._open


class _NotBuiltin(Exception):
    """The object holds more than builtin values and containers."""


class _BuiltinsPickler(pickle.Pickler):
    """A quick try: builtin values and containers mean the same in every process."""

    def reducer_override(self, thing: Any) -> Any:  # noqa: ARG002 - pickle's own interface
        """Called only for what is no builtin value."""
        raise _NotBuiltin


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but code that would go by value is set apart and named by digest."""

    def __init__(self, buffer: io.BytesIO, packer: Packer, within: Any = None) -> None:
        super().__init__(buffer, protocol=5)
        self.code: dict[str, bytes] = {}
        self._packer = packer
        self._within = within

    def reducer_override(self, thing: Any) -> Any:
        """Decide how one class, function or other object that is no builtin value is written."""
        reduced = super().reducer_override(thing)
        if reduced is NotImplemented or not isinstance(thing, type | FunctionType) or thing.__module__ == "builtins":
            return reduced
        if self._within is not None and (isinstance(thing, FunctionType) or self._packer.is_open(thing)):
            return reduced  # functions stay with the code that uses them, so that they share their globals
        digest, blobs = self._packer.digest(thing)
        self.code |= blobs
        return codebook.resolve, (digest,)
