"""Code by digest: what arrived from other processes, and what was already sent to a peer.

Code that arrived is loaded when it is first used and kept until its sender says otherwise. `SentCode` is the sender's record
of what one peer has.
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


def add_code(code: Mapping[str, bytes]) -> None:
    """Take in pieces of code for later use; those already here are skipped."""
    for digest, blob in code.items():
        if digest.startswith(MODULES):
            from paragent.serialization.project_modules import install

            install(digest, blob)
        elif digest not in _loaded:
            _blobs.setdefault(digest, blob)


def drop_code(digests: Iterable[str]) -> None:
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
