"""Asking an agent: wrapping the input, telling sync from async, reading the answer out of the reply."""

from __future__ import annotations

from collections.abc import Awaitable
from types import BuiltinFunctionType, FunctionType
from typing import Any

__all__ = ["Reply", "answer_of", "ask", "name_of", "replies_async", "require_agent"]


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_BUILTIN = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set})
"""Replies that are answers as they are. A worker whose agents are functions need not load what messages are."""


def require_agent(agent: Any, where: str) -> None:
    """Refuse what cannot reply.

    Raises:
        UsageError: `agent` is neither an agent nor a function.
    """
    from paragent.errors import UsageError

    if isinstance(agent, type):
        raise UsageError(f"{where}: agent is the class {agent.__name__}; pass an instance, {agent.__name__}(...)")
    if not callable(agent):
        raise UsageError(f"{where}: agent must be an AgentBase or a function of one argument, not {agent!r}")


def replies_async(agent: Any) -> bool:
    """Return whether the agent's reply can be awaited, so that many of them can share one thread.

    That is so for a coroutine, and for the lazy result of an agent that lives elsewhere.
    """
    if hasattr(type(agent), "__paragent_agent__"):
        return True
    import inspect

    from paragent.agents.base import AgentBase

    method = agent.reply if isinstance(agent, AgentBase) else agent
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004


def name_of(agent: Any) -> str:
    """Return what to call an agent: its name, or the name of the function."""
    return str(getattr(agent, "name", None) or getattr(agent, "__name__", None) or type(agent).__name__)


def ask(agent: Any, given: Any) -> Any:
    """Hand `given` to the agent and return its reply, or an awaitable of it.

    An `AgentBase` gets a `Msg`; a plain function gets what was given.
    """
    if isinstance(agent, _FUNCTIONS):
        return agent(given)
    from paragent.agents.base import AgentBase

    if isinstance(agent, AgentBase):
        from paragent.messages import Msg

        message = given if given is None or isinstance(given, Msg) else Msg(name="user", role="user", content=given)
        return agent.reply(message)
    return agent(given)


def answer_of(reply: Any) -> Any:
    """Return what a reply says: the content of a `Msg`, the policy_info of an `ActionModel`, else the reply itself."""
    if type(reply) in _BUILTIN:
        return reply
    from paragent.messages import ActionModel, Msg

    if isinstance(reply, Msg):
        return reply.content
    if isinstance(reply, ActionModel):
        return reply.policy_info
    return reply


class Reply:
    """The call that an attempt makes on the far side: `Reply(agent)(input)` is the answer, or an awaitable of it."""

    __slots__ = ("agent",)

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    @property
    def is_stateless(self) -> bool:
        """Whether it makes no difference if one of these makes many calls: a function is the same object every time."""
        return isinstance(self.agent, _FUNCTIONS)

    def __call__(self, given: Any) -> Any:
        reply = ask(self.agent, given)
        return _answer_later(reply) if isinstance(reply, Awaitable) else answer_of(reply)


async def _answer_later(reply: Any) -> Any:
    return answer_of(await reply)
