"""Adapter for agents written for OSWorld's own runner: rollouts use them unchanged.

Such an agent has a method `predict(instruction, observation)` that returns a response and a list of actions, and usually a
method `reset`. It calls models itself, and it usually blocks.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paragent.agents.chat import AgentResult
from paragent.errors import UsageError
from paragent.execution import doing
from paragent.tasks import TURNS_USED_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paragent.agents.chat import Episode
    from paragent.envs.base import AgentFactory, Environment
    from paragent.models import ModelSettings

__all__ = ["PredictAdapter", "predict_agent_factory"]

_log = logging.getLogger(__name__)
_EMPTY: dict[str, Any] = {"screenshot": None, "accessibility_tree": None, "terminal": None}
"""The keys that every observation has."""
_OPTIONS = ("action_space", "observation_type", "client_password", "screen_width", "screen_height")
"""Options of the environment that constructors of agents may take."""


def predict_agent_factory(agent: Any) -> AgentFactory | None:
    """Return a factory of adapters for a class with `predict` and without `run_episode`; None for anything else.

    Raises:
        UsageError: `agent` is an object with `predict`, not a class.
    """
    if not hasattr(agent, "predict") or hasattr(agent, "run_episode"):
        return None
    if not isinstance(agent, type):
        raise UsageError(f"--agent: name the class of {agent!r:.200}; each rollout needs its own agent")

    def create(environment: Environment, model: ModelSettings, max_turns: int) -> PredictAdapter:
        arguments = _accepted(agent, _constructor_arguments(environment, model, max_turns))
        tool = _action_tool([one.as_openai() for one in environment.tools()])
        return PredictAdapter(agent, arguments, tool, getattr(environment.machine, "host", None))

    return create


def _constructor_arguments(environment: Environment, model: ModelSettings, max_turns: int) -> dict[str, Any]:
    """Return the arguments known for the constructors of agents, by the names that OSWorld's agents use.

    What is not set is absent, so that the agent's own default applies.
    """
    options = environment.options
    arguments = {name: getattr(options, name, None) for name in _OPTIONS}
    width, height = arguments["screen_width"], arguments["screen_height"]
    arguments |= {
        "platform": "ubuntu",
        "model": model.name,
        "max_tokens": model.sampling.max_tokens,
        "temperature": model.sampling.temperature,
        "max_steps": max_turns,
        "max_trajectory_length": getattr(options, "screenshots", None),
        "screen_size": (width, height) if width and height else None,
    }
    return {name: value for name, value in arguments.items() if value is not None}


class PredictAdapter:
    """Runs a rollout with a new object of an agent class: sends it observations and performs the actions it returns.

    Args:
        agent_class: has `predict`, and may have `reset`.
        arguments: the arguments of its constructor, by the names of the parameters.
        tool: the tool that performs actions, in OpenAI's format.
        vm_ip: the machine's address, for `reset`; None without a machine.
    """

    def __init__(
        self,
        agent_class: type[Any],
        arguments: Mapping[str, Any],
        tool: Mapping[str, Any],
        vm_ip: str | None = None,
    ) -> None:
        self._agent_class, self._arguments, self._tool, self._vm_ip = agent_class, arguments, tool, vm_ip

    async def run_episode(self, episode: Episode) -> AgentResult:
        """Run one rollout until an action ends it, no turns are left, or too many predictions in a row have no action.

        Raises:
            TypeError: `predict` did not return a response and actions.
        """
        agent = await asyncio.to_thread(self._agent_class, **self._arguments)
        if hasattr(agent, "reset"):
            positional, named = _reset_arguments(agent.reset, self._vm_ip)
            await _call(agent.reset, *positional, **named)
        episode.messages.append({"role": "user", "content": episode.question})
        answer, idle = "", 0
        for _ in range(episode.max_turns):
            message = await episode.take(_predict(agent, episode, self._tool))
            answer = message["content"] or answer
            if calls := message.get("tool_calls"):
                idle = 0
                await episode.answer_calls(calls)
                if episode.ended:
                    return AgentResult(answer, episode.ended)
            elif idle < episode.max_retries:
                idle += 1
            else:
                return AgentResult(answer, "no actions")
        return AgentResult(answer, TURNS_USED_UP)


async def _predict(agent: Any, episode: Episode, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Send the agent an observation and return its prediction as a message of the assistant."""
    observation = {**_EMPTY, "instruction": episode.question, **await episode.observation()}
    doing("generating", "predicting")
    returned = await _call(agent.predict, observation["instruction"], observation)
    if not isinstance(returned, tuple | list) or len(returned) < 2:
        raise TypeError(f"predict must return a response and a list of actions, not {returned!r:.200}")
    message: dict[str, Any] = {"role": "assistant", "content": _text_of(returned[0])}
    if actions := _as_list(returned[1]):
        message["tool_calls"] = [{"function": _as_call(action, tool)} for action in actions]
    return message


