"""Every link of this process, one for each server, closed when the program ends."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from paragent.errors import ServerLost
from paragent.remote.client.link import Link
from paragent.transport.auth import load_token
from paragent.transport.loop import on_failure, run

if TYPE_CHECKING:
    from paragent.transport.address import Address
    from paragent.transport.tls import TlsConf

__all__ = ["Elsewhere", "Place", "adopt", "close_links", "data_link", "link_to"]


class Place(Protocol):
    """A server that a link talks to."""

    address: Address

    async def ready(self) -> None:
        """Return when the server can be connected to.

        Raises:
            ServerLost: it never will.
        """

    async def gone(self) -> str:
        """Return, when the server has ended, how; never, where only the connection can tell."""

    def advice(self, trouble: str, *, first: bool) -> str:
        """Return the message of the error for a server that cannot be reached, at first or any more."""


class Elsewhere:
    """A server that somebody else started."""

    def __init__(self, address: Address) -> None:
        self.address = address

    async def ready(self) -> None:
        """Nothing to wait for: connecting tells."""

    async def gone(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    def advice(self, trouble: str, *, first: bool) -> str:
        if not first:
            return f"agent server {self.address} is gone: it died, was stopped or cannot be reached ({trouble})"
        if self.address.path:
            return f"no agent server listens at {self.address} any more"
        return (
            f"no agent server answers at {self.address}; start one there with: "
            f"paragent agent-server --host {self.address.host} --port {self.address.port} ({trouble})"
        )


_FAREWELL = 0.15
"""Seconds that a link may take to send what is on its way when the program ends, half of the 0.3 s that an exit may
take."""

_links: dict[tuple[Any, ...], Link] = {}
"""The link that new agents of each server use."""
_all: weakref.WeakSet[Link] = weakref.WeakSet()
"""Every link that somebody still uses, also those that another one took the place of."""
_lock = threading.Lock()
"""Protects both."""


def link_to(address: Address, tls: TlsConf | None) -> Link:
    """Return the link to the server at `address`; a fresh one if there is none, or the last one is lost or may soon be."""
    key = (tuple(address), tls)
    with _lock:
        link = _links.get(key)
        if link is None or link.lost is not None or link.broken:
            link = _links[key] = Link(Elsewhere(address), load_token(), tls)
            _all.add(link)
    return link


def data_link(address: Address, tls: TlsConf | None) -> Link:
    """Return a fresh link over which nothing that the server says is unpickled; whoever asks for it closes it."""
    link = Link(Elsewhere(address), load_token(), tls, data_only=True)
    with _lock:
        _all.add(link)
    return link


def adopt(link: Link) -> None:
    """Have a link that was made elsewhere closed with the others, and found by its address."""
    with _lock:
        _links[(tuple(link.place.address), None)] = link
        _all.add(link)


def close_links() -> None:
    """Say goodbye to every server. The end of the program does this."""
    with _lock:
        links = list(_all)
        _links.clear()
        _all.clear()
    if links:
        with contextlib.suppress(TimeoutError):
            run(_close(links), 2 * _FAREWELL)


async def _close(links: list[Link]) -> None:
    await asyncio.gather(*(link.close(_FAREWELL) for link in links), return_exceptions=True)


def _lose_all(name: str, error: BaseException) -> None:
    """Fail everything that waits for a server: the thread that would bring the answers is gone."""
    with _lock:
        links = list(_all)
        _links.clear()
        _all.clear()
    for link in links:
        link.ledger.lose(ServerLost(f"the connection broke: the thread {name!r} ended with {type(error).__name__}"))


def _forget() -> None:
    global _lock
    _links.clear()
    _all.clear()
    _lock = threading.Lock()


on_failure(_lose_all)
atexit.register(close_links)
os.register_at_fork(after_in_child=_forget)
