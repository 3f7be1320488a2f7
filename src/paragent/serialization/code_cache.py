"""Code by digest: what arrived from other processes, and what was already sent to a peer.

Code that arrived is loaded when it is first used and kept until its sender drops it. `SentCode` is the sender's record of the
code that one peer has.
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = ["MODULES", "SentCode", "add_code", "digest_of", "drop_code", "known_code", "register", "resolve"]

MODULES = "modules-"
"""The prefix of digests of sets of modules; all other digests are of classes and functions."""

_blobs: dict[str, bytes] = {}
"""Code that arrived and was not used yet."""
_loaded: dict[str, Any] = {}
"""Code that arrived and was loaded."""
_own: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Code that this process sent, so that an answer that refers to it gets the original object."""
_digests: dict[int, str] = {}
"""The digest of every loaded object, by identity; `_loaded` keeps the objects alive."""
_loading = threading.RLock()
"""Makes sure that code is loaded once; reentrant, because loading code may need other code."""


def add_code(code: Mapping[str, bytes]) -> None:
    """Store code for later use; code that is already here is skipped."""
    for digest, blob in code.items():
        if digest.startswith(MODULES):
            from paragent.serialization.project_modules import install

            install(digest, blob)
        elif digest not in _loaded:
            _blobs.setdefault(digest, blob)


def drop_code(digests: Iterable[str]) -> None:
    """Drop code that will not be used before it is sent again."""
    with _loading:
        for digest in digests:
            _blobs.pop(digest, None)
            if digest in _loaded:
                del _digests[id(_loaded.pop(digest))]


def known_code() -> Collection[str]:
    """Return the digests of all code that arrived here; it need not be sent back to its sender."""
    return _blobs.keys() | _loaded.keys()


def register(digest: str, original: Any) -> None:
    """Store an object that this process sends under `digest`."""
    _own[digest] = original


def digest_of(thing: Any) -> str | None:
    """Return the digest under which an object arrived here, or None if it did not arrive."""
    return _digests.get(id(thing))


def resolve(digest: str) -> Any:
    """Return the class or function with this digest; pickles call this function.

    Raises:
        LookupError: it never arrived, which is a bug of the transport.
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


_SENT_KEPT = 512
"""Classes and functions that a peer keeps, at about 2 kB each; more where the sender still needs them."""


class SentCode:
    """The digests of the code that one peer has, so that each piece is sent once. Not thread-safe."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, None] = OrderedDict()
        """Least recently used first."""

    def missing(self, code: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the pieces that the peer does not have, and record them as sent."""
        missing: dict[str, bytes] = {}
        for digest, blob in code.items():
            if digest in self._digests:
                self._digests.move_to_end(digest)
            else:
                self._digests[digest] = None
                missing[digest] = blob
        return missing

    def remove(self, digests: Iterable[str]) -> list[str]:
        """Record that the peer will forget these pieces; return those that it has."""
        removed = [digest for digest in digests if digest in self._digests]
        for digest in removed:
            del self._digests[digest]
        return removed

    def evict(self, needed: Callable[[], Collection[str]]) -> list[str]:
        """Remove the least recently used pieces if there are many; return them, for the peer to forget.

        Args:
            needed: returns the digests that must stay; called only if there is something to evict.
        """
        excess = len(self._digests) - _SENT_KEPT
        if excess <= 0:
            return []
        keep = needed()
        unused = (digest for digest in self._digests if digest not in keep and not digest.startswith(MODULES))
        return self.remove(list(islice(unused, excess + _SENT_KEPT // 2)))
