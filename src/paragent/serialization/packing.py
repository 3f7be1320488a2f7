"""Packing of any object: pickles it with its code separate from its state, and names the part that cannot be pickled.

A class or function that the receiver cannot import (because it is defined in `__main__`, in a notebook cell, or inside a
function) is sent by value, once, under the digest of its bytes. Objects that use it contain only the digest. So for a hundred
thousand inputs of a class from a script the class is sent once, unpacking one of them is as fast as unpacking an instance of
an importable class, and an answer of that class is an instance of the caller's own class.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import OrderedDict
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from paragent.errors import Unserialisable, UsageError
from paragent.serialization import code_cache
from paragent.serialization.exceptions import ErrorWriter, reduce_error
from paragent.serialization.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Packer"]

_CODE_KEPT = 1024
"""Classes and functions whose bytes are kept, the most recently used ones."""
_DEEPEST = 20
"""Levels of attributes and elements that the search for an unserialisable part follows."""


class Packer:
    """Packs objects in their current state. It pickles each class or function once, so use one packer for each run.

    Args:
        sends_modules: add the program's own modules to each payload, for workers on hosts that do not have them.
        forwards_code: also add code that this process has received, for receivers other than its sender.
    """

    def __init__(self, *, sends_modules: bool = False, forwards_code: bool = False) -> None:
        self._sends_modules, self._forwards_code = sends_modules, forwards_code
        self._modules: dict[str, bytes] = {}
        self._modules_seen = 0
        self._written: OrderedDict[int, _Written] = OrderedDict()
        """Classes and functions by identity, the least recently used first."""
        self._open: set[int] = set()
        """Code that is being pickled. Code that refers to itself is pickled by value there, or it would never end."""

    def pack(self, thing: Any, what: str, root: str = "it") -> Payload:
        """Return `thing` as a payload.

        Args:
            thing: any object.
            what: what to call it in an error: `task 'a'`, `the answer of task 'a'`.
            root: what to call the object itself in the path to an unserialisable part.

        Raises:
            Unserialisable: a part of it cannot be pickled; the error names the part.
        """
        buffer = io.BytesIO()
        try:
            _BuiltinsPickler(buffer, protocol=5).dump(thing)
            return Payload(buffer.getvalue(), {})
        except _NotBuiltin:
            buffer = io.BytesIO()
        pickler = _Pickler(buffer, self)
        try:
            pickler.dump(thing)
        except Exception as error:
            raise unserialisable(thing, what, root, error) from error
        code = {**self._own_modules(), **pickler.code} if self._sends_modules else pickler.code
        return Payload(buffer.getvalue(), code)

    def _own_modules(self) -> dict[str, bytes]:
        """Return the program's own modules; they are collected again when something was imported meanwhile."""
        if len(sys.modules) != self._modules_seen:
            from paragent.serialization.project_modules import collect

            self._modules = collect()
            self._modules_seen = len(sys.modules)
        return self._modules

    def digest(self, thing: Any) -> tuple[str, dict[str, bytes]]:
        """Return the digest of a class or function and the code that the receiver needs to load it."""
        arrived = code_cache.digest_of(thing)
        if arrived is not None and not self._forwards_code:
            return arrived, {}
        written = self._written.get(id(thing))
        if written is None:
            written = self._write(thing, arrived)
            self._written[id(thing)] = written
            if len(self._written) > _CODE_KEPT:
                self._written.popitem(last=False)
        else:
            self._written.move_to_end(id(thing))
        return written.digest, written.code

    def _write(self, thing: Any, digest: str | None) -> _Written:
        """Pickle a class or function; `digest` is the one under which it arrived, which it keeps."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self, within=thing)
        self._open.add(id(thing))
        try:
            pickler.dump(thing)
        finally:
            self._open.discard(id(thing))
        blob = buffer.getvalue()
        if digest is None:
            import hashlib

            digest = hashlib.blake2b(blob, digest_size=12).hexdigest()
            code_cache.register(digest, thing)
        return _Written(thing, digest, {**pickler.code, digest: blob})

    def is_open(self, thing: Any) -> bool:
        """Return whether `thing` is being pickled right now."""
        return id(thing) in self._open


class _Written(NamedTuple):
    """A pickled class or function."""

    thing: Any
    """Kept alive, so that its identity is not used twice."""
    digest: str
    code: dict[str, bytes]
    """Its own bytes by its digest, and those of all code that loading it needs."""


class _NotBuiltin(Exception):
    """The object contains something other than builtin values and containers."""


class _BuiltinsPickler(pickle.Pickler):
    """A fast path: builtin values and containers are the same in every process."""

    def reducer_override(self, thing: Any) -> Any:  # noqa: ARG002 - pickle's interface
        """Called only for objects that are not builtin values."""
        raise _NotBuiltin


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler; code that it would pickle by value is stored separately and replaced by its digest."""

    def __init__(
        self, buffer: io.BytesIO, packer: Packer, within: Any = None, writer: ErrorWriter | None = None
    ) -> None:
        super().__init__(buffer, protocol=5)
        self.code: dict[str, bytes] = {}
        self._packer = packer
        self._within = within
        """The class or function whose code this pickles; None: state is pickled."""
        self._writer = writer
        """Set if this pickles a part of an exception."""

    def reducer_override(self, thing: Any) -> Any:
        """Decide how a class, a function or an instance of a class that is not builtin is pickled."""
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


