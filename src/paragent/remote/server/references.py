"""References in arguments: results of other calls on this or another server, and values that the client will push."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent._internal.text import printable
from paragent.errors import AccessDenied, AgentStopped, LimitExceeded, ProtocolError
from paragent.remote.link import data_link, link_to
from paragent.remote.protocol import CallError, CallResult, RequestValue
from paragent.remote.result import ENCODED, FAILED, RAISED
from paragent.remote.server.policy import OwnResult
from paragent.remote.values import encode_error, is_reference, restore, size_of
from paragent.transport.address import Address, TlsConf

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent._internal.clock import Clock
    from paragent.remote.link import Link
    from paragent.remote.protocol import FetchResult, OutcomeKind, PushValue
    from paragent.remote.server.actors import Actor, ActorCall
    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import ClientSession

__all__ = ["DataPeers", "References"]

_log = logging.getLogger("paragent.remote")

_EXPECT_SECONDS = 5.0
"""Seconds to wait for a call or an agent that is not known yet, because it arrives over another connection."""

_MAX_EXPECTED = 100_000
"""Calls and agents to wait for, of all clients together."""


class References:
    """Resolves references. Belongs to the I/O loop.

    Args:
        sessions: the sessions of the server, by identity.
        loop: the I/O loop.
        wake: called with an agent when the arguments of one of its calls are complete.
        policy: what may be loaded from other servers.
    """

    def __init__(
        self,
        sessions: dict[str, ClientSession],
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[Actor], None],
        policy: Policy,
    ) -> None:
        self._sessions, self._loop, self._wake_actor, self._policy = sessions, loop, wake, policy
        self.expected: dict[tuple[str, int], list[Callable[[], None]]] = {}
        """Callbacks for calls and agents that are not known yet, by session and number; numbers of agents are negative."""
        self._expected_count = 0
        """Number of callbacks in `expected`."""
        self._unreachable = UnreachableServers()

    def await_arguments(self, call: ActorCall, attachments: list[bytes]) -> None:
        """Replace the references in the arguments of a call as their values arrive."""
        call.args = list(call.args)
        places: list[tuple[Any, Any]] = [(call.args, index) for index in range(len(call.args))]
        places += [(call.kwargs, key) for key in call.kwargs or ()]
        for container, key in places:
            value = container[key]
            if not is_reference(value):
                continue
            if value[0] == "f":
                call.error = self._error(restore(value[1], attachments))
                continue
            call.missing_args += 1
            self._obtain(call, value, self._filler(call, container, key))

    def _filler(self, call: ActorCall, container: Any, key: Any) -> Callable[[OutcomeKind, Any], None]:
        def fill(kind: OutcomeKind, value: Any) -> None:
            if kind is CallResult:
                container[key] = value
            else:
                call.error = value
            call.missing_args -= 1
            if not call.missing_args:
                self._wake_actor(call.agent)

        return fill

    def _obtain(self, call: ActorCall, reference: Any, then: Callable[[OutcomeKind, Any], None]) -> None:
        """Call `then` with the outcome that a reference names; on this loop, and not before this method has returned."""
        session = call.session
        if reference[0] == "v":
            session.pushed[reference[1]] = then
            return
        _, address, identity, number, tls, key = reference
        if type(number) is not int or not _is_address(address, identity, tls, key):
            raise ProtocolError("a malformed reference to a result")
        if address is None and self._policy.accept_code:
            self._loop.call_soon(self.when_ended, session.identity, number, then)
        elif address is None:
            self._loop.call_soon(self.when_ended, session.identity, number, _as_own(then))
        else:
            then = then if self._policy.accept_code else _counted(call, then)
            self._loop.call_soon(self._fetch, session, reference, then)

    def _fetch(
        self, session: ClientSession, reference: tuple[Any, ...], then: Callable[[OutcomeKind, Any], None]
    ) -> None:
        """Fetch a result from another server. If that server cannot be reached, request the value from the client."""
        _, address, _, _, tls, key = reference

        def request() -> None:
            session.pushed[key] = then
            session.send_outcome(key, RequestValue, None)

        def fail(error: BaseException) -> None:
            self._unreachable.add((address, tls), error)
            request()

        if (address, tls) in self._unreachable:
            request()
        elif self._policy.accept_code:
            _fetch_from(reference, self._policy, then, fail)
        else:
            if session.peers is None:
                session.peers = DataPeers(self._policy, self._loop)
            session.peers.fetch(reference, then, fail)

    def _error(self, value: Any) -> Any:
        """Return an error of a client or another server for other clients; a restricted server passes on no pickles."""
        if self._policy.accept_code:
            return value
        from paragent.remote.restricted import error_from  # not at the top: servers that accept code do not need it

        return encode_error(error_from(value))

    def when_ended(
        self, identity: str, number: int, then: Callable[[OutcomeKind, Any], None], *, early: bool = True
    ) -> None:
        """Call `then` with the outcome of a call of this server, when it has ended."""
        session = self._sessions.get(identity)
        if session is not None:
            kind, value = session.outcome(number)
            if kind is not None:
                then(kind, value)
                return
            call = session.active.get(number)
            if call is not None:
                if call.watchers is None:
                    call.watchers = []
                call.watchers.append(then)
                return
        if early and (session is None or number > session.last_call):
            self.expect((identity, number), lambda: self.when_ended(identity, number, then, early=False))
        else:
            then(CallError, encode_error(AgentStopped("the result is not kept any more: its holder dropped it")))

    def expect(self, key: tuple[str, int], then: Callable[[], None]) -> None:
        """Call `then` when a call or an agent becomes known or after some seconds; at once if too many are expected."""
        if self._expected_count >= _MAX_EXPECTED:
            self._loop.call_soon(then)
            return
        self._expected_count += 1
        self.expected.setdefault(key, []).append(then)
        self._loop.call_later(_EXPECT_SECONDS, self.announce, *key)

    def announce(self, identity: str, number: int) -> None:
        """Run the callbacks for this call, or for the agent with the negated number."""
        for then in self.expected.pop((identity, number), ()):
            self._expected_count -= 1
            then()

    # --- messages of clients -----------------------------------------------------------------------------------------------

    def fetch(self, session: ClientSession, message: FetchResult) -> None:
        """Send the result of another call."""

        def send(kind: OutcomeKind, value: Any) -> None:
            session.send_outcome(message.number, kind, value)

        def send_data(kind: OutcomeKind, value: Any) -> None:
            if type(value) is tuple:  # our own value; decoding it may be slow and may run code of its class
                self._loop.run_in_executor(None, lambda: send(*outcome_as_data(kind, value)))
            else:
                send(kind, value)

        if session.client.data_only:
            from paragent.remote.restricted import outcome_as_data  # as above
        self.when_ended(
            message.session or session.identity, message.wanted, send_data if session.client.data_only else send
        )

    def push(self, session: ClientSession, message: PushValue, attachments: list[bytes]) -> None:
        """Handle a pushed value for an argument."""
        then = session.pushed.pop(message.key, None)
        if then is not None:
            value = restore(message.value, attachments)
            if message.failed:
                then(CallError, self._error(value))
            else:
                then(CallResult, value)


def _counted(call: ActorCall, then: Callable[[OutcomeKind, Any], None]) -> Callable[[OutcomeKind, Any], None]:
    """Return `then` for a value of another server, which counts like an argument that the client sent itself."""
    session = call.session

    def arrived(kind: OutcomeKind, value: Any) -> None:
        size = size_of(value) if kind is CallResult else 0
        if session.load + size > session.max_load:
            kind, value, size = CallError, encode_error(LimitExceeded("the results of other servers are too large")), 0
        if session.active.get(call.number) is call:
            call.size += size
            session.load += size
        then(kind, value)

    return arrived


def _as_own(then: Callable[[OutcomeKind, Any], None]) -> Callable[[OutcomeKind, Any], None]:
    """Return `then` for a result of this server, which it may unpickle because it has written it."""
    return lambda kind, value: then(kind, OwnResult(value) if kind is CallResult else value)


def _is_address(address: Any, identity: Any, tls: Any, key: Any) -> bool:
    """Return whether the fields of a reference, which a client wrote, have the right types."""
    if address is None:
        return identity is None and tls is None and key is None
    if (
        type(key) is not int
        or type(address) is not tuple
        or [type(part) for part in address] != [str, int, str]
        or type(identity) is not str
    ):
        return False
    return tls is None or (
        type(tls) is tuple and len(tls) == 4 and all(type(part) in (str, type(None)) for part in tls)
    )


_MAX_PEERS = 16
"""Other servers from which a restricted server fetches results for one client at a time."""
_IDLE = 10.0
"""Seconds after which an idle link to such a server is closed."""
_CLOSE_SECONDS = 0.15
"""Seconds to close a link."""
_UNREACHABLE_SECONDS = 30.0
"""Seconds after which an unreachable server is tried again."""
_MAX_UNREACHABLE = 1_000
_LOG_EVERY = 1.0


class UnreachableServers:
    """The servers that could not be reached in the last half minute. Their results are requested from clients at once."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._until: dict[tuple[Any, ...], float] = {}
        self._logged_at = -_LOG_EVERY

    def __contains__(self, server: tuple[Any, ...]) -> bool:
        return self._clock() < self._until.get(server, 0.0)

    def add(self, server: tuple[Any, ...], error: BaseException) -> None:
        """Add a server, by its address and its TLS settings; the reason is logged, at most once a second."""
        now = self._clock()
        if len(self._until) >= _MAX_UNREACHABLE:  # a client names the addresses
            self._until.clear()
        self._until[server] = now + _UNREACHABLE_SECONDS
        if now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            _log.warning(
                "results of %s go through the clients, because this server cannot fetch them: %s",
                printable(str(Address(*server[0]))),
                printable(str(error)),
            )


