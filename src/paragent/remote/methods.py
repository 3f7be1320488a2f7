"""Public interface of an agent class: its methods and their kinds, and its attributes."""

from __future__ import annotations

import dis
import enum
import functools
import inspect
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, TypeVar

__all__ = ["MOVES", "Kind", "Method", "attributes_of", "concurrent", "is_concurrent", "is_of_proxy", "methods_of"]


F = TypeVar("F")

_MARK = "__paragent_concurrent__"


def concurrent(method: F) -> F:
    """Let calls of this method run at the same time as other calls of the same agent.

    Without it an agent executes one call at a time; calls of one caller keep their order.
    """
    setattr(method, _MARK, True)
    return method


def is_concurrent(method: Any) -> bool:
    """Return whether a method is marked with `concurrent`."""
    return getattr(method, _MARK, False) is True


def is_of_proxy(method: Any) -> bool:
    """Return whether a method is one that proxies implement themselves (`agents.base.of_proxy`)."""
    return getattr(method, "__paragent_of_proxy__", False) is True


MOVES = "to_dist"
"""Reserved name: clients cannot call it on a server or pass it to a constructor there. As a method it would send the whole state
of an agent to any address; as an argument of a constructor it would create a proxy inside the server."""


class Kind(enum.IntEnum):
    """How a method is executed."""

    SYNC = 0
    """In a thread, because it may block."""
    ASYNC = 1
    """As a task on the event loop."""
    PROMPT = 2
    """Async, but its code never awaits: one step on the event loop, without a task."""
    GENERATOR = 3
    ASYNC_GENERATOR = 4


@dataclass(frozen=True, slots=True)
class Method:
    """One public method."""

    name: str
    kind: Kind
    concurrent: bool
    on_loop: bool
    """Whether it is executed on the event loop."""
    prompt: bool
    """Whether it is `Kind.PROMPT`. Every call reads this, and comparing with a member of an enum takes a third of a microsecond
    (Python 3.11) of the ten that a call takes."""
    streams: bool
    """Whether it is a generator or an async generator."""


@functools.cache
def methods_of(cls: type) -> dict[str, Method]:
    """Return the methods of a class that clients can call, by name: public methods and `__call__`.

    Not among them are `to_dist`, and methods that proxies implement themselves unless the class overrides them.
    """
    methods = {}
    for name in dir(cls):
        if (name.startswith("_") and name != "__call__") or name == MOVES:
            continue
        function = inspect.getattr_static(cls, name)
        function = getattr(function, "__func__", function)
        if isinstance(function, type) or not callable(function) or is_of_proxy(function):
            continue
        kind = _kind(function)
        methods[name] = Method(
            name,
            kind,
            is_concurrent(function),
            on_loop=kind in (Kind.ASYNC, Kind.PROMPT, Kind.ASYNC_GENERATOR),
            prompt=kind is Kind.PROMPT,
            streams=kind in (Kind.GENERATOR, Kind.ASYNC_GENERATOR),
        )
    return methods


def _kind(function: Any) -> Kind:
    inner = inspect.unwrap(function)
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(inner):
        return Kind.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(inner):
        return Kind.GENERATOR
    if inspect.iscoroutinefunction(function):
        return Kind.ASYNC if _awaits(function) else Kind.PROMPT
    return Kind.SYNC


def _awaits(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return True
    return any(step.opname in ("SEND", "GET_AWAITABLE", "YIELD_VALUE") for step in dis.get_instructions(code))


@functools.cache
def attributes_of(cls: type) -> frozenset[str]:
    """Return the public names that agents of a class may have as attributes.

    These are the attributes that the code of the class sets on any object, its annotations, its properties and its other public
    class attributes. Any other name is considered a mistake.
    """
    names: set[str] = set()
    for owner in cls.__mro__[:-1]:
        names |= set(getattr(owner, "__annotations__", {}))
        names |= {slot for slot in getattr(owner, "__slots__", ()) if isinstance(slot, str)}
        for name, member in vars(owner).items():
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                names |= _stored(inspect.unwrap(function))
            else:
                names.add(name)
    return frozenset(name for name in names if not name.startswith("_") and name != MOVES)


def _stored(function: Any) -> set[str]:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return set()
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
