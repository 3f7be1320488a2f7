"""Handing a value on through this process, for servers that cannot reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.remote.client.result import ENCODED, FAILED, HELD, PENDING, Result
from paragent.remote.faults import encode_error
from paragent.remote.values import encode_result, size_of
from paragent.remote.wire import ERROR, PUSH, RESULT

if TYPE_CHECKING:
    from paragent.remote.client.link import Link

__all__ = ["relay"]


def relay(target: Link, result: Result) -> tuple[str, int]:
    """Return the reference to a value that is pushed to `target` as soon as it is here."""
    key = next(target.numbers)

    def push() -> None:
        if result._state == HELD:
            fetched = result._fetch()
            if fetched._watch(lambda: _push(target, key, fetched)):
                return
            _push(target, key, fetched)
        else:
            _push(target, key, result)

    if not (result._state == PENDING and result._watch(push)):
        push()
    return ("v", key)


def _push(target: Link, key: int, result: Result) -> None:
    state, value = result._state, result._value
    kind: str = RESULT
    encoded: Any
    if state == ENCODED:
        encoded = value
    elif state == FAILED:
        kind, encoded = ERROR, value
    else:
        try:
            encoded = encode_result(result.result(), "a result")
        except BaseException as error:  # noqa: BLE001 - the error of the first call is the argument of the second
            kind, encoded = ERROR, encode_error(error)
    target.post((PUSH, key, kind, encoded), size_of(encoded))