def unserialisable(thing: Any, what: str, root: str, error: BaseException) -> Unserialisable:
    """Return the error that names the smallest part of `thing` that cannot be pickled."""
    path, part, reason = root, thing, error
    seen = {id(thing)}
    for _ in range(_DEEPEST):
        if isinstance(reason, UsageError) and "__reduce__" in vars(type(part)):
            break  # the object itself says what to do instead
        for step, child in _parts(part):
            if id(child) in seen:
                continue
            seen.add(id(child))
            problem = _pickling_error(child)
            if problem is not None:
                path, part, reason = path + step, child, problem
                break
        else:
            break
    kind = type(part)
    return Unserialisable(what, f"`{path}`, a {kind.__module__}.{kind.__qualname__}", str(reason))


def _pickling_error(thing: Any) -> BaseException | None:
    try:
        cloudpickle.dumps(thing)
    except Exception as error:  # noqa: BLE001 - any error is the result
        return error
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object, each with the text that leads to it; stop if the object's own code raises."""
    try:
        yield from _visible_parts(thing)
    except Exception:  # noqa: BLE001 - a `__getattr__` may raise anything; then the error names the whole object
        return


def _visible_parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield f"[{key!r}]", value
    elif isinstance(thing, list | tuple | set | frozenset):
        for index, value in enumerate(thing):
            yield f"[{index}]", value
    closure, code = _attribute(thing, "__closure__"), _attribute(thing, "__code__")
    if closure and code:
        for name, cell in zip(code.co_freevars, closure, strict=True):
            try:
                yield f" (captured variable `{name}`)", cell.cell_contents
            except ValueError:
                continue
    if code and _attribute(thing, "__globals__"):
        for name in code.co_names:
            if name in thing.__globals__:
                yield f" (global `{name}`)", thing.__globals__[name]
    if _attribute(thing, "__func__") and _attribute(thing, "__self__"):
        yield ".__self__", thing.__self__
    for name, value in (_attribute(thing, "__dict__") or {}).items() if not isinstance(thing, type) else ():
        yield f".{name}", value
    for cls in type(thing).__mro__:
        for name in getattr(cls, "__slots__", ()):
            if isinstance(name, str) and (value := _attribute(thing, name)) is not None:
                yield f".{name}", value


def _attribute(thing: Any, name: str) -> Any:
    """Return an attribute, or None if there is none or reading it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a user's `__getattr__` may raise anything
        return None
