"""`AgentBase`: the base class of agents."""

from __future__ import annotations

import functools
from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paragent.agents.proxy import RpcAgent
    from paragent.remote import DistConf
    from paragent.transport import TlsConf

__all__ = ["AgentBase"]


class _AgentMeta(ABCMeta):
    """Adds the argument `to_dist` to the constructor of every agent class; the class itself never sees it."""

    def __call__(cls, *args: Any, to_dist: Any = None, **kwargs: Any) -> Any:
        if to_dist is None or to_dist is False:
            return super().__call__(*args, **kwargs)
        return _constructor(to_dist is True)(cls, args, kwargs, to_dist)

    def construct_here(cls, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Construct the agent in this process. Servers use it to construct agents for their clients."""
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        """A proxy counts as an instance of the class of its remote agent."""
        if super().__instancecheck__(instance):
            return True
        agent_class = getattr(type(instance), "__paragent_agent__", None)
        return agent_class is not None and cls in agent_class.__mro__


@functools.cache
def _constructor(in_child: bool) -> Callable[..., RpcAgent]:
    """Return `construct`; cached, because an import statement for each of a million agents takes seconds."""
    if in_child:
        _start_fork_server()
    from paragent.agents.proxy import construct

    return construct


def _start_fork_server() -> None:
    """Start the process that forks child servers, so that it starts while this process loads the other modules."""
    from paragent.remote.children.forkserver import fork_server

    fork_server()


class AgentBase(metaclass=_AgentMeta):
    """An agent: it has a name and replies to messages.

    A subclass defines `reply`, as a sync or an `async` method. It receives a `Msg` (or None) and returns a `Msg`, an
    `ActionModel` or any other object.

    `Cls(..., to_dist=True)` constructs the agent in another process and returns a proxy; the constructor runs only there.
    `to_dist` may also be a `DistConf` or a mapping of its settings. It is never passed to the constructor; a constructor may
    declare it for type checkers.
    """

    name: str

    def __init__(
        self,
        name: str | None = None,
        *,
        to_dist: bool | Mapping[str, Any] | DistConf | None = None,  # noqa: ARG002 - taken by the metaclass
    ) -> None:
        self.name = name if name is not None else new_id(type(self).__name__)

    def reply(self, x: Any = None) -> Any:  # noqa: ARG002 - the name that subclasses and callers use
        """Reply to a message. Subclasses override this method."""
        raise TypeError(
            f"{type(self).__name__} has no `reply` method: define `def reply(self, x)` or `async def reply(self, x)`"
        )

    def __call__(self, x: Any = None) -> Any:
        return self.reply(x)

    def to_dist(
        self,
        host: str | None = None,
        port: int | str | None = None,
        *,
        own_process: bool = False,
        grace: float | None = 2.0,
        timeout: float | None = None,
        tls: TlsConf | None = None,
    ) -> RpcAgent:
        """Copy this agent, in its current state, to another process and return the proxy of the copy.

        Args:
            host: with `port`, the address of an agent server; without both, a child process of this program is used.
            port: see `host`.
            own_process: use a child process for this agent alone.
            grace: with `own_process`, the seconds in which a call that timed out or was cancelled must end; then the process is
                killed. None: no limit.
            timeout: the time limit of each call in seconds.
            tls: how to connect to a server that uses TLS.

        Raises:
            ConfigError: the settings contradict each other.
            Unserialisable: a part of the agent's state cannot be sent; the error names the part.
        """
        if host is None and port is None:
            _start_fork_server()
        from paragent.agents.proxy import move
        from paragent.remote import DistConf

        conf = DistConf(host=host, port=port, own_process=own_process, grace=grace, timeout=timeout, tls=tls)
        return move(self, conf)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={getattr(self, 'name', None)!r})"
