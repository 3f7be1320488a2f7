"""Functions as agents: which arguments a function gets, and how it is called."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from typing import TYPE_CHECKING, Any

from paragent.agents.base import AgentBase, answer_of, ask, replies_async
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.gateway import GatewayAddress

__all__ = ["call_agent", "environment_variables", "gateway_arguments", "uses_gateway"]

_ARGUMENTS = ("task", "base_url", "api_key", "anthropic_base_url", "model", "mcp_url")
"""The names of parameters that a function gets by name."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def uses_gateway(agent: Any) -> bool:
    """Return whether a function has a parameter that is passed by name, so that its rollouts need the gateway.

    Raises:
        ConfigError: it does not take the question, or has other parameters that rollouts do not pass.
    """
    names, others = _parameters(agent)
    problem = "" if names else _problem_with_one_argument(agent)
    if len(others) > 1 or any(one.kind not in _POSITIONAL for one in others):
        problem = f"the function has the parameters {', '.join(one.name for one in others)}, which have no default"
    if problem:
        raise ConfigError(
            f"--agent: {problem}. Rollouts pass the question as the first argument, and by name {', '.join(_ARGUMENTS)}"
        )
    return bool(names)


def _problem_with_one_argument(agent: Any) -> str:
    """Return why an agent cannot be called with the question alone; empty if it can, or if it has no signature."""
    if isinstance(agent, AgentBase):
        return ""
    try:
        inspect.signature(agent).bind("")
    except TypeError as error:
        return f"the function cannot be called with the question: {error}"
    except ValueError:  # some built-in functions have no signature
        pass
    return ""


def gateway_arguments(address: GatewayAddress, model: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that a function can get by name."""
    return {
        "task": dict(task),
        "base_url": address.openai_url,
        "api_key": address.key,
        "anthropic_base_url": address.anthropic_url,
        "model": model,
        "mcp_url": address.mcp_url,
    }


async def call_agent(agent: Any, question: str, arguments: Mapping[str, Any] | None) -> str:
    """Return the answer of an agent that is an `AgentBase`, a function or another callable.

    Synchronous ones run in a thread.

    Args:
        agent: the agent.
        question: the question.
        arguments: what it can get by name; None: it only gets the question.
    """
    names, others = ([], []) if arguments is None else _parameters(agent)

    def call() -> Any:
        if arguments is None or not names:
            return ask(agent, question)
        return agent(*([question] if others else []), **{name: arguments[name] for name in names})

    reply = call() if replies_async(agent) else await asyncio.to_thread(call)
    if inspect.isawaitable(reply):
        reply = await reply
    return str(answer_of(reply))


@contextlib.contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process inside the `with` block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _parameters(agent: Any) -> tuple[list[str], list[inspect.Parameter]]:
    """Return the names of an agent's parameters that are passed by name, and its other parameters without default."""
    if isinstance(agent, AgentBase):
        return [], []
    try:
        parameters = inspect.signature(agent).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return [], []
    named = [one for one in parameters if one.name in _ARGUMENTS and one.kind is not inspect.Parameter.POSITIONAL_ONLY]
    names = [one.name for one in named if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [one for one in parameters if one.default is one.empty and one.kind not in variable]
    return names, [one for one in required if one.name not in names]
