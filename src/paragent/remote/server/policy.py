"""Policy: which classes and arguments a server accepts from clients, and the checks of their messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import AccessDenied, LimitExceeded, ProtocolError
from paragent.messages import Msg
from paragent.remote.link import link_to
from paragent.remote.methods import MOVES, attributes_of, is_of_proxy
from paragent.remote.placement import RECONNECT_TIMEOUT, require_trusted
from paragent.remote.protocol import (
    MAX_ARGUMENTS,
    MAX_NAME,
    SESSION,
    AddCode,
    CallMethod,
    CancelCall,
    CreateAgent,
    DefineClass,
    DropAgent,
    FetchResult,
    Goodbye,
    GrantCredit,
    PinResult,
    PushValue,
    QueryServer,
    ReadAttribute,
    ReleaseResult,
    StopAgent,
    fields_of,
)
from paragent.remote.values import PLAIN, decode
from paragent.transport.address import Address, TlsConf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paragent.remote.data import ProxyReference

__all__ = ["OwnResult", "Policy", "check_shape"]


_CONTAINERS = (dict, list, tuple, set)


class OwnResult:
    """A result of this server that is used as an argument here. A client can refer to one but cannot create one."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Policy:
    """Decides of which classes clients may create agents, and which arguments they may send.

    Args:
        classes: the server's own agent classes; a client's class of the same name is replaced by the server's.
        accept_code: whether clients may also send other classes and objects.
        nesting: limit of nested containers.
        peer_tls: how to connect to other servers that use TLS, to fetch results that clients pass on.
        trusted: without `accept_code`: the other servers on which agents of this server may create and call agents.
        own_address: where this server listens, if it is not a child process of its only client. Without `accept_code`, its agents
            may call each other.
        accept_state: without `accept_code`: whether clients may move agents here with any state (True), with public attributes
            only (None), or not at all (False).
        reconnect_timeout: without `accept_code`: seconds to reconnect to the servers of proxies that clients pass on.
    """

    def __init__(
        self,
        classes: Sequence[type],
        *,
        accept_code: bool,
        nesting: int,
        peer_tls: TlsConf | None = None,
        trusted: frozenset[Address] = frozenset(),
        own_address: Callable[[], Address | None] = lambda: None,
        accept_state: bool | None = None,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        self.accept_code, self.peer_tls = accept_code, peer_tls
        self.trusted = None if accept_code else trusted
        """Other servers that agents of this server may use; None: any."""
        self._own_address = own_address
        self._accept_state = accept_state
        self._nesting = nesting
        self._reconnect_timeout = reconnect_timeout
        self._by_name = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}
        self._by_qualname = {cls.__qualname__: cls for cls in classes}

    def resolve(self, module: str, qualname: str, value: Any) -> type:
        """Return the class that a client has defined.

        Raises:
            AccessDenied: it is not a class of the server, and the server accepts no code.
            Exception: loading the client's class failed.
        """
        own = self._by_name.get(f"{module}.{qualname}") or self._by_qualname.get(qualname)
        if own is not None:
            return own
        if not self.accept_code:
            raise AccessDenied(
                f"this server runs only its own agent classes ({', '.join(sorted(self._by_qualname)) or 'none'}), "
                f"not {qualname!r}; add it to custom_agent_classes there (paragent agent-server: --module)"
            )
        cls = self._load(value)
        if not isinstance(cls, type):
            raise AccessDenied(f"{qualname!r} is not a class")
        return cls

    def decode(self, value: Any) -> Any:
        """Return the value of an encoded argument.

        Raises:
            AccessDenied: it contains something that this server does not load.
            LimitExceeded: it is nested too deeply.
            ProtocolError: it is not an encoded argument.
        """
        if type(value) is not tuple:
            if type(value) in PLAIN:
                return value
            if type(value) is OwnResult:
                return decode(value.value)
            raise ProtocolError("an argument is neither a simple value nor encoded")
        if not self.accept_code:
            return self._read(value)
        if value[0] == "m" and type(value[2]) not in PLAIN:
            raise ProtocolError("the content of a message is neither a simple value nor encoded")
        thing = self._load(value)
        if value[0] != "m" and len(value[1]) > 2 * self._nesting:  # a level takes at least two bytes
            _check_nesting(thing, self._nesting)
        return thing

    def _load(self, value: Any) -> Any:
        """Return what a client has sent; if a module is missing, the error says where."""
        try:
            return decode(value)
        except ModuleNotFoundError as error:
            address = self._own_address()
            if address is None:
                raise
            raise ModuleNotFoundError(
                f"{error} on the agent server at {address}, which runs in the folder {Path.cwd()}: start it in the folder of "
                "your program, or with that folder in PYTHONPATH, or write the name of its host instead of localhost in to_dist, "
                "so that your modules are sent; install packages there that are missing",
                name=error.name,
            ) from error

    def keywords(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call.

        Raises:
            AccessDenied: one of them would create an agent in another process if it were passed to a constructor.
            ParagentError: as `decode`.
        """
        if MOVES in given and not self.accept_code:
            raise AccessDenied(
                f"a restricted server takes no argument {MOVES}=: it creates agents in its own process only"
            )
        return {key: self.decode(value) for key, value in given.items()}

    def check_state(self, cls: type, state: Any) -> None:
        """Check that a client may move an agent with this state here, without running its constructor.

        Raises:
            AccessDenied: the client may not.
        """
        if self.accept_code or self._accept_state:
            return
        if self._accept_state is False:
            raise AccessDenied(
                f"this server creates agents only with their constructors: use {cls.__name__}(..., to_dist=...)"
            )
        # Not class attributes, except that an agent may have an attribute `options`, which is also a method of proxies.
        settable = {name for name in attributes_of(cls) if not hasattr(cls, name) or is_of_proxy(getattr(cls, name))}
        if hasattr(cls, "__setstate__") or type(state) is not dict or not all(name in settable for name in state):
            raise AccessDenied(
                f"this server accepts no private attributes and no custom state of a {cls.__name__} that is moved to it: "
                f"use {cls.__name__}(..., to_dist=...), which runs the constructor on the server, or start the server with "
                "accept_state=True (paragent agent-server: --accept-state)"
            )

    def _read(self, value: tuple[Any, ...]) -> Any:
        """Return the value of an argument of a client that may be hostile; nothing is unpickled."""
        if value[:1] == ("m",) and len(value) == 6:
            _, name, content, role, identifier, timestamp = value
            if {type(name), type(role), type(identifier)} != {str} or type(timestamp) not in (float, int):
                raise ProtocolError("a message has fields of the wrong types")
            if type(content) not in PLAIN:
                raise ProtocolError("the content of a message is neither a simple value nor encoded")
            return Msg(name, content, role, {}, identifier, timestamp)
        if value[:1] != ("d",) or len(value) != 2 or type(value[1]) is not bytes:
            raise AccessDenied("this server accepts data but no code, so it reads no pickles")
        from paragent.remote.data import load  # not at the top: servers that accept code do not need it

        return load(value[1], self._nesting, MOVES, proxy=self._proxy)

    def _proxy(self, reference: ProxyReference) -> Any:
        """Return the proxy of an agent on this server or a trusted one. Nothing is connected before it is used.

        Its class is the server's own class of this name. Otherwise the proxy has no class, and calls any public method.

        Raises:
            AccessDenied: the owner of this server has not named the address.
            ProtocolError: the reference is malformed.
        """
        if not _number(reference.number) or not SESSION.fullmatch(reference.session):
            # The other server would end the session of this one, and so all its agents there.
            raise ProtocolError("a proxy of an agent that cannot exist")
        address = Address.of(reference.host, reference.port)
        if address != self._own_address():
            require_trusted(address, self.trusted)
            if self.peer_tls is not None and not reference.tls and not address.is_local:
                raise AccessDenied(
                    f"this server uses TLS, and according to the proxy the agent server at {address} does not, so anyone on the "
                    "network could answer in its place; start that server with TLS"
                )
        tls = (self.peer_tls or TlsConf()) if reference.tls else None
        cls: Any = self._by_qualname.get(reference.kind) or next(iter(self._by_qualname.values()))
        known = reference.kind in self._by_qualname
        link = link_to(address, tls, self._reconnect_timeout)
        return type(cls).proxy_of(cls, link, (reference.session, reference.number), known=known)


def _check_nesting(thing: Any, limit: int) -> None:
    """Raise `LimitExceeded` if containers are nested more than `limit` levels deep; without recursion."""
    if type(thing) is Msg:
        thing = (thing.content, thing.metadata)
    level, depth = [thing], 0
    seen: set[int] = set()
    while level:
        depth += 1
        if depth > limit:
            raise LimitExceeded(f"an argument is nested more than {limit} levels deep")
        deeper: list[Any] = []
        for part in level:
            for value in part.values() if isinstance(part, dict) else part if isinstance(part, _CONTAINERS) else ():
                if isinstance(value, _CONTAINERS) and id(value) not in seen:
                    seen.add(id(value))
                    deeper.append(value)
        level = deeper


_MAX_NUMBER = 1 << 60
"""Less than the modulus of Python's integer hashes, so that different numbers have different hashes."""
_MAX_LISTED = 1 << 16


def check_shape(message: Any) -> None:
    """Check the types of a client message's fields.

    Raises:
        ProtocolError: a field has the wrong type, or clients do not send such messages.
    """
    checks = _SHAPES.get(type(message))
    if checks is None:
        raise ProtocolError(f"clients do not send {type(message).__name__} messages")
    for check, field in zip(checks, fields_of(message), strict=True):
        if not check(field):
            raise ProtocolError(f"a {type(message).__name__} message with a field of the wrong type")


def _number(field: Any) -> bool:
    return type(field) is int and 0 <= field < _MAX_NUMBER


def _name(field: Any) -> bool:
    return type(field) is str and len(field) <= MAX_NAME


def _session(field: Any) -> bool:
    return field is None or _name(field)


def _agent(field: Any) -> bool:
    return _number(field) or (type(field) is tuple and len(field) == 2 and _name(field[0]) and _number(field[1]))


def _arguments(field: Any) -> bool:
    return type(field) is tuple and len(field) <= MAX_ARGUMENTS and () not in field


def _keywords(field: Any) -> bool:
    if field is None:
        return True
    return type(field) is dict and len(field) <= MAX_ARGUMENTS and all(map(_name, field)) and () not in field.values()


def _seconds(field: Any) -> bool:
    return field is None or type(field) is float or _number(field)


def _subject(field: Any) -> bool:
    """Check the argument of a query: nothing, a number, or numbers of calls."""
    if type(field) is list:
        return len(field) <= _MAX_LISTED and all(map(_number, field))
    return field is None or _number(field)


def _flag(field: Any) -> bool:
    return type(field) is bool


def _value(_: Any) -> bool:
    return True


_SHAPES: dict[type, tuple[Callable[[Any], bool], ...]] = {
    AddCode: (_value,),
    CallMethod: (_number, _agent, _name, _arguments, _keywords, _number, _seconds),
    CancelCall: (_number,),
    CreateAgent: (_number, _number, _name, _arguments, _keywords),
    DefineClass: (_number, _name, _name, _value),
    DropAgent: (_agent,),
    FetchResult: (_number, _session, _number),
    Goodbye: (),
    GrantCredit: (_number, _number),
    PinResult: (_number,),
    PushValue: (_number, _flag, _value),
    QueryServer: (_number, _name, _subject),
    ReadAttribute: (_number, _agent, _name),
    ReleaseResult: (_number,),
    StopAgent: (_number, _agent),
}
