"""Arguments that are elsewhere: results of other calls, here or on another server, and values that the caller will push."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import AgentStopped, LimitExceeded, ProtocolError, ServerLost
from paragent.remote.client.link import data_link, link_to
from paragent.remote.client.result import ENCODED, FAILED, RAISED
from paragent.remote.protocol import CallError, CallResult
from paragent.remote.server.policy import OwnResult
from paragent.remote.values import encode_error, is_reference, restore, size_of
from paragent.transport.address import Address
from paragent.transport.tls import TlsConf

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.client.link import Link
    from paragent.remote.protocol import FetchResult, OutcomeKind, PushValue
    from paragent.remote.server.actors import Agent, Call
    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import Session

__all__ = ["DataPeers", "References", "fetch_from"]


_EARLY = 5.0
"""Seconds that something may be asked for before it is heard of: it comes over another connection."""

_MOST_EARLY = 100_000
"""Things of all clients that may be asked for early at a time."""


class References:
    """Finds what references stand for. Belongs to the I/O loop.

    Args:
        sessions: those of the server, by name.
        loop: the I/O loop.
        stir: called with an agent when the arguments of one of its calls are complete.
        policy: what may be loaded of what comes from elsewhere.
    """

    def __init__(
        self,
        sessions: dict[str, Session],
        loop: asyncio.AbstractEventLoop,
        stir: Callable[[Agent], None],
        policy: Policy,
    ) -> None:
        self._sessions, self._loop, self._stir, self._policy = sessions, loop, stir, policy
        self.early: dict[tuple[str, int], list[Callable[[], None]]] = {}
        """What to do when a call or an agent is heard of that somebody asked for already; agents are negative."""
        self._expected = 0
        """How much there is to do."""

    def await_arguments(self, call: Call, attachments: list[bytes]) -> None:
        """Have the references among the arguments of a call replaced as their values come."""
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
            call.missing += 1
            self._obtain(call, value, self._filler(call, container, key))

    def _filler(self, call: Call, container: Any, key: Any) -> Callable[[OutcomeKind, Any], None]:
        def fill(kind: OutcomeKind, value: Any) -> None:
            if kind is CallResult:
                container[key] = value
            else:
                call.error = value
            call.missing -= 1
            if not call.missing:
                self._stir(call.agent)

        return fill

    def _obtain(self, call: Call, reference: Any, then: Callable[[OutcomeKind, Any], None]) -> None:
        """Have `then` called, on this loop and not before this returns, with the outcome that a reference names."""
        session = call.session
        if reference[0] == "v":
            session.pushed[reference[1]] = then
            return
        _, address, identity, number, tls = reference
        if type(number) is not int or not _is_address(address, identity, tls):
            raise ProtocolError("a reference to a result that is nowhere")
        if address is None and self._policy.accept_code:
            self._loop.call_soon(self.want, session.identity, number, then)
        elif address is None:
            self._loop.call_soon(self.want, session.identity, number, _as_own(then))
        elif self._policy.accept_code:
            self._loop.call_soon(fetch_from, reference, self._policy, then)
        else:
            if session.peers is None:
                session.peers = DataPeers(self._policy, self._loop)
            self._loop.call_soon(session.peers.fetch, reference, _counted(call, then))

    def _error(self, value: Any) -> Any:
        """Return an error that somebody else sent as it is told to whoever asks: never as pickles, where no code is accepted."""
        if self._policy.accept_code:
            return value
        from paragent.remote.restricted import error_from  # not at the top: servers that accept code do not need it

        return encode_error(error_from(value))

    def want(self, identity: str, number: int, then: Callable[[OutcomeKind, Any], None], *, early: bool = True) -> None:
        """Have `then` called with the outcome of a call of this server, when there is one."""
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
            self.expect((identity, number), lambda: self.want(identity, number, then, early=False))
        else:
            then(CallError, encode_error(AgentStopped("the result is not kept any more: whoever held it dropped it")))

    def expect(self, key: tuple[str, int], then: Callable[[], None]) -> None:
        """Have `then` called when something is heard of, or after a while in any case; at once if too much is waited for."""
        if self._expected >= _MOST_EARLY:
            self._loop.call_soon(then)
            return
        self._expected += 1
        self.early.setdefault(key, []).append(then)
        self._loop.call_later(_EARLY, self.heard_of, *key)

    def heard_of(self, identity: str, number: int) -> None:
        """Do what waited for this call, or for the agent with minus this number."""
        for then in self.early.pop((identity, number), ()):
            self._expected -= 1
            then()

    # --- what clients say -----------------------------------------------------------------------------------------------

    def fetch(self, session: Session, message: FetchResult) -> None:
        """Answer with the result of another call."""

        def tell(kind: OutcomeKind, value: Any) -> None:
            session.tell(message.number, kind, value)

        def tell_data(kind: OutcomeKind, value: Any) -> None:
            if type(value) is tuple:  # the value is our own; reading it may take a while and run code of its class
                self._loop.run_in_executor(None, lambda: tell(*outcome_as_data(kind, value)))
            else:
                tell(kind, value)

        if session.data_only:
            from paragent.remote.restricted import outcome_as_data  # as above
        self.want(message.session or session.identity, message.wanted, tell_data if session.data_only else tell)

    def push(self, session: Session, message: PushValue, attachments: list[bytes]) -> None:
        """Take a value that an argument stands for."""
        then = session.pushed.pop(message.key, None)
        if then is not None:
            value = restore(message.value, attachments)
            if message.failed:
                then(CallError, self._error(value))
            else:
                then(CallResult, value)


def _counted(call: Call, then: Callable[[OutcomeKind, Any], None]) -> Callable[[OutcomeKind, Any], None]:
    """Return `then` for a value of another server, which weighs as much as one that the client sent itself."""
    session = call.session

    def arrived(kind: OutcomeKind, value: Any) -> None:
        size = size_of(value) if kind is CallResult else 0
        if session.load + size > session.most_load:
            kind, value, size = CallError, encode_error(LimitExceeded("the results of other servers are too large")), 0
        if session.active.get(call.number) is call:
            call.size += size
            session.load += size
        then(kind, value)

    return arrived


def _as_own(then: Callable[[OutcomeKind, Any], None]) -> Callable[[OutcomeKind, Any], None]:
    """Return `then` for a result of this server, which it wrote itself and may therefore load."""
    return lambda kind, value: then(kind, OwnResult(value) if kind is CallResult else value)


def _is_address(address: Any, identity: Any, tls: Any) -> bool:
    """Return whether a reference, which a client wrote, names a session of a server, or with None one of its own calls."""
    if address is None:
        return identity is None and tls is None
    if type(address) is not tuple or [type(part) for part in address] != [str, int, str] or type(identity) is not str:
        return False
    return tls is None or (
        type(tls) is tuple and len(tls) == 4 and all(type(part) in (str, type(None)) for part in tls)
    )


_MOST_PEERS = 16
"""Other servers at a time from which a restricted server fetches for one client."""
_IDLE = 10.0
"""Seconds after which the link to such a server is closed if nothing was fetched."""
_FAREWELL = 0.15
"""Seconds to say goodbye."""


def fetch_from(reference: tuple[Any, ...], policy: Policy, then: Callable[[OutcomeKind, Any], None]) -> None:
    """Ask another server for a result; `then` is called with its outcome, or with the error of not reaching it.

    For servers that accept code. Nothing that comes from there is decoded here.
    """
    _, address, session, number, tls = reference
    link = link_to(Address(*address), _tls(tls, policy))
    call = link.fetch(session, number)

    def arrived() -> None:
        state, value = call.state, call.value
        if state == ENCODED:
            then(CallResult, value)
        elif state == FAILED:
            then(CallError, value)
        else:
            error = value if state == RAISED else ProtocolError(f"{link.address} kept a result that was asked for")
            then(CallError, encode_error(error))

    if not call.watch(arrived):
        arrived()


class _Peer:
    """A server that a client has named."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.waiting = 0
        """Results that were asked for and have not come."""
        self.timer: asyncio.TimerHandle | None = None


