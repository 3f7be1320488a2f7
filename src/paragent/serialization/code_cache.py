"""Code that arrived from elsewhere, by digest: loaded when first needed, kept until its sender says otherwise."""

from __future__ import annotations

import pickle
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["MODULES", "digest_of", "forget", "known_code", "learn", "register", "resolve"]

MODULES = "modules-"
"""How the digest of a piece of code begins that is not a class or a function but a set of modules."""

_blobs: dict[str, bytes] = {}
"""What arrived and was not needed yet."""
_loaded: dict[str, Any] = {}
"""What arrived and was loaded."""
_own: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""What this process sent out, so that an answer that names it gets the original back."""
_digests: dict[int, str] = {}
"""The digest of every loaded object, by identity; `_loaded` keeps the objects alive."""
_loading = threading.RLock()
"""Makes loading happen once; reentrant because loading a piece of code may need another."""


def learn(code: Mapping[str, bytes]) -> None:
    """Take in pieces of code for later use; those already here are skipped."""
    for digest, blob in code.items():
        if digest.startswith(MODULES):
            from paragent.serialization.project_modules import install

            install(digest, blob)
        elif digest not in _loaded:
            _blobs.setdefault(digest, blob)


def forget(digests: Iterable[str]) -> None:
    """Give up code that nobody will name again before it is sent again."""
    with _loading:
        for digest in digests:
            _blobs.pop(digest, None)
            if digest in _loaded:
                del _digests[id(_loaded.pop(digest))]


def known_code() -> Collection[str]:
    """Return the digests of all code that arrived here, which its sender therefore need not be sent back."""
    return _blobs.keys() | _loaded.keys()


def register(digest: str, original: Any) -> None:
    """Remember an object that this process sends out under `digest`."""
    _own[digest] = original


def digest_of(thing: Any) -> str | None:
    """Return the digest under which `thing` arrived here, or None if it did not."""
    return _digests.get(id(thing))


def resolve(digest: str) -> Any:
    """Return the class or function called `digest`; pickles call this.

    Raises:
        LookupError: it never arrived, which is a fault of the transport.
    """
    own = _own.get(digest)
    if own is not None:
        return own
    try:
        return _loaded[digest]
    except KeyError:
        pass
    with _loading:
        if digest not in _loaded:
            if digest not in _blobs:
                raise LookupError(f"code {digest} was referred to but never sent")
            loaded = pickle.loads(_blobs[digest])
            _loaded[digest] = loaded
            _digests[id(loaded)] = digest
            del _blobs[digest]
        return _loaded[digest]