def _fetch_from(
    reference: tuple[Any, ...],
    policy: Policy,
    then: Callable[[OutcomeKind, Any], None],
    fail: Callable[[BaseException], None],
) -> None:
    """Fetch a result from another server; call `then` with its outcome, or `fail` with the error of the connection.

    For servers that accept code. The outcome is not decoded here.
    """
    _, address, session, number, tls, _ = reference
    link = link_to(Address(*address), _tls(tls, policy))
    call = link.fetch(session, number)

    def arrived() -> None:
        state, value = call.state, call.value
        if state == ENCODED:
            then(CallResult, value)
        elif state == FAILED:
            then(CallError, value)
        else:
            fail(_connection_error(link, state, value))

    if not call.watch(arrived):
        arrived()


class _Peer:
    """Another server that a client has named."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.waiting = 0
        """Requested results that have not arrived."""
        self.timer: asyncio.TimerHandle | None = None


class DataPeers:
    """The servers from which a restricted server fetches results for one client. Belongs to the I/O loop.

    The client chooses the addresses. Results arrive as data, over links that are used for this client only. The number of links
    is limited, and idle ones are closed. A client learns nothing about an address except that the server has no result from it.
    """

    def __init__(self, policy: Policy, loop: asyncio.AbstractEventLoop) -> None:
        self._policy, self._loop = policy, loop
        self._peers: dict[tuple[Any, ...], _Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        """Keeps references to tasks, so that they are not garbage-collected before they end."""
        self._open = True

    def fetch(
        self,
        reference: tuple[Any, ...],
        then: Callable[[OutcomeKind, Any], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Fetch a result from another server; call `then` with its outcome, or `fail` with the error of the connection."""
        _, address, session, number, tls, _ = reference
        key = (address, tls)
        if not self._open:
            return  # the client is gone
        if address[2] and not _is_child_socket(address[2]):
            fail(AccessDenied("it is not a socket of a child process of this user"))
            return
        peer = self._peer(key)
        if peer is None:
            then(
                CallError,
                encode_error(
                    LimitExceeded(
                        f"results are fetched from at most {_MAX_PEERS} other servers at a time for one client"
                    )
                ),
            )
            return
        peer.waiting += 1
        call = peer.link.fetch(session, number)

        def arrived() -> None:
            self._arrived(key, peer)
            state, value = call.state, call.value
            if state == ENCODED:
                then(CallResult, value)
            elif state == FAILED:
                from paragent.remote.restricted import error_from  # not at the top: few servers need it

                then(CallError, encode_error(error_from(value)))
            else:
                fail(_connection_error(peer.link, state, value))

        if not call.watch(arrived):
            arrived()

    def close(self) -> None:
        """Close all links; later fetches fail."""
        self._open = False
        for key, peer in list(self._peers.items()):
            self._drop(key, peer)

    def _peer(self, key: tuple[Any, ...]) -> _Peer | None:
        peer = self._peers.get(key)
        if peer is not None and (peer.link.lost is not None or peer.link.broken):
            self._drop(key, peer)
            peer = None
        if peer is None:
            if len(self._peers) >= _MAX_PEERS:
                idle = next((known for known, other in self._peers.items() if not other.waiting), None)
                if idle is None:
                    return None
                self._drop(idle, self._peers[idle])
            address, tls = key
            peer = self._peers[key] = _Peer(data_link(Address(*address), _tls(tls, self._policy)))
        if peer.timer is not None:
            peer.timer.cancel()
            peer.timer = None
        return peer

    def _arrived(self, key: tuple[Any, ...], peer: _Peer) -> None:
        peer.waiting -= 1
        if not peer.waiting and self._peers.get(key) is peer:
            seconds = _IDLE if peer.link.lost is None else 0.0
            peer.timer = self._loop.call_later(seconds, self._drop, key, peer)

    def _drop(self, key: tuple[Any, ...], peer: _Peer) -> None:
        if peer.timer is not None:
            peer.timer.cancel()
        if self._peers.get(key) is peer:
            del self._peers[key]
        task = self._loop.create_task(peer.link.close(_CLOSE_SECONDS))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _connection_error(link: Link, state: int, value: Any) -> BaseException:
    if state == RAISED and isinstance(value, BaseException):
        return value
    return ProtocolError(f"{link.address} did not send a result that was requested")


def _is_child_socket(path: str) -> bool:
    """Return whether a path is the socket of a child server of this user, in a folder that only this user can access."""
    place = Path(path)
    if not (place.is_absolute() and place.name.isdecimal() and place.parent.name.startswith("paragent-")):
        return False
    try:
        folder = os.lstat(place.parent)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(folder.st_mode) and folder.st_uid == os.geteuid() and not folder.st_mode & 0o077


def _tls(given: tuple[str | None, ...] | None, policy: Policy) -> TlsConf | None:
    """Return the TLS settings for another server, given the client's own settings for it; None: without TLS.

    The paths in the client's settings are on the client's host. They are used only if this server has no settings of its own
    and accepts code, as a child server of the client's program does.
    """
    if given is None:
        return None
    ca, cert, key, server_name = given
    conf = policy.peer_tls
    if conf is None:
        conf = TlsConf(ca=ca, cert=cert, key=key) if policy.accept_code else TlsConf()
    return replace(conf, server_name=server_name or conf.server_name)