async def _call(method: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call a method of the agent without blocking the event loop."""
    if inspect.iscoroutinefunction(method):
        return await method(*positional, **named)
    returned = await asyncio.to_thread(method, *positional, **named)
    return await returned if inspect.isawaitable(returned) else returned


# --- arguments of the agent -----------------------------------------------------------------------------------------------


def _accepted(agent_class: type[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known arguments that the constructor has parameters for.

    Raises:
        UsageError: it needs other arguments, too.
    """
    signature = inspect.signature(agent_class)
    accepted = {name: value for name, value in known.items() if name in signature.parameters}
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise UsageError(
            f"--agent: {agent_class.__name__} cannot be constructed: {error}. Available arguments: {', '.join(known)}; "
            "for others write a subclass that passes them"
        ) from None
    return accepted


def _reset_arguments(reset: Callable[..., Any], vm_ip: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of `reset` as OSWorld's runner passes them: a logger first and `vm_ip` by name, if it takes them."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for index, parameter in enumerate(inspect.signature(reset).parameters.values()):
        variadic = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        if parameter.name == "vm_ip" or parameter.kind is parameter.VAR_KEYWORD:
            named["vm_ip"] = vm_ip
        elif index == 0 and (parameter.kind is parameter.VAR_POSITIONAL or parameter.default is parameter.empty):
            positional.append(_log)
        elif "logger" in parameter.name and not variadic:
            named[parameter.name] = _log
    return positional, named


# --- predictions ----------------------------------------------------------------------------------------------------------


def _action_tool(tools: Sequence[dict[str, Any]]) -> Mapping[str, Any]:
    """Return the tool that performs actions.

    Raises:
        UsageError: there is none.
    """
    for tool in tools:
        function: Mapping[str, Any] = tool["function"]
        if "action_type" in function["parameters"]["properties"]:
            return function
    raise UsageError("--agent: an agent with `predict` needs a tool with the parameter `action_type`; there is none")


def _as_call(action: Any, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action as a call of the tool. The tool decides whether the action is valid."""
    main = "command" if "command" in tool["parameters"]["properties"] else "action_type"
    if not isinstance(action, Mapping):
        arguments: dict[str, Any] = {main: action}
    elif main == "command" and "command" in action:
        arguments = {"command": action["command"]}
    elif "parameters" in action:
        arguments = {name: action[name] for name in ("action_type", "parameters") if name in action}
    else:
        arguments = dict(action)
    return {"name": tool["name"], "arguments": json.dumps(arguments, ensure_ascii=False, default=_plain)}


def _plain(value: Any) -> Any:
    """Return the number of a numpy scalar, which coordinates often are; a string for any other object."""
    return value.item() if hasattr(value, "item") else str(value)


def _as_list(actions: Any) -> list[Any]:
    """Return the actions of a prediction as a list; a single action may come without one."""
    if actions is None:
        return []
    return [actions] if isinstance(actions, str | Mapping) else list(actions)


def _text_of(response: Any) -> str:
    """Return the text of a response, which some agents return as a dictionary or in parts."""
    if isinstance(response, Mapping) and "response" in response:
        return _text_of(response["response"])
    if isinstance(response, list | tuple):
        return "\n".join(_text_of(part) for part in response)
    return "" if response is None else str(response)
