"""Getting a value from another server, on behalf of a call that needs it as an argument."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import LimitExceeded, ProtocolError, ServerLost
from paragent.remote.client.links import data_link, link_to
from paragent.remote.client.result import ENCODED, FAILED, RAISED
from paragent.remote.faults import encode_error
from paragent.remote.wire import ERROR, RESULT
from paragent.rpc.address import Address
from paragent.rpc.tls import TlsConf

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.client.link import Link
    from paragent.remote.server.policy import Policy

__all__ = ["DataPeers", "fetch_from"]

_MOST_PEERS = 16
"""Other servers at a time from which a restricted server fetches for one client."""
_IDLE = 10.0
"""Seconds after which the link to such a server is closed if nothing was fetched."""
_FAREWELL = 0.15
"""Seconds to say goodbye."""


def fetch_from(reference: tuple[Any, ...], policy: Policy, then: Callable[[str, Any], None]) -> None:
    """Ask another server for a result; `then` is called with its outcome, or with the error of not reaching it.

    For servers that accept code. Nothing that comes from there is decoded here.
    """
    _, address, session, number, tls = reference
    link = link_to(Address(*address), _tls(tls, policy))
    result = link.fetch(session, number)

    def arrived() -> None:
        state, value = result._state, result._value
        if state == ENCODED:
            then(RESULT, value)
        elif state == FAILED:
            then(ERROR, value)
        else:
            error = (
                value if state == RAISED else ProtocolError(f"{link.place.address} kept a result that was asked for")
            )
            then(ERROR, encode_error(error))

    if not result._watch(arrived):
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

    def fetch(self, reference: tuple[Any, ...], then: Callable[[str, Any], None]) -> None:
        """Ask another server for a result; `then` is called with its outcome, or with the error of not getting it."""
        _, address, session, number, tls = reference
        key = (address, tls)
        if not self._open or (address[2] and not _is_child_socket(address[2])):
            then(ERROR, _unreachable())
            return
        peer = self._peer(key)
        if peer is None:
            then(
                ERROR,
                encode_error(
                    LimitExceeded(f"a client has results fetched from {_MOST_PEERS} other servers at a time, not more")
                ),
            )
            return
        peer.waiting += 1
        result = peer.link.fetch(session, number)

        def arrived() -> None:
            self._arrived(key, peer)
            state, value = result._state, result._value
            if state == ENCODED:
                then(RESULT, value)
            elif state == FAILED:
                from paragent.remote.restricted import error_from  # not at the top: few servers need it

                then(ERROR, encode_error(error_from(value)))
            else:
                then(ERROR, _unreachable())

        if not result._watch(arrived):
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
