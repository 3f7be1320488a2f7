"""Calling an agent: wraps the input, distinguishes sync from async, and extracts the answer from the reply."""

from __future__ import annotations

from collections.abc import Awaitable
from types import BuiltinFunctionType, FunctionType
from typing import Any

__all__ = ["Reply", "answer_of", "ask", "name_of", "replies_async", "require_agent"]


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
        raise UsageError(f"{where}: agent must be an AgentBase or a function of one argument, not {agent!r}")


def replies_async(agent: Any) -> bool:
    """Return whether the agent's reply is awaitable, so that many calls can share one thread.

    It is if the agent returns a coroutine, or if it is remote and returns a lazy result.
    """
    if hasattr(type(agent), "__paragent_agent__"):
        return True
    import inspect

    from paragent.agents.base import AgentBase

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
    from paragent.agents.base import AgentBase

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
