"""Which other servers the agents of a restricted server may use: results of those servers are unpickled.

A restricted server reads data only. An agent on it that makes another agent elsewhere, at an address that it got from a client,
would unpickle whatever that address answers. So the code of such agents connects only to servers that the owner has named.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from paragent.errors import AccessDenied, ConfigError
from paragent.transport.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_trusted", "limit_process", "limit_thread", "parse_trusted", "trusted_here", "unlimit_process"]

_thread = threading.local()
"""`trusted`: the servers that the code of this thread may use; threads without it are not limited by themselves."""
_process: list[frozenset[Address]] = []
"""The same for all threads of this process, an entry for each restricted server that is all that the process does."""


def parse_trusted(servers: Iterable[str]) -> frozenset[Address]:
    """Return the addresses of texts such as `10.0.0.5:12345`.

    Raises:
        ConfigError: one of them is not a host and a port.
    """
    if isinstance(servers, str):
        raise ConfigError(f"trusted_servers must be a list of 'host:port' texts, not the text {servers!r}")
    found = set()
    for server in servers:
        host, colon, port = server.rpartition(":") if isinstance(server, str) else ("", "", "")
        if not colon:
            raise ConfigError(f"trusted_servers must be texts such as '10.0.0.5:12345', not {server!r}")
        found.add(Address.of(host.removeprefix("[").removesuffix("]"), port))
    return frozenset(found)


def limit_thread(trusted: frozenset[Address] | None) -> None:
    """Have the code of this thread, which runs agents of a restricted server, use these servers only; None: any server."""
    _thread.trusted = trusted


def limit_process(trusted: frozenset[Address]) -> None:
    """Have all code of this process use these servers only, until `unlimit_process` is called with the same."""
    _process.append(trusted)


def unlimit_process(trusted: frozenset[Address]) -> None:
    """Undo one `limit_process`."""
    with contextlib.suppress(ValueError):  # somebody else did at the same time
        _process.remove(trusted)


def trusted_here() -> frozenset[Address] | None:
    """Return the servers that the code that runs now may use; None: any server."""
    limits = list(_process)
    own: frozenset[Address] | None = getattr(_thread, "trusted", None)
    if own is not None:
        limits.append(own)
    return frozenset.intersection(*limits) if limits else None


def check_trusted(address: Address) -> None:
    """Check that the code that runs now may have agents at an address.

    Raises:
        AccessDenied: it belongs to a restricted server, whose owner has not named the address.
    """
    trusted = trusted_here()
    if trusted is not None and address not in trusted:
        raise AccessDenied(
            f"agents of a restricted server use no agents at {address}: their results would be unpickled; if the owner of the "
            f"server trusts that address, add {str(address)!r} to its trusted_servers"
        )
