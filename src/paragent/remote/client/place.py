"""Where a server is, and how one learns that it is there or gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paragent.rpc.address import Address

__all__ = ["Elsewhere", "Place"]


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
