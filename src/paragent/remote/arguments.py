"""Arguments of one call, encoded for a server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from paragent.errors import LimitExceeded, Unserialisable
from paragent.remote.protocol import MAX_ARGUMENTS, MAX_NAME, PushValue
from paragent.remote.result import ENCODED, FAILED, HELD, PENDING, RAISED, RemoteCall, Result, call_of, value_of
from paragent.remote.values import encode_argument, encode_error, encode_result, weight_of

if TYPE_CHECKING:
    from paragent.remote.link import Link

__all__ = ["EncodedArguments", "note_sent", "push_value"]


class _Sent(threading.local):
    proxies: list[Any] | None = None
    """The proxies in the argument that this thread encodes; None while it encodes none."""


_sent = _Sent()


def note_sent(proxy: Any) -> None:
    """Note that a proxy is encoded. If it is part of an argument, it must live until the call has ended."""
    if _sent.proxies is not None:
        _sent.proxies.append(proxy)


class EncodedArguments:
    """Encoded arguments of one call. A lazy result becomes a reference, so that its value need not pass through this process.

    Raises:
        Unserialisable: an argument cannot be pickled.
        LimitExceeded: there are too many arguments, or a name is too long.
    """

    __slots__ = ("_link", "args", "code", "error", "keeps", "kwargs", "size")

    def __init__(self, link: Link, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
        self._link = link
        self.size = 0
        """Bytes of the packed objects."""
        self.code: dict[str, bytes] = {}
        """Code that the server may lack, by digest."""
        self.keeps: list[Any] | None = None
        """Results and proxies that must live until the call has ended."""
        self.error: Any = None
        """The encoded error of an argument that cannot be made: it is the outcome of the call."""
        if len(args) > MAX_ARGUMENTS or len(kwargs) > MAX_ARGUMENTS or any(len(name) > MAX_NAME for name in kwargs):
            raise LimitExceeded(
                f"{what}: a call has at most {MAX_ARGUMENTS} arguments, with names of at most {MAX_NAME} characters; pass a "
                "list or a dictionary"
            )
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
        outer, _sent.proxies = _sent.proxies, []
        try:
            value = self._encode_value(arg, what, root)
            proxies = _sent.proxies
        except Unserialisable:
            raise
        except Exception as error:  # noqa: BLE001 - the error of a lazy result inside the argument
            return self._fail(encode_error(error))
        finally:
            _sent.proxies = outer
        for proxy in proxies:
            self._keep(proxy)
            if proxy.__paragent_link__.lost is not None:  # its server would wait for a client that may still create it
                return self._fail(encode_error(proxy.__paragent_link__.lost))
        return value

    def _fail(self, error: Any) -> tuple[str, Any]:
        self.error = error
        return ("f", error)

    def _encode_value(self, arg: Any, what: str, root: str) -> Any:
        if self._link.sends_data:
            from paragent.remote.restricted import dump_argument  # not at the top: few servers need it

            value = dump_argument(arg, value_of)
            self.size += weight_of(value)
            return value
        value, size, code = encode_argument(arg, what, root, other_host=self._link.on_other_host)
        self.size += size
        if code:
            self.code |= code
        return value

    def _keep(self, thing: Any) -> None:
        if self.keeps is None:
            self.keeps = []
        self.keeps.append(thing)

    def _encode_call(self, call: RemoteCall, what: str, root: str) -> Any:
        """Return a reference to the result of a call, or its outcome if it is already here."""
        source = call.link
        call.unused = False
        if source is not None and source is not self._link:
            self._link.share_code(source)
        if source is not None and call.state == PENDING:
            pin = source.pin(call)
            if pin is not None:
                self._keep(pin)
                return self._reference(source, call)
        state, value = call.outcome()
        if state == HELD and source is not None:
            self._keep(value)
            return self._reference(source, call)
        if state == ENCODED:
            return value
        if state in (FAILED, RAISED):
            return self._fail(value if state == FAILED else encode_error(value))
        return self._encode(value, what, root)

    def _reference(self, source: Link, call: RemoteCall) -> Any:
        """Return the reference with which the server fetches the result, or a reference to a value that is pushed to it."""
        target = self._link
        if source is target:
            return ("r", None, None, call.number, None, None)
        if source.address.is_local and not target.address.is_local:
            return self._push_later(call)
        tls = source.tls
        settings = None
        if tls is not None and target.address.path:  # a child process can read the files that this program uses
            settings = (tls.ca, tls.cert, tls.key, tls.server_name)
        elif tls is not None and target.peer_tls:
            settings = (None, None, None, tls.server_name)
        elif tls is not None:
            return self._push_later(call)
        self._keep(call)
        return ("r", tuple(source.address), source.session, call.number, settings, target.offer(call))

    def _push_later(self, call: RemoteCall) -> tuple[str, int]:
        """Return the reference to a value that is pushed as soon as it has arrived here."""
        key = self._link.next_number()
        push_value(self._link, key, call)
        return ("v", key)


def push_value(target: Link, key: int, call: RemoteCall) -> None:
    """Send the outcome of a call to another server as the value with this key, as soon as it has arrived here."""

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


def _push(target: Link, key: int, call: RemoteCall) -> None:
    state, encoded = call.outcome()
    failed = state == FAILED
    if state not in (ENCODED, FAILED):
        try:
            encoded = encode_result(call.open(), "a result")
        except BaseException as error:  # noqa: BLE001 - the error of the first call is the argument of the second
            failed, encoded = True, encode_error(error)
    target.post(PushValue(key, failed, encoded), weight_of(encoded))
