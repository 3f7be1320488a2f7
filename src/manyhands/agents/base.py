"""The base class of agents."""

from __future__ import annotations

from typing import Any

from manyhands._ids import new_id

__all__ = ["AgentBase"]


class AgentBase:
    """Something with a name that replies to messages.

    A subclass defines `reply`, as a plain or as an `async` method. It receives a `Msg` (or None) and returns a `Msg`, an
    `ActionModel` or any other object.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name if name is not None else new_id(type(self).__name__)

    def reply(self, x: Any = None) -> Any:  # noqa: ARG002 - the name that subclasses and callers use
        """Answer a message; every subclass says how."""
        raise TypeError(
            f"{type(self).__name__} has no `reply` method: define `def reply(self, x)` or `async def reply(self, x)`"
        )

    def __call__(self, x: Any = None) -> Any:
        return self.reply(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={getattr(self, 'name', None)!r})"