class DataPeers:
    """The servers from which a restricted server fetches results for one client. Belongs to the I/O loop.

    The addresses are the client's word. Results come as data, over links of this client alone. There are few links at a time, and
    idle ones are closed. A client learns nothing about an address but that there was no result.
    """

    def __init__(self, policy: Policy, loop: asyncio.AbstractEventLoop) -> None:
        self._policy, self._loop = policy, loop
        self._peers: dict[tuple[Any, ...], _Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        """Keeps tasks from being collected before they end."""
        self._open = True

    def fetch(self, reference: tuple[Any, ...], then: Callable[[OutcomeKind, Any], None]) -> None:
        """Ask another server for a result; `then` is called with its outcome, or with the error of not getting it."""
        _, address, session, number, tls = reference
        key = (address, tls)
        if not self._open or (address[2] and not _is_child_socket(address[2])):
            then(CallError, _unreachable())
            return
        peer = self._peer(key)
        if peer is None:
            then(
                CallError,
                encode_error(
                    LimitExceeded(f"a client has results fetched from {_MOST_PEERS} other servers at a time, not more")
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
                then(CallError, _unreachable())

        if not call.watch(arrived):
            arrived()

    def close(self) -> None:
        """Close every link; nothing more is fetched."""
        self._open = False
        for key, peer in list(self._peers.items()):
            self._drop(key, peer)

    def _peer(self, key: tuple[Any, ...]) -> _Peer | None:
        peer = self._peers.get(key)
        if peer is not None and (peer.link.lost is not None or peer.link.broken):
            self._drop(key, peer)
            peer = None
        if peer is None:
            if len(self._peers) >= _MOST_PEERS:
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
        task = self._loop.create_task(peer.link.close(_FAREWELL))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _unreachable() -> Any:
    return encode_error(ServerLost("the result could not be fetched from the server that is said to have it"))


def _is_child_socket(path: str) -> bool:
    """Return whether a path is that of a child server of this user, in a folder as child servers have it; no other socket is."""
    place = Path(path)
    if not (place.is_absolute() and place.name.isdecimal() and place.parent.name.startswith("paragent-")):
        return False
    try:
        folder = os.lstat(place.parent)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(folder.st_mode) and folder.st_uid == os.geteuid() and not folder.st_mode & 0o077


def _tls(given: tuple[str | None, ...] | None, policy: Policy) -> TlsConf | None:
    """Return how to connect to a server of which a client says how it connects there itself; None: without TLS.

    The files that a client names are its own. They are used where there are none of this server's, by a server that runs the
    client's code anyway: a child process of the client's program.
    """
    if given is None:
        return None
    ca, cert, key, server_name = given
    conf = policy.peer_tls
    if conf is None:
        conf = TlsConf(ca=ca, cert=cert, key=key) if policy.accept_code else TlsConf()
    return replace(conf, server_name=server_name or conf.server_name)
