"""Getting a value from another server, on behalf of a call that needs it as an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.remote.client.links import link_to
from paragent.remote.client.result import ENCODED, FAILED
from paragent.remote.faults import encode_error
from paragent.remote.wire import ERROR, RESULT
from paragent.rpc.address import Address

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fetch_from"]


def fetch_from(address: tuple[str, int, str], session: str, number: int, then: Callable[[str, Any], None]) -> None:
    """Ask the server at `address` for a result; `then` is called with its outcome, or with the error of not reaching it."""
    result = link_to(Address(*address), None).fetch(session, number)

    def arrived() -> None:
        if result._state == ENCODED:
            then(RESULT, result._value)
        elif result._state == FAILED:
            then(ERROR, result._value)
        else:
            then(ERROR, encode_error(result._value))

    if not result._watch(arrived):
        arrived()
