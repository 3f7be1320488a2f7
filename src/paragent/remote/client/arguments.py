"""The arguments of one call, made ready to travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.remote.client.result import ENCODED, FAILED, HELD, PENDING, RAISED, Result, value_of
from paragent.remote.protocol import PushValue
from paragent.remote.values import encode_argument, encode_error, encode_result, size_of

if TYPE_CHECKING:
    from paragent.remote.client.link import Link

__all__ = ["Argued", "relay"]


class Argued:
    """Encoded arguments. A lazy result among them goes as a reference, so its value need not pass through here."""

    __slots__ = ("_link", "args", "code", "keeps", "kwargs", "size")

    def __init__(self, link: Link, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
        self._link = link
        self.size = 0
        self.code: dict[str, bytes] = {}
        self.keeps: list[Any] | None = None
        self.args = tuple([self._encode(arg, f"an argument of {what}") for arg in args])
        self.kwargs: dict[str, Any] | None = None
        if kwargs:
            # A name may be of a subclass of str, such as an enum's; a frame holds builtin values alone.
            self.kwargs = {
                str.__str__(key): self._encode(arg, f"the argument {key} of {what}") for key, arg in kwargs.items()
            }

    def _encode(self, arg: Any, what: str) -> Any:
        if type(arg) is Result:
            return self._refer(arg, what)
        if self._link.sends_data:
            from paragent.remote.restricted import encode_data  # not at the top: few servers need it

            return self._counted(encode_data(arg, value_of))
        value, size, code = encode_argument(arg, what, far=self._link.far)
        self.size += size
        if code:
            self.code |= code
        if hasattr(arg, "_paragent_agent"):
            self._keep(arg)
        return value

    def _keep(self, thing: Any) -> None:
        if self.keeps is None:
            self.keeps = []
        self.keeps.append(thing)

    def _refer(self, result: Result, what: str) -> Any:

        source = result._link
        if source is not None and result._state == PENDING:
            hold = source.pin(result)
            if hold is not None:
                self._keep(hold)
                return self._reference(source, result, relay)
        state, value = result._state, result._value
        if state == HELD and source is not None:
            self._keep(value)
            return self._reference(source, result, relay)
        if state == ENCODED:
            return value
        if state in (FAILED, RAISED):
            return ("f", value if state == FAILED else encode_error(value))
        return self._encode(value, what)

    def _counted(self, value: Any) -> Any:
        self.size += size_of(value)
        return value

    def _reference(self, source: Link, result: Result, relay: Any) -> Any:
        here, there = source.place.address, self._link.place.address
        if source is self._link:
            return ("r", None, None, result._number, None)
        if here.is_local and not there.is_local:
            return relay(self._link, result)
        tls = source.tls
        if tls is None:
            return ("r", tuple(here), source.session, result._number, None)
        if there.path:  # a child of this program finds the files that this program uses
            said = (tls.ca, tls.cert, tls.key, tls.server_name)
        elif self._link.peer_tls:
            said = (None, None, None, tls.server_name)
        else:
            return relay(self._link, result)
        return ("r", tuple(here), source.session, result._number, said)


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
    failed = False
    encoded: Any
    if state == ENCODED:
        encoded = value
    elif state == FAILED:
        failed, encoded = True, value
    else:
        try:
            encoded = encode_result(result.result(), "a result")
        except BaseException as error:  # noqa: BLE001 - the error of the first call is the argument of the second
            failed, encoded = True, encode_error(error)
    target.post(PushValue(key, failed, encoded), size_of(encoded))
