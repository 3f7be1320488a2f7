"""Arguments of one call, encoded for a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.remote.protocol import PushValue
from paragent.remote.result import ENCODED, FAILED, HELD, PENDING, RAISED, RemoteCall, Result, call_of, value_of
from paragent.remote.values import encode_argument, encode_error, encode_result, size_of

if TYPE_CHECKING:
    from paragent.remote.link import Link

__all__ = ["EncodedArguments"]


class EncodedArguments:
    """Encoded arguments of one call. A lazy result becomes a reference, so that its value need not pass through this process.

    Raises:
        Unserialisable: an argument cannot be pickled.
    """

    __slots__ = ("_link", "args", "code", "keeps", "kwargs", "size")

    def __init__(self, link: Link, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
        self._link = link
        self.size = 0
        """Bytes of the packed objects."""
        self.code: dict[str, bytes] = {}
        """Code that the server may lack, by digest."""
        self.keeps: list[Any] | None = None
        """Results and proxies that must live until the call has ended."""
        self.args = tuple(
            [self._encode(arg, f"argument {number} of {what}", "argument") for number, arg in enumerate(args, 1)]
        )
        self.kwargs: dict[str, Any] | None = None
        if kwargs:
            # A name may be of a subclass of str, such as an enum; a frame holds builtin values only.
            self.kwargs = {
                str.__str__(key): self._encode(arg, f"the argument {key} of {what}", key) for key, arg in kwargs.items()
            }

    def _encode(self, arg: Any, what: str, root: str) -> Any:
        if type(arg) is Result:
            return self._encode_call(call_of(arg), what, root)
        if self._link.sends_data:
            from paragent.remote.restricted import encode_data  # not at the top: few servers need it

            value = encode_data(arg, value_of)
            self.size += size_of(value)
            return value
        value, size, code = encode_argument(arg, what, root, other_host=self._link.on_other_host)
        self.size += size
        if code:
            self.code |= code
        if hasattr(arg, "__paragent_agent__"):
            self._keep(arg)
        return value

    def _keep(self, thing: Any) -> None:
        if self.keeps is None:
            self.keeps = []
        self.keeps.append(thing)

    def _encode_call(self, call: RemoteCall, what: str, root: str) -> Any:
        """Return a reference to the result of a call, or its outcome if it is already here."""
        source = call.link
        call.unused = False
        if source is not None and call.state == PENDING:
            pin = source.pin(call)
            if pin is not None:
                self._keep(pin)
                return self._reference(source, call)
        state, value = call.state, call.value
        if state == HELD and source is not None:
            self._keep(value)
            return self._reference(source, call)
        if state == ENCODED:
            return value
        if state in (FAILED, RAISED):
            return ("f", value if state == FAILED else encode_error(value))
        return self._encode(value, what, root)

    def _reference(self, source: Link, call: RemoteCall) -> Any:
        """Return the reference with which the server fetches the result, or a reference to a value that is pushed to it."""
        target = self._link
        if source is target:
            return ("r", None, None, call.number, None)
        if source.address.is_local and not target.address.is_local:
            return _push_later(target, call)
        tls = source.tls
        if tls is None:
            return ("r", tuple(source.address), source.session, call.number, None)
        if target.address.path:  # a child process of this program can read the files that this program uses
            settings = (tls.ca, tls.cert, tls.key, tls.server_name)
        elif target.peer_tls:
            settings = (None, None, None, tls.server_name)
        else:
            return _push_later(target, call)
        return ("r", tuple(source.address), source.session, call.number, settings)


def _push_later(target: Link, call: RemoteCall) -> tuple[str, int]:
    """Return the reference to a value that is pushed to `target` as soon as it has arrived here."""
    key = target.next_number()

    def push() -> None:
        if call.state == HELD:
            fetched = call.fetch()
            if fetched.watch(lambda: _push(target, key, fetched)):
                return
            _push(target, key, fetched)
        else:
            _push(target, key, call)

    if not (call.state == PENDING and call.watch(push)):
        push()
    return ("v", key)


def _push(target: Link, key: int, call: RemoteCall) -> None:
    failed = call.state == FAILED
    encoded: Any
    if call.state in (ENCODED, FAILED):
        encoded = call.value
    else:
        try:
            encoded = encode_result(call.open(), "a result")
        except BaseException as error:  # noqa: BLE001 - the error of the first call is the argument of the second
            failed, encoded = True, encode_error(error)
    target.post(PushValue(key, failed, encoded), size_of(encoded))
