"""Proxy of a remote agent."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Self, cast

from paragent._internal.validation import seconds
from paragent.agents.base import AgentBase, name_of, suggests_arguments
from paragent.errors import AccessDenied, ConfigError, Unserialisable
from paragent.remote.arguments import note_sent
from paragent.remote.methods import Kind, Method, attributes_of, methods_of
from paragent.remote.placement import DistConf, link_for
from paragent.remote.protocol import MAX_NAME, DropAgent
from paragent.serialization.packing import unserialisable

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.children.pool import ChildServer
    from paragent.remote.link import Link
    from paragent.remote.result import Result

__all__ = ["RpcAgent", "construct", "link_of", "move", "proxy_of"]

_OWN = frozenset({"stop", "options", "to_dist"})
"""Methods of the proxy itself, unless the agent's class defines them."""


class RpcAgent(AgentBase):
    """Proxy of an agent on a server: calls of its public methods return a lazy result.

    Reading a public attribute waits for its value. A name that the agent's class does not have raises `AttributeError` at once.
    The proxy that `to_dist` returned owns the agent: when it is dropped, the agent is freed after its pending calls. A proxy can
    be passed to other agents and pickled. The copy works as long as the original lives, and keeps the agent alive after its
    first use.
    """

    __slots__ = ("__paragent_link__", "_agent", "_child", "_copies", "_name", "_original", "_owns", "_timeout")
    __paragent_agent__: type = AgentBase
    __paragent_link__: Link
    _original: RpcAgent | None

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConfigError("create a proxy with to_dist: MyAgent(..., to_dist=True), or agent.to_dist()")

    def stop(self) -> Result[bool]:
        """Free the agent now: its waiting and running calls fail with `AgentStopped`. The result arrives when it is freed."""
        if self._original is not None:
            return self._original.stop()
        result: Result[bool] = self.__paragent_link__.stop(self._agent)
        self._owns = False
        if self._child is not None:
            self.__paragent_link__.retire(self._child.end)
        return result

    @suggests_arguments
    def options(self, *, timeout: float | None) -> Self:
        """Return a proxy of the same agent whose calls have another deadline: `agent.options(timeout=3).reply(x)`.

        Raises:
            ConfigError: the timeout is neither a positive number of seconds nor None.
        """
        if timeout is not None:
            seconds(timeout, "timeout", none=True)
        cls = type(self).__paragent_agent__
        return cast("Self", _proxy(cls, self.__paragent_link__, self._agent, timeout, self._name, original=self))

    def to_dist(self, *_: Any, **__: Any) -> Self:
        """Raise `ConfigError`: the agent is already on a server."""
        raise ConfigError("this agent is already on a server")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """For type checkers: the attributes that `_proxy_class` adds. A real `__getattr__` would slow down every access."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RpcAgent.__slots__:
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(f"the agent is on a server, so {name!r} cannot be set here; add a method that sets it")

    def __dir__(self) -> list[str]:
        cls = type(self).__paragent_agent__
        return sorted({*methods_of(cls), *attributes_of(cls), *_OWN})

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}"
        return f"<RpcAgent {type(self).__paragent_agent__.__name__}{name} at {self.__paragent_link__.address}>"

    def __reduce__(self) -> tuple[Any, ...]:
        note_sent(self)
        agent = self._agent if type(self._agent) is tuple else (self.__paragent_link__.session, self._agent)
        return _revive, (
            type(self).__paragent_agent__,
            tuple(self.__paragent_link__.address),
            self.__paragent_link__.tls,
            self.__paragent_link__.reconnect_timeout,
            agent,
            self._timeout,
            self._name,
        )

    def __paragent_reference__(self) -> tuple[Any, ...]:
        """Return the proxy as data for a restricted server (`remote.data.ProxyReference`).

        Raises:
            AccessDenied: the agent is in a child process.
        """
        link, cls = self.__paragent_link__, type(self).__paragent_agent__
        if link.address.path:
            raise AccessDenied(
                f"the server accepts no code, and {self!r} is in a child process of another program, which the server may not "
                "call; create the agent on an agent server"
            )
        note_sent(self)
        session, number = self._agent if type(self._agent) is tuple else (link.session, self._agent)
        return link.address.host, link.address.port, session, number, link.tls is not None, cls.__qualname__

    def __del__(self) -> None:
        try:
            if self._copies is not None:
                self._copies.discard(id(self))
            if self._owns and not self._copies:
                self.__paragent_link__.post(DropAgent(self._agent))
                if self._child is not None:
                    self.__paragent_link__.retire(self._child.end)
        except AttributeError:
            return  # the proxy was not completely constructed


class _ProxyWithoutClass(RpcAgent):
    """Proxy of an agent whose class this process does not have: calls any public name as a method that is no generator."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or len(name) > MAX_NAME:
            raise AttributeError(f"{name[:MAX_NAME]!r} is not a public method")
        return functools.partial(self._call, name)

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.__paragent_link__.call(self._agent, name, args, kwargs, self._timeout, f"the agent's {name}")


def link_of(agent: RpcAgent) -> Link:
    """Return the link to the server on which the agent of a proxy lives."""
    return agent.__paragent_link__


def construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], where: Any) -> RpcAgent:
    """Create an agent of `cls` on the server that `where` names; return its proxy without waiting.

    Raises:
        ConfigError: `where` is not a valid `to_dist` setting.
        Unserialisable: an argument cannot be pickled.
    """
    conf = DistConf.of(where)
    link, child = link_for(conf)
    name = args[0] if args and _takes_name_first(cls) else kwargs.get("name")
    number = link.create_agent(cls, "init", args, kwargs)
    return _proxy(cls, link, number, conf.timeout, name if type(name) is str else None, child=child)


@functools.cache
def _takes_name_first(cls: type) -> bool:
    """Return whether the first argument of the constructor is the name of the agent."""
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]
    return code is not None and code.co_varnames[1 : code.co_argcount][:1] == ("name",)


def move(agent: AgentBase, conf: DistConf) -> RpcAgent:
    """Copy an agent to the server that `conf` names; return the proxy of the copy.

    Raises:
        Unserialisable: a part of its state cannot be pickled; the error names the part.
    """
    cls = type(agent)
    link, child = link_for(conf)
    reduced = agent.__reduce_ex__(4)
    plain = not isinstance(reduced, str) and len(reduced[1]) == 1 and reduced[1][0] is cls and not any(reduced[3:])
    how, state = ("state", reduced[2]) if plain else ("object", agent)
    try:
        number = link.create_agent(cls, how, (state,), {})
    except Unserialisable as error:
        what = f"the {cls.__name__} {name_of(agent)!r}"
        if cls.__getstate__ is not object.__getstate__:
            raise Unserialisable(what, error.path, error.reason) from error.__cause__
        raise unserialisable(agent, what, "agent", error.__cause__ or error) from error.__cause__
    return _proxy(cls, link, number, conf.timeout, name_of(agent), child=child)


def proxy_of(cls: type, link: Link, agent: tuple[str, int]) -> RpcAgent:
    """Return a proxy of an agent on another server; `AgentBase` for an agent whose class this process does not have."""
    return _proxy(cls, link, agent, None, None)


def _revive(
    cls: type,
    address: tuple[str, int, str],
    tls: Any,
    reconnect_timeout: float,
    agent: tuple[str, int],
    timeout: float | None,
    name: str | None = None,
) -> RpcAgent:
    """Return an unpickled proxy."""
    from paragent.remote.link import link_to
    from paragent.transport.address import Address

    return _proxy(cls, link_to(Address(*address), tls, reconnect_timeout), agent, timeout, name)


def _proxy(
    cls: type,
    link: Link,
    agent: Any,
    timeout: float | None,
    name: str | None,
    *,
    child: ChildServer | None = None,
    original: RpcAgent | None = None,
) -> RpcAgent:
    """Return a proxy of an agent.

    Args:
        cls: the agent's class.
        link: the link to its server.
        agent: its number, or session and number.
        timeout: the deadline of each call in seconds.
        name: its name, if this process knows it.
        child: the process that the agent has for itself.
        original: the proxy that owns the agent, which the new proxy keeps alive; None: the new proxy owns it.
    """
    proxy: RpcAgent = object.__new__(_proxy_class(cls))
    put = object.__setattr__
    put(proxy, "__paragent_link__", link)
    put(proxy, "_agent", agent)
    put(proxy, "_timeout", timeout)
    put(proxy, "_name", name)
    put(proxy, "_child", child)
    put(proxy, "_original", original)
    copies = link.copies_of(agent) if original is None and type(agent) is tuple else None
    if copies is not None:
        copies.add(id(proxy))
    put(proxy, "_copies", copies)
    put(proxy, "_owns", original is None)
    return proxy


@functools.cache
def _proxy_class(cls: type) -> type[RpcAgent]:
    """Return the proxy class of an agent class: a function for each public method and a property for each attribute."""
    members: dict[str, Any] = {
        "__slots__": (),
        "__paragent_agent__": cls,
        "__doc__": cls.__doc__,
        "__module__": __name__,
    }
    for method in methods_of(cls).values():
        members[method.name] = _forward(cls, method)
    for name in attributes_of(cls):
        if name not in members and not hasattr(RpcAgent, name):
            members[name] = _reader(name)
    meta: Any = type(RpcAgent)
    base = _ProxyWithoutClass if cls is AgentBase else RpcAgent
    made: type[RpcAgent] = type.__call__(meta, f"RpcAgent[{cls.__qualname__}]", (base,), members)
    return made


def _reader(name: str) -> property:
    def read(self: RpcAgent) -> Any:
        return self.__paragent_link__.read(self._agent, name).result()

    return property(read)


def _forward(cls: type, method: Method) -> Callable[..., Any]:
    name = method.name
    original = getattr(cls, name)
    label = f"{cls.__name__}.{name}"
    if method.kind in (Kind.GENERATOR, Kind.ASYNC_GENERATOR):

        def forward(self: RpcAgent, *args: Any, **kwargs: Any) -> Any:
            return self.__paragent_link__.stream(self._agent, name, args, kwargs, self._timeout, label)
    else:

        def forward(self: RpcAgent, *args: Any, **kwargs: Any) -> Any:
            return self.__paragent_link__.call(self._agent, name, args, kwargs, self._timeout, label)

    forward.__name__ = name
    forward.__qualname__ = getattr(original, "__qualname__", name)
    forward.__doc__ = getattr(original, "__doc__", None)
    forward.__annotations__ = dict(getattr(original, "__annotations__", {}))
    try:
        forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return forward  # implemented in C without a signature
    return forward
