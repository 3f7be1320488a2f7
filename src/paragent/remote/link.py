"""Links to agent servers: what callers can ask of a server, and the table of all links of this process.

A call is numbered, added to the pending calls and put into the outbox. The connection, on the I/O loop, groups the messages of
the outbox into frames, sends them, and settles the pending calls with the answers.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from paragent.errors import CallTimedOut, ServerLost
from paragent.remote.arguments import EncodedArguments, push_value
from paragent.remote.connection import Connection, ExternalServer
from paragent.remote.pending_calls import SMALL, Outbox, PendingCalls
from paragent.remote.placement import RECONNECT_TIMEOUT
from paragent.remote.protocol import (
    MAX_ARGUMENTS,
    AddCode,
    CallMethod,
    CancelCall,
    CreateAgent,
    DefineClass,
    FetchResult,
    QueryServer,
    ReadAttribute,
    StopAgent,
)
from paragent.remote.result import FAILED, RemoteCall, Result, cancelled, failed_call
from paragent.remote.stream import RemoteStream, StreamBuffer
from paragent.remote.values import PLAIN, encode_argument
from paragent.serialization.code_cache import MODULES, SentCode
from paragent.transport.auth import load_token
from paragent.transport.loop import fork_error, io_loop, is_forked, on_failure, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.errors import ParagentError
    from paragent.remote.connection import ServerEndpoint
    from paragent.remote.pending_calls import HardStop, ResultPin
    from paragent.transport.address import Address, TlsConf
    from paragent.transport.auth import Token

__all__ = ["Link", "close_links", "data_link", "link_to", "register_link"]


class Link:
    """An agent server as this process uses it. Any thread may use a link.

    The constructor sends nothing. The connection is made for the first message; an error of connecting is the outcome of the
    calls that wait for it. In a process that was forked after remote agents were used, it is the outcome of all calls that this
    is not possible.

    Args:
        endpoint: the server.
        token: the secret that both sides know.
        tls: how to use TLS, or None.
        reconnect_timeout: seconds to reconnect after the connection broke.
        data_only: whether to unpickle nothing that the server sends.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        token: Token,
        tls: TlsConf | None,
        *,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        data_only: bool = False,
    ) -> None:
        self.address, self.tls, self.reconnect_timeout = endpoint.address, tls, reconnect_timeout
        self.on_other_host = not endpoint.address.is_local
        """Whether the server may be on another host."""
        self.hard_stop: HardStop | None = None
        """Kills the process of the server if a cancelled call does not end; None unless one agent has the process for itself."""
        self._call_numbers = itertools.count(1)
        self._agent_numbers = itertools.count(1)
        self._loop = _closed_loop() if is_forked() else io_loop()
        self._outbox = Outbox(lambda: self._connection.notify())
        self._pending = PendingCalls(self._outbox, lambda: not self._on_io_loop(), self._push_offered)
        self._offers: weakref.WeakValueDictionary[int, RemoteCall] = weakref.WeakValueDictionary()
        """Calls to other servers whose results are arguments here, by the key under which this server may request them."""
        self._connection = Connection(
            endpoint,
            token,
            tls,
            self._pending,
            self._outbox,
            self._loop,
            reconnect_timeout=reconnect_timeout,
            data_only=data_only,
        )
        self._definitions_lock = threading.Lock()
        """Protects `_classes`, `_code_sent` and `sent_code`: what they contain was put into the outbox. Also the keys of
        `_copies`."""
        self._classes: dict[int, tuple[int, type]] = {}
        """Number and class, by identity of the class."""
        self._code_sent = SentCode()
        self.sent_code: dict[str, bytes] = {}
        """The code that the server was sent, by digest."""
        self._shared: weakref.WeakKeyDictionary[Link, int] = weakref.WeakKeyDictionary()
        """How much of the code of another server this one was sent."""
        self._copies: weakref.WeakValueDictionary[tuple[str, int], set[int]] = weakref.WeakValueDictionary()
        if is_forked():
            self.abandon()

    @property
    def session(self) -> str:
        """Name under which the server knows this process."""
        return self._connection.session

    @property
    def connected(self) -> bool:
        """Whether a connection has been made and not closed."""
        return self._connection.connected

    @property
    def lost(self) -> ParagentError | None:
        """Why the server is lost; None while it is not."""
        return self._pending.lost

    @property
    def broken(self) -> bool:
        """Whether the connection broke and has not been made again: another server may listen at the address by now."""
        return self._connection.broken

    @property
    def sends_data(self) -> bool:
        """Whether the server is known to accept data only."""
        return self._outbox.sends_data

    @property
    def peer_tls(self) -> bool:
        """Whether the server is known to be able to connect to other servers that use TLS."""
        return self._connection.peer_tls

    # --- agents ---------------------------------------------------------------------------------------------------------

    def create_agent(self, cls: type, how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Have the server create an agent; return its number, which can be used at once.

        Raises:
            Unserialisable: an argument, or the agent's state, cannot be pickled.
        """
        known = self._classes.get(id(cls))
        number = known[0] if known else self._define_class(cls)
        agent = next(self._agent_numbers)
        if not kwargs and _plain_size(args) is not None:
            self._outbox.put(CreateAgent(agent, number, how, args))
            return agent
        encoded = EncodedArguments(self, args, kwargs, cls.__name__)
        self._send_code(encoded.code)
        self._outbox.put(CreateAgent(agent, number, how, encoded.args, encoded.kwargs), encoded.size)
        if encoded.keeps:
            # The constructor's arguments must live until the agent has used them: until its first answer.
            self._ask(ReadAttribute, agent, "__class__").keeps = encoded.keeps
        return agent

    def _define_class(self, cls: type) -> int:
        value, size, code = encode_argument(cls, f"the class {cls.__name__}", other_host=self.on_other_host)
        self._send_code(code)
        module = getattr(cls, "__module__", "")
        with self._definitions_lock:
            known = self._classes.get(id(cls))
            if known is None:
                self._outbox.put(DefineClass(len(self._classes) + 1, module, cls.__qualname__, value), size)
                known = self._classes[id(cls)] = (len(self._classes) + 1, cls)
        return known[0]

    def _send_code(self, code: dict[str, bytes]) -> None:
        if code:
            with self._definitions_lock:
                if missing := self._code_sent.missing(code):
                    self.sent_code |= missing
                    self._outbox.put(AddCode(missing))

    def share_code(self, source: Link) -> None:
        """Send the code that another server was sent: its results, which refer to that code, become arguments here."""
        if self._shared.get(source, 0) == len(source.sent_code):
            return
        code = source.sent_code.copy()
        # A server on this host imports the program's modules itself.
        self._send_code({key: part for key, part in code.items() if self.on_other_host or not key.startswith(MODULES)})
        self._shared[source] = len(code)

    def copies_of(self, agent: tuple[str, int]) -> set[int]:
        """Return the set of the copied proxies of an agent in this process, by identity. The last one drops the agent.

        No lock protects the set, as finalizers use it: adding and discarding are single operations.
        """
        with self._definitions_lock:
            copies = self._copies.get(agent)
            if copies is None:
                copies = self._copies[agent] = set()
            return copies

    # --- calls ----------------------------------------------------------------------------------------------------------

    def call(
        self, agent: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None, label: str
    ) -> Result[Any]:
        """Send a call and return its lazy result; blocks only while the window is full. Errors call the method `label`.

        Raises:
            Unserialisable: an argument cannot be pickled.
        """
        pending = self._pending
        if pending.lost is not None:
            return Result(failed_call(pending.loss(), label))
        number = next(self._call_numbers)
        call = RemoteCall(self, number, label)
        size = None if kwargs or timeout is not None else _plain_size(args)
        if size is not None:
            pending.send(call, CallMethod(number, agent, method, args), size)
        else:
            self._call_encoded(call, agent, method, args, kwargs, timeout, label)
        pending.fail_if_lost()
        return Result(call)

    def _call_encoded(
        self,
        call: RemoteCall,
        agent: Any,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        label: str,
    ) -> None:
        encoded = EncodedArguments(self, args, kwargs, label)
        if encoded.error is not None:  # not sent: a restricted server would return it without its class
            call.settle(FAILED, encoded.error, {})
            return
        call.keeps = encoded.keeps
        self._send_code(encoded.code)
        timeout = None if timeout is None else float(timeout)  # a frame holds builtin values only
        message = CallMethod(call.number, agent, method, encoded.args, encoded.kwargs, seconds=timeout)
        self._pending.send(call, message, encoded.size)
        if timeout is not None:
            self._loop.call_soon_threadsafe(self._set_deadline, weakref.ref(call), timeout, label)

    def stream(
        self, agent: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None, label: str
    ) -> RemoteStream[Any]:
        """Send a call to a generator method and return the stream of its items. Errors call the method `label`.

        Raises:
            Unserialisable: an argument cannot be pickled.
        """
        encoded = EncodedArguments(self, args, kwargs, label)
        timeout = None if timeout is None else float(timeout)
        buffer = StreamBuffer(self.next_number())
        stream: RemoteStream[Any] = RemoteStream(self, buffer, timeout, label)
        if encoded.error is not None:
            buffer.settle(FAILED, encoded.error, {})
            return stream
        self._send_code(encoded.code)
        message = CallMethod(buffer.number, agent, method, encoded.args, encoded.kwargs, stream.CREDIT, timeout)
        buffer.keeps = encoded.keeps
        self._pending.send(buffer, message, encoded.size)
        self._pending.fail_if_lost()
        return stream

    def read(self, agent: Any, attribute: str) -> Result[Any]:
        """Ask for an attribute of an agent."""
        return Result(self._ask(ReadAttribute, agent, attribute))

    def stop(self, agent: Any) -> Result[bool]:
        """Have an agent freed now; the call ends when that is done, with whether the agent existed."""
        if self.hard_stop is not None:
            self._loop.call_soon_threadsafe(self._watch, self._pending.numbers(), "was stopped")
        return Result(self._ask(StopAgent, agent))

    def control(self, what: str, argument: Any = None) -> Result[Any]:
        """Ask the server about itself (`info`, `list`, `running`), or to `stop`."""
        return Result(self._ask(QueryServer, what, argument))

    def fetch(self, session: str | None, number: int) -> RemoteCall:
        """Ask for the result of a call of this session (None) or of another one."""
        return self._ask(FetchResult, session, number)

    def _ask(self, kind: Callable[..., Any], *fields: Any) -> RemoteCall:
        if self._pending.lost is not None:
            return failed_call(self._pending.loss())
        call = RemoteCall(self, self.next_number())
        self._pending.add(call)
        self._outbox.put(kind(call.number, *fields))
        self._pending.fail_if_lost()
        return call

    def next_number(self) -> int:
        """Return a number that no call and no pushed value has yet."""
        return next(self._call_numbers)

    def post(self, message: Any, size: int = 0) -> None:
        """Send a message; never blocks, so that finalizers may call it."""
        self._outbox.put(message, size)

    def pin(self, call: RemoteCall) -> ResultPin | None:
        """Have the server keep the result of a pending call for another call; return None if it has already arrived."""
        return self._pending.pin(call)

    def offer(self, call: RemoteCall) -> int:
        """Return a key under which the server may request the result of a call to another server, while the call exists."""
        key = self.next_number()
        self._offers[key] = call
        return key

    def _push_offered(self, key: int) -> None:
        if (call := self._offers.pop(key, None)) is not None:
            push_value(self, key, call)

    # --- ending calls ---------------------------------------------------------------------------------------------------

    def cancel(self, call: RemoteCall) -> bool:
        """Cancel a call here and on the server; return False if it had already ended."""
        if not self._pending.is_pending(call):
            return False
        self._loop.call_soon_threadsafe(self._abort, call, cancelled())
        if not self._on_io_loop():
            call.wait(1.0)
        return True

    def _set_deadline(self, call: weakref.ref[RemoteCall], seconds: float, label: str) -> None:
        # `PendingCalls` keeps the call while it is pending; the timer must not keep it after that.
        self._loop.call_later(seconds, self._expire, call, seconds, label)

    def _expire(self, reference: weakref.ref[RemoteCall], seconds: float, label: str) -> None:
        call = reference()
        if call is not None:
            self._abort(call, CallTimedOut(f"{label}: no answer within {seconds} s"))

    def _abort(self, call: RemoteCall, error: BaseException) -> None:
        if self._pending.abort(call, error):
            self._outbox.put(CancelCall(call.number))
            self._watch([call.number], "timed out" if isinstance(error, CallTimedOut) else "was cancelled")

    def _watch(self, numbers: list[int], reason: str) -> None:
        """On the I/O loop: kill the process of the server if these cancelled calls do not end, where that is agreed."""
        if self.hard_stop is not None:
            for number in numbers:
                self.hard_stop.watch(number, reason)

    def end_stream(self, number: int) -> None:
        """End a remote generator and ignore what still arrives from it; never blocks, as `post`."""
        self._pending.forget(number)
        self._outbox.put(CancelCall(number))
        if self.hard_stop is not None:
            self._loop.call_soon_threadsafe(self._watch, [number], "was closed")

    def _on_io_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # --- the end of the link --------------------------------------------------------------------------------------------

    def lose(self, error: ParagentError) -> None:
        """Declare the server lost: pending and later calls fail with this error."""
        self._pending.lose(error)

    def fail_if_lost(self) -> None:
        """End all pending calls if the server is lost."""
        self._pending.fail_if_lost()

    def abandon(self) -> None:
        """In a forked process: send nothing, and have all calls fail. The connection belongs to the parent process."""
        self._definitions_lock = threading.Lock()
        self.hard_stop = None
        self._outbox.close()
        self._pending.abandon(fork_error())

    def retire(self, then: Callable[[], None]) -> None:
        """Have `then` called, on the I/O loop, when no call is pending and the server keeps no result; not if it is lost."""
        if self._pending.lost is None:
            self._connection.retire(then)

    async def reconnect(self) -> None:
        """On the I/O loop: replace the connection by a new one; no message is lost or handled twice."""
        await self._connection.reconnect()

    async def close(self, timeout: float) -> None:
        """Close the session and the connection; pending calls fail with `ServerLost`."""
        await self._connection.close(timeout)


def _closed_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


def _plain_size(args: tuple[Any, ...]) -> int | None:
    """Return the bytes of arguments that need no encoding; None if one needs it or they are large."""
    size = 0
    if len(args) > MAX_ARGUMENTS:
        return None
    for arg in args:
        kind = type(arg)
        if kind not in PLAIN:
            return None
        if kind is str or kind is bytes:
            size += len(arg)
    return size if size < SMALL else None


# --- all links of this process ------------------------------------------------------------------------------------------

_CLOSE_SECONDS = 0.15
"""Seconds that a link may take to send its last messages when the program ends: half of the 0.3 s that an exit may take."""

_links: dict[tuple[Any, ...], Link] = {}
"""The link that new agents of a server use, by address, TLS settings and time limit of reconnecting."""
_all_links: weakref.WeakSet[Link] = weakref.WeakSet()
"""Every link in use, also those that a newer link has replaced."""
_links_lock = threading.Lock()
"""Protects both."""


def link_to(address: Address, tls: TlsConf | None, reconnect_timeout: float = RECONNECT_TIMEOUT) -> Link:
    """Return the link to the server at `address`; a new one if there is none or its connection is lost or broken."""
    key = (tuple(address), tls, reconnect_timeout)
    with _links_lock:
        link = _links.get(key)
        if link is None or link.lost is not None or link.broken:
            link = Link(ExternalServer(address, tls), load_token(), tls, reconnect_timeout=reconnect_timeout)
            _add(key, link)
    return link


def data_link(address: Address, tls: TlsConf | None) -> Link:
    """Return a new link that unpickles nothing that the server sends; the caller closes it."""
    link = Link(ExternalServer(address, tls), load_token(), tls, data_only=True)
    with _links_lock:
        _all_links.add(link)
    return link


def register_link(link: Link) -> None:
    """Have `link_to` find a link by its address, and `close_links` close it."""
    with _links_lock:
        _add((tuple(link.address), None, link.reconnect_timeout), link)


def _add(key: tuple[Any, ...], link: Link) -> None:
    """Add a link and forget the links whose server is lost. The caller holds the lock."""
    for other in [other for other, known in _links.items() if known.lost is not None]:
        del _links[other]
    _links[key] = link
    _all_links.add(link)


def close_links() -> None:
    """Close every link. This is also done when the program ends."""
    if links := _take_all():
        with contextlib.suppress(TimeoutError):
            run(_close(links), 2 * _CLOSE_SECONDS)


async def _close(links: list[Link]) -> None:
    await asyncio.gather(*(link.close(_CLOSE_SECONDS) for link in links), return_exceptions=True)


def _lose_all(name: str, error: BaseException) -> None:
    """Fail all calls: the thread that would deliver the answers has ended."""
    for link in _take_all():
        link.lose(ServerLost(f"the connection broke: the thread {name!r} ended with {type(error).__name__}"))


def _take_all() -> list[Link]:
    with _links_lock:
        links = list(_all_links)
        _links.clear()
        _all_links.clear()
    return links


_abandoned: list[Link] = []
"""In a forked process: the links of the parent. They are kept, because freeing a channel of gRPC would use its connection."""


def _abandon_links() -> None:
    """In a forked process: the connections are the parent's."""
    global _links_lock
    _links_lock = threading.Lock()
    _abandoned.extend(_take_all())
    for link in _abandoned:
        link.abandon()


on_failure(_lose_all)
atexit.register(close_links)
os.register_at_fork(after_in_child=_abandon_links)
