"""Where a remote agent shall live, and getting it there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paragent._internal.validation import seconds
from paragent.errors import ConfigError
from paragent.remote.trust import check_trusted
from paragent.transport.address import Address

if TYPE_CHECKING:
    from types import ModuleType

    from paragent.remote.children.pool import ChildServer
    from paragent.remote.client.link import Link
    from paragent.transport.tls import TlsConf

__all__ = ["DistConf", "place_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistConf:
    """Where an agent shall live. Without host and port: in a child process of this program.

    Raises:
        ConfigError: host and port are not given together, or something is of the wrong type or out of range.
    """

    host: str | None = None
    port: int | str | None = None
    """Of a server that somebody started: `paragent agent-server`, or an `RpcAgentServerLauncher`."""
    own_process: bool = False
    """A child process for this agent alone; else as many as there are cores are shared by all agents."""
    grace: float | None = 2.0
    """With `own_process`: seconds in which a call that timed out or was cancelled must end, or its process is ended; None lets
    it take any time."""
    timeout: float | None = None
    """Seconds that each call may take, from being sent to its answer; it is cancelled then."""
    tls: TlsConf | None = None
    """How to connect to a server that uses TLS."""

    def __post_init__(self) -> None:
        if (self.host is None) != (self.port is None):
            raise ConfigError("to_dist needs both host= and port=, or neither for a child process")
        if self.host is not None:
            Address.of(self.host, self.port)
            if self.own_process:
                raise ConfigError("own_process=True is for child processes; leave host= and port= out")
        if self.timeout is not None:
            seconds(self.timeout, "timeout", none=True)
        if self.grace is not None:
            seconds(self.grace, "grace", none=True)

    @classmethod
    def of(cls, given: Any) -> DistConf | None:
        """Return what a `to_dist` argument means: True, a mapping or a `DistConf`; None for False and None.

        Raises:
            ConfigError: it is something else, or a setting is unknown.
        """
        if given is None or given is False:
            return None
        if given is True:
            return _CHILD
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            known = [field.name for field in fields(cls)]
            if unknown := [name for name in given if name not in known]:
                raise ConfigError(f"to_dist has no setting {unknown[0]!r}; there are: {', '.join(known)}")
            return cls(**given)
        raise ConfigError(f"to_dist must be True, a mapping or a DistConf, not {given!r}")


_CHILD = DistConf()


def place_of(conf: DistConf) -> tuple[Link, ChildServer | None]:
    """Return the link to the server where an agent shall live, and the child process if it is the agent's own.

    Raises:
        AccessDenied: an agent of a restricted server asks for a server that its owner has not named.
    """
    if conf.host is not None:
        from paragent.remote.client.links import link_to

        address = Address.of(conf.host, conf.port)
        check_trusted(address)
        return link_to(address, conf.tls), None
    children = _children()
    return children.own_child_link(conf.grace) if conf.own_process else (children.child_link(), None)


@functools.cache
def _children() -> ModuleType:
    """Return the module, imported once and not once for each agent."""
    from paragent.remote.children import pool

    return pool
