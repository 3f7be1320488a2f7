"""Placement of remote agents: the setting `to_dist`, and the servers on which code of this process may place agents.

A restricted server reads data only. If one of its agents created another agent at an address that came from a client, it would
unpickle whatever that address answers. So agents of a restricted server may use only servers that its owner has named.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paragent._internal.validation import check_fields, instance_of, optional, reject_unknown, seconds, suggests_fields
from paragent.errors import AccessDenied, ConfigError
from paragent.transport.address import Address, TlsConf

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from paragent.remote.children.pool import ChildServer
    from paragent.remote.link import Link

__all__ = [
    "RECONNECT_TIMEOUT",
    "DistConf",
    "limit_of_thread",
    "limit_process",
    "limit_thread",
    "link_for",
    "parse_trusted",
    "require_trusted",
    "trusted_here",
    "unlimit_process",
]


RECONNECT_TIMEOUT = 1.0
"""Seconds to reconnect to a server, unless the client sets another limit: a loss is then noticed within two seconds."""


@suggests_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class DistConf:
    """Where a remote agent runs. Without host and port: in a child process of this program.

    Raises:
        ConfigError: a field is unknown, only one of host and port is given, or a setting has the wrong type or is out of range.
    """

    host: str | None = None
    """The host of an agent server; None: a child process."""
    port: int | str | None = None
    """Address of a running agent server: `paragent agent-server`, or an `RpcAgentServerLauncher`."""
    own_process: bool = False
    """Run the agent in a child process of its own. By default all agents share as many child processes as there are cores."""
    grace: float | None = 2.0
    """With `own_process`: seconds in which a call must end after it timed out or was cancelled; the process is killed if it does
    not. None: no limit."""
    timeout: float | None = None
    """Deadline of each call in seconds, from sending it to its answer. The call is then cancelled."""
    tls: TlsConf | None = None
    """How to connect to a server that uses TLS."""
    reconnect_timeout: float = RECONNECT_TIMEOUT
    """Seconds for which the client tries to reconnect to a server that does not answer, before its agents count as lost. A longer
    limit lets calls wait for a server that froze, such as a laptop that slept, and reports a dead server later."""

    def __post_init__(self) -> None:
        if (self.host is None) != (self.port is None):
            raise ConfigError("to_dist needs both host= and port=, or neither for a child process")
        if self.host is not None:
            Address.of(self.host, self.port)
            if self.own_process:
                raise ConfigError("own_process=True is for child processes; leave host= and port= out")
        elif self.reconnect_timeout != RECONNECT_TIMEOUT:
            raise ConfigError(
                "reconnect_timeout= is for agent servers (host= and port=); the end of a child process is noticed at once"
            )
        check_fields(
            self,
            {
                "tls": optional(instance_of(TlsConf, "TlsConf(ca='ca.pem')")),
                "timeout": optional(seconds),
                "grace": optional(seconds),
                "reconnect_timeout": seconds,
            },
        )

    @classmethod
    def of(cls, given: Any) -> DistConf:
        """Return the configuration for a `to_dist` argument: True, a mapping or a `DistConf`.

        Raises:
            ConfigError: the argument has another type, or a setting is unknown.
        """
        if given is True:
            return _CHILD
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            reject_unknown("to_dist", "setting", given, [field.name for field in fields(cls)])
            return cls(**given)
        host, colon, port = given.rpartition(":") if isinstance(given, str) else ("", "", "")
        hint = f"; write to_dist={{'host': {host!r}, 'port': {port}}}" if colon and port.isdigit() else ""
        raise ConfigError(f"to_dist must be True, a mapping or a DistConf, not {given!r}{hint}")


_CHILD = DistConf()


def link_for(conf: DistConf) -> tuple[Link, ChildServer | None]:
    """Return the link to the server on which to create an agent, and the child process if the agent has its own.

    Raises:
        AccessDenied: the code belongs to a restricted server whose owner has not named the address.
    """
    if conf.host is not None:
        from paragent.remote.link import link_to

        address = Address.of(conf.host, conf.port)
        require_trusted(address, trusted_here())
        return link_to(address, conf.tls, conf.reconnect_timeout), None
    children = _children()
    return children.own_child_link(conf.grace) if conf.own_process else (children.child_link(), None)


@functools.cache
def _children() -> ModuleType:
    """Return the module, imported once and not once for each agent."""
    from paragent.remote.children import pool

    return pool


# --- trusted servers ----------------------------------------------------------------------------------------------------


class _ThreadLimit(threading.local):
    trusted: frozenset[Address] | None = None
    """The servers that the code of the current thread may use; None: it has no limit of its own."""


_thread = _ThreadLimit()
_process: list[frozenset[Address]] = []
"""The same for all threads: an entry for each restricted server that `wait_until_terminate` serves in this process."""


def parse_trusted(servers: Iterable[str]) -> frozenset[Address]:
    """Return the addresses of strings such as `10.0.0.5:12345`.

    Raises:
        ConfigError: one of them is not a host and a port.
    """
    if isinstance(servers, str):
        raise ConfigError(f"trusted_servers must be a list of 'host:port' strings, not the string {servers!r}")
    found = set()
    for server in servers:
        host, colon, port = server.rpartition(":") if isinstance(server, str) else ("", "", "")
        if not colon:
            raise ConfigError(f"trusted_servers must be strings such as '10.0.0.5:12345', not {server!r}")
        found.add(Address.of(host.strip(), port))
    return frozenset(found)


def limit_thread(trusted: frozenset[Address] | None) -> None:
    """Let the code of this thread, which runs agents of a restricted server, use only these servers; None: any server."""
    _thread.trusted = trusted


def limit_of_thread() -> frozenset[Address] | None:
    """Return the limit that `limit_thread` has set for this thread."""
    return _thread.trusted


def limit_process(trusted: frozenset[Address]) -> None:
    """Let all code of this process use only these servers, until `unlimit_process` is called with the same set."""
    _process.append(trusted)


def unlimit_process(trusted: frozenset[Address]) -> None:
    """Undo one `limit_process`."""
    with contextlib.suppress(ValueError):  # another thread has just done it
        _process.remove(trusted)


def trusted_here() -> frozenset[Address] | None:
    """Return the servers that the current code may use; None: any server."""
    own = _thread.trusted
    if own is None and not _process:
        return None
    limits = [*_process, *(() if own is None else (own,))]
    return frozenset.intersection(*limits) if limits else None


def require_trusted(address: Address, trusted: frozenset[Address] | None) -> None:
    """Check that code may use agents at an address; None: any address.

    Raises:
        AccessDenied: the code belongs to a restricted server whose owner has not named the address.
    """
    if trusted is not None and address not in trusted:
        raise AccessDenied(
            f"agents of a restricted server may not use agents at {address}, because their results would be unpickled; if you "
            f"trust that server, add {str(address)!r} to trusted_servers (paragent agent-server: --trusted-server)"
        )
