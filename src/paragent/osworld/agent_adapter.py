"""Agents that were written for OSWorld's own runner, played as they are.

Such an agent has a method `predict(instruction, observation)` that returns what it thinks and a list of actions, and mostly a
method `reset`. It asks models by itself, and it usually blocks.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paragent.agents.session import AgentResult
from paragent.errors import UsageError
from paragent.tasks import TURNS_USED_UP, doing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paragent.agents.session import Episode

__all__ = ["PredictingAgent"]

_log = logging.getLogger(__name__)
_NOTHING: dict[str, Any] = {"screenshot": None, "accessibility_tree": None, "terminal": None}
"""The keys that an observation always has."""


class PredictingAgent:
    """Plays with a new object of a class that predicts: shows it what there is to see, and performs what it says.

    Args:
        kind: the class.
        known: what its constructor may be given, by the names of the parameters.
        vm_ip: where the machine is, for its `reset`; None without one.
    """

    def __init__(self, kind: type[Any], known: Mapping[str, Any], vm_ip: str | None = None) -> None:
        self._kind, self._known, self._vm_ip = kind, known, vm_ip

    async def run_episode(self, episode: Episode) -> AgentResult:
        """Play one rollout until an action ends it, the turns are used up, or the agent has had no action for too often.

        Raises:
            UsageError: the class needs arguments that nobody knows, or the environment has no tool for actions.
            TypeError: `predict` returned something else than a response and actions.
        """
        tool = _acting_tool(episode.tools)
        agent = await asyncio.to_thread(self._kind, **_arguments(self._kind, self._known))
        if hasattr(agent, "reset"):
            given, named = _for_reset(agent.reset, self._vm_ip)
            await _called(agent.reset, *given, **named)
        episode.messages.append({"role": "user", "content": episode.question})
        said, idle = "", 0
        for _ in range(episode.max_turns):
            message = await episode.take(_predicted(agent, episode, tool))
            said = message["content"] or said
            if calls := message.get("tool_calls"):
                idle = 0
                await episode.answer_calls(calls)
                if episode.ended:
                    return AgentResult(said, episode.ended)
            elif idle < episode.max_retries:
                idle += 1
            else:
                return AgentResult(said, "no actions")
        return AgentResult(said, TURNS_USED_UP)


async def _predicted(agent: Any, episode: Episode, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Have the agent look and think; return what comes of it as a message of the assistant."""
    seen = {**_NOTHING, "instruction": episode.question, **await episode.observation()}
    doing("predicting")
    returned = await _called(agent.predict, seen["instruction"], seen)
    if not isinstance(returned, tuple | list) or len(returned) < 2:
        raise TypeError(f"predict must return a response and a list of actions, not {returned!r:.200}")
    message: dict[str, Any] = {"role": "assistant", "content": _text_of(returned[0])}
    if actions := _listed(returned[1]):
        message["tool_calls"] = [{"function": _as_call(action, tool)} for action in actions]
    return message


async def _called(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a method of the agent without holding the event loop."""
    if inspect.iscoroutinefunction(method):
        return await method(*given, **named)
    returned = await asyncio.to_thread(method, *given, **named)
    return await returned if inspect.isawaitable(returned) else returned


# --- what the agent is given ----------------------------------------------------------------------------------------------


def _arguments(kind: type[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the known arguments that the constructor has parameters for.

    Raises:
        UsageError: it needs others, too.
    """
    signature = inspect.signature(kind)
    given = {name: value for name, value in known.items() if name in signature.parameters}
    try:
        signature.bind(**given)
    except TypeError as error:
        raise UsageError(
            f"--agent: {kind.__name__} cannot be constructed: {error}. Known are: {', '.join(known)}; "
            "for others write a subclass that gives them"
        ) from None
    return given


def _for_reset(reset: Callable[..., Any], vm_ip: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of `reset` as OSWorld's runner gives them, a logger first and `vm_ip` by name, if it takes them."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for place, parameter in enumerate(inspect.signature(reset).parameters.values()):
        free = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        if parameter.name == "vm_ip" or parameter.kind is parameter.VAR_KEYWORD:
            named["vm_ip"] = vm_ip
        elif place == 0 and (parameter.kind is parameter.VAR_POSITIONAL or parameter.default is parameter.empty):
            given.append(_log)
        elif "logger" in parameter.name and not free:
            named[parameter.name] = _log
    return given, named


# --- what the agent says --------------------------------------------------------------------------------------------------


def _acting_tool(tools: Sequence[dict[str, Any]]) -> Mapping[str, Any]:
    """Return the tool that takes actions.

    Raises:
        UsageError: there is none.
    """
    for tool in tools:
        function: Mapping[str, Any] = tool["function"]
        if "action_type" in function["parameters"]["properties"]:
            return function
    raise UsageError(
        "--agent: an agent that predicts acts at desktops (--mode osworld); this environment has no such tool"
    )


def _as_call(action: Any, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action as a call of the tool; whether it is a valid one, the tool says."""
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
    """Return the number in a scalar of numpy, which coordinates often are; a text for anything else."""
    return value.item() if hasattr(value, "item") else str(value)


def _listed(actions: Any) -> list[Any]:
    """Return the actions of a prediction; one that is not in a list is one."""
    if actions is None:
        return []
    return [actions] if isinstance(actions, str | Mapping) else list(actions)


def _text_of(response: Any) -> str:
    """Return the words of a response, which some agents have in a dictionary or in pieces."""
    if isinstance(response, Mapping) and "response" in response:
        return _text_of(response["response"])
    if isinstance(response, list | tuple):
        return "\n".join(_text_of(part) for part in response)
    return "" if response is None else str(response)
