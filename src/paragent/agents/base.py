"""`AgentBase`, the base class of agents, and how an agent is called: input wrapping, sync and async, answers in replies."""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Awaitable
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from paragent._internal.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paragent.agents.proxy import RpcAgent
    from paragent.errors import UsageError
    from paragent.remote import DistConf
    from paragent.remote.link import Link
    from paragent.remote.result import Result
    from paragent.transport import TlsConf

__all__ = ["AgentBase", "Reply", "answer_of", "ask", "name_of", "replies_async", "require_agent", "suggests_arguments"]

F = TypeVar("F")


class _AgentMeta(ABCMeta):
    """Adds the argument `to_dist` to the constructor of every agent class; the class itself never sees it."""

    if not TYPE_CHECKING:  # type checkers read the constructors of agent classes instead

        def __call__(cls, *args: Any, to_dist: Any = None, **kwargs: Any) -> Any:
            if to_dist is None or to_dist is False:
                return super().__call__(*args, **kwargs)
            return _constructor(to_dist is True)(cls, args, kwargs, to_dist)

    def construct_here(cls, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Construct the agent in this process. Servers use it to construct agents for their clients."""
        return super().__call__(*args, **kwargs)

    def proxy_of(cls, link: Link, agent: tuple[str, int], *, known: bool) -> RpcAgent:
        """Return a proxy of an agent on another server, by the session and the number that it has there.

        It is an agent of this class if its class is `known`; otherwise the proxy calls any public method.
        """
        from paragent.agents.proxy import proxy_of

        return proxy_of(cls if known else AgentBase, link, agent)

    def __instancecheck__(cls, instance: Any) -> bool:
        """A proxy counts as an instance of the class of its remote agent."""
        if super().__instancecheck__(instance):
            return True
        agent_class = getattr(type(instance), "__paragent_agent__", None)
        return agent_class is not None and cls in agent_class.__mro__


@functools.cache
def _constructor(in_child: bool) -> Callable[..., RpcAgent]:
    """Return `construct`, imported once: an import statement for each of a million agents takes seconds.

    With `in_child`, the first call also starts the fork server, which loads its modules while this process loads `construct`.
    """
    if in_child:
        _start_fork_server()
    from paragent.agents.proxy import construct

    return construct


def _start_fork_server() -> None:
    """Start the process that forks child servers, so that it starts while this process loads the other modules."""
    from paragent.remote.children.forkserver import fork_server

    fork_server()


def suggests_arguments(function: F) -> F:
    """Have a function with keyword arguments suggest a name when a caller misspells one."""
    original: Any = function
    code = original.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                from paragent._internal.text import suggestion

                names = f"The arguments are: {', '.join(known)}"
                hint = suggestion(name, known) or ";"
                raise TypeError(f"{original.__name__}() has no argument {name!r}{hint} {names}")
        return original(*args, **kwargs)

    return call  # type: ignore[return-value]


def of_proxy(method: F) -> F:
    """Mark a method of `AgentBase` that proxies implement themselves: it is not sent to the agent (`remote.methods`)."""
    method.__paragent_of_proxy__ = True  # type: ignore[attr-defined]
    return method


class AgentBase(metaclass=_AgentMeta):
    """An agent: it has a name and replies to messages.

    A subclass defines `reply`, as a sync or an `async` method. It receives a `Msg` (or None) and returns a `Msg`, an
    `ActionModel` or any other object.

    `Cls(..., to_dist=True)` constructs the agent in another process and returns a proxy; the constructor runs only there.
    `to_dist` may also be a `DistConf` or a mapping of its settings. It is never passed to the constructor; a constructor may
    declare it for type checkers.
    """

    name: str
    """The name of the agent: the one given, or the class and a random number."""

    def __init__(
        self,
        name: str | None = None,
        *,
        to_dist: bool | Mapping[str, Any] | DistConf | None = None,  # noqa: ARG002 - taken by the metaclass
    ) -> None:
        self.name = name if name is not None else new_id(type(self).__name__)

    def reply(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - type checkers accept every signature in a subclass
        """Reply to a message. Subclasses override this method, as `def reply(self, x: Msg) -> Msg` for example."""
        raise TypeError(
            f"{type(self).__name__} has no `reply` method: define `def reply(self, x)` or `async def reply(self, x)`"
        )

    def __call__(self, x: Any = None) -> Any:
        return self.reply(x)

    @suggests_arguments
    def to_dist(
        self,
        host: str | None = None,
        port: int | str | None = None,
        *,
        own_process: bool = False,
        grace: float | None = 2.0,
        timeout: float | None = None,
        tls: TlsConf | None = None,
        reconnect_timeout: float = 1.0,
    ) -> Self:
        """Copy this agent, in its current state, to another process and return the proxy of the copy.

        Args:
            host: with `port`, the address of an agent server; without both, a child process of this program is used.
            port: see `host`.
            own_process: use a child process for this agent alone.
            grace: with `own_process`, the seconds in which a call that timed out or was cancelled must end; then the process is
                killed. None: no limit.
            timeout: the time limit of each call in seconds.
            tls: how to connect to a server that uses TLS.
            reconnect_timeout: the seconds to reconnect to a server that does not answer, before its agents count as lost.

        Raises:
            ConfigError: the settings contradict each other.
            Unserialisable: a part of the agent's state cannot be sent; the error names the part.
        """
        if host is None and port is None:
            _start_fork_server()
        from paragent.agents.proxy import move
        from paragent.remote import DistConf

        conf = DistConf(
            host=host,
            port=port,
            own_process=own_process,
            grace=grace,
            timeout=timeout,
            tls=tls,
            reconnect_timeout=reconnect_timeout,
        )
        return cast("Self", move(self, conf))  # the proxy has the methods of this class

    @of_proxy
    @suggests_arguments
    def options(self, *, timeout: float | None) -> Self:  # noqa: ARG002 - `RpcAgent` uses it
        """Return a proxy of the same remote agent whose calls have another deadline: `agent.options(timeout=3).reply(x)`.

        Args:
            timeout: the time limit of each call in seconds; None: no limit.

        Raises:
            ConfigError: the timeout is neither a positive number of seconds nor None.
            UsageError: the agent is in this process, where a call cannot be given a deadline.
        """
        raise self._not_remote("options")

    @of_proxy
    def stop(self) -> Result[bool]:
        """Free a remote agent now: its waiting and running calls fail with `AgentStopped`.

        Returns a result that arrives when the agent is freed: whether it existed.

        Raises:
            UsageError: the agent is in this process.
        """
        raise self._not_remote("stop")

    def _not_remote(self, method: str) -> UsageError:
        from paragent.errors import UsageError

        return UsageError(
            f"{method}() is for remote agents, and {self!r} is in this process; create it with "
            f"{type(self).__name__}(..., to_dist=True)"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={getattr(self, 'name', None)!r})"


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_BUILTIN = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set})
"""Types of replies that are answers themselves. A worker whose agents are functions then does not load messages."""


def require_agent(agent: Any, where: str) -> None:
    """Check that an object can be called as an agent.

    Raises:
        UsageError: it is neither an agent nor a function.
    """
    from paragent.errors import UsageError

    if isinstance(agent, type):
        raise UsageError(f"{where}: agent is the class {agent.__name__}; pass an instance, {agent.__name__}(...)")
    if not callable(agent):
        called = "; pass the async function itself and do not call it" if isinstance(agent, Awaitable) else ""
        raise UsageError(f"{where}: agent must be an AgentBase or a function of one argument, not {agent!r}{called}")


def replies_async(agent: Any) -> bool:
    """Return whether the agent's reply is awaitable, so that many calls can share one thread.

    It is if the agent returns a coroutine, or if it is remote and returns a lazy result.
    """
    if hasattr(type(agent), "__paragent_agent__"):
        return True
    import inspect

    method = agent.reply if isinstance(agent, AgentBase) else agent
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004


def name_of(agent: Any) -> str:
    """Return the name of an agent or function."""
    return str(getattr(agent, "name", None) or getattr(agent, "__name__", None) or type(agent).__name__)


def ask(agent: Any, given: Any) -> Any:
    """Call the agent with `given` and return its reply, or an awaitable of it.

    An `AgentBase` gets a `Msg`; a function gets `given` unchanged.
    """
    if isinstance(agent, _FUNCTIONS):
        return agent(given)

    if isinstance(agent, AgentBase):
        from paragent.messages import Msg

        message = given if given is None or isinstance(given, Msg) else Msg(name="user", role="user", content=given)
        return agent.reply(message)
    return agent(given)


def answer_of(reply: Any) -> Any:
    """Return the answer in a reply: the content of a `Msg`, the `policy_info` of an `ActionModel`, else the reply itself."""
    if type(reply) in _BUILTIN:
        return reply
    from paragent.messages import ActionModel, Msg

    if isinstance(reply, Msg):
        return reply.content
    if isinstance(reply, ActionModel):
        return reply.policy_info
    return reply


class Reply:
    """The target of a call in a worker: `Reply(agent)(input)` returns the answer, or an awaitable of it."""

    __slots__ = ("agent",)

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    @property
    def is_stateless(self) -> bool:
        """Whether one object can make many calls: a function has no state that a call could change."""
        return isinstance(self.agent, _FUNCTIONS)

    def __call__(self, given: Any) -> Any:
        reply = ask(self.agent, given)
        if type(reply) in _BUILTIN:
            return reply  # the most frequent case; testing for `Awaitable` is slow
        return _answer_later(reply) if isinstance(reply, Awaitable) else answer_of(reply)


async def _answer_later(reply: Any) -> Any:
    return answer_of(await reply)
