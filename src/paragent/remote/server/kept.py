"""Results that stay on the server: because they are large, or because somebody else wants them too."""

from __future__ import annotations

from typing import Any

from paragent.errors import LimitExceeded, ProtocolError
from paragent.remote.faults import encode_error
from paragent.remote.values import size_of
from paragent.remote.wire import ERROR, RESULT
from paragent.rpc.limits import MESSAGE_BYTES

__all__ = ["Kept"]

_HOLD_BYTES = MESSAGE_BYTES
"""Results from this size on stay here until they are asked for."""

_MOST_KEPT = 4_000_000
"""Results of one client, twice as many as it may have calls under way."""


class Kept(dict[int, list[Any]]):
    """By the number of a call: `[holders, kind, value]`; kind is None while the call is under way.

    Args:
        most: bytes of all of them together; a result beyond that becomes an error.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._bytes = 0

    def hold(self, number: int, kind: str | None, value: Any) -> None:
        """Keep what nobody has held yet.

        Raises:
            ProtocolError: there are too many.
        """
        if len(self) >= _MOST_KEPT:
            raise ProtocolError(f"a client that has more than {_MOST_KEPT} results kept")
        self[number] = [1, kind, value]
        self._bytes += size_of(value)

    def release(self, number: int) -> None:
        """Note that a holder less needs a result; without any it is forgotten."""
        kept = self.get(number)
        if kept is not None:
            kept[0] -= 1
            if kept[0] <= 0:
                del self[number]
                self._bytes -= size_of(kept[2])

    def settle(self, number: int, kind: str, value: Any) -> tuple[str, Any, bool]:
        """Take the outcome of a call; return what it is now, and whether it stays here until the client asks for it."""
        packed = size_of(value)
        large = packed >= _HOLD_BYTES and kind == RESULT
        kept = self.get(number)
        if (large or kept is not None) and self._bytes + packed > self._most:
            kind, value, large = ERROR, encode_error(_too_much(self._bytes)), False
            packed = size_of(value)
        if kept is not None:
            kept[1:] = kind, value
            self._bytes += packed
        elif large:
            kept = self[number] = [0, kind, value]
            self._bytes += packed
        if large:
            assert kept is not None
            kept[0] += 1
        return kind, value, large


def _too_much(kept: int) -> LimitExceeded:
    return LimitExceeded(
        f"this server keeps {kept >> 20} MiB of results for this client, nearly its limit; look at some or drop them"
    )
