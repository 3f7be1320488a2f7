"""Conversations of a trajectory: the messages of each branch, matched with the recorded steps and the sampled tokens."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BranchMessages", "CallTokens", "call_arguments", "conversations", "dictionaries", "text_of"]

_REPLIES = {"model", "agent"}
"""Kinds of steps that add a message of the assistant."""


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The tokens of one model call: a range of a sequence."""

    sequence: dict[str, Any]
    """With `token_ids` and, if they are known, `logprobs`."""
    start: int
    end: int
    version: int | None

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens before the sampled ones."""
        return list(self.sequence["token_ids"][: self.start])

    @property
    def ids(self) -> list[int]:
        """The sampled tokens."""
        return list(self.sequence["token_ids"][self.start : self.end])

    @property
    def logprobs(self) -> list[float] | None:
        """The log probability of each sampled token; None if they are unknown."""
        logprobs = self.sequence.get("logprobs")
        return logprobs[self.start : self.end] if isinstance(logprobs, list) else None


@dataclass(slots=True)
class BranchMessages:
    """The messages of one branch, including those that it shares with its parent, and the steps that made them."""

    branch: int
    """0: the conversation of the trajectory itself."""
    parent: int
    shared: int
    """How many messages at the beginning are those of the parent; 0 for branch 0."""
    messages: list[dict[str, Any]]
    replies: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Steps of model calls, and steps of messages that the agent's code made, by the position of their message."""
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Steps of tool calls, by the position of the message with the result."""
    numbers: dict[int, int] = field(default_factory=dict)
    """The numbers of these steps in the trajectory, by the position of the message."""
    tokens: dict[int, CallTokens] = field(default_factory=dict)
    """The tokens of model calls, by the position of their message."""


def conversations(trajectory: dict[str, Any]) -> list[BranchMessages]:
    """Return the conversations of a trajectory, branch 0 first; empty without messages.

    A trajectory may contain anything, because agents can change it: what is not a message, a step or a branch is ignored.
    """
    found = _branches(trajectory)
    steps = dictionaries(trajectory.get("steps"))
    tokens = _tokens_by_step(trajectory)
    results: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, step in enumerate(steps):
        if step.get("kind") == "tool":
            results.setdefault(str(step.get("call")), []).append((index, step))
    for one in found:
        replies = [
            (index, step)
            for index, step in enumerate(steps)
            if step.get("kind") in _REPLIES and not step.get("error") and _branch_of(step) == one.branch
        ]
        for position, (index, step) in _matched(one, replies).items():
            one.replies[position], one.numbers[position] = step, index
            if index in tokens:
                one.tokens[position] = tokens[index]
        for position in range(one.shared, len(one.messages)):
            message = one.messages[position]
            if message.get("role") == "tool" and (waiting := results.get(str(message.get("tool_call_id")))):
                one.numbers[position], one.results[position] = waiting.pop(
                    0
                )  # some endpoints use the same ids in every turn
    return found


def _branches(trajectory: dict[str, Any]) -> list[BranchMessages]:
    messages = dictionaries(trajectory.get("messages"))
    branches = dictionaries(trajectory.get("branches"))
    found = [BranchMessages(0, 0, 0, messages)] if messages or branches else []
    for number, branch in enumerate(branches, 1):
        parent, shared = branch.get("parent"), branch.get("shared")
        if not isinstance(parent, int) or not isinstance(shared, int) or not 0 <= parent < number or shared < 0:
            parent, shared = 0, 0
        before = found[parent].messages[:shared]
        found.append(BranchMessages(number, parent, len(before), before + dictionaries(branch.get("messages"))))
    return found


def _matched(one: BranchMessages, replies: list[tuple[int, dict[str, Any]]]) -> dict[int, tuple[int, dict[str, Any]]]:
    """Return the steps of a branch by the position of the message that each of them added.

    A model call says how many messages it was sent, so its own is the next one. Other steps follow each other in the order of
    the remaining messages of the assistant.
    """
    positions = [n for n in range(one.shared, len(one.messages)) if one.messages[n].get("role") == "assistant"]
    free = dict.fromkeys(positions)
    matched: dict[int, tuple[int, dict[str, Any]]] = {}
    others = []
    for index, step in replies:
        sent = step.get("messages")
        if isinstance(sent, int) and sent in free:
            del free[sent]
            matched[sent] = (index, step)
        else:
            others.append((index, step))
    return matched | dict(zip(free, others, strict=False))


def _branch_of(step: dict[str, Any]) -> int:
    branch = step.get("branch")
    return branch if isinstance(branch, int) else 0


def _tokens_by_step(trajectory: dict[str, Any]) -> dict[int, CallTokens]:
    """Return the tokens of each model call, by the number of its step."""
    found = {}
    for sequence in dictionaries(trajectory.get("tokens")):
        if not isinstance(sequence.get("token_ids"), list):
            continue
        for turn in dictionaries(sequence.get("turns")):
            step, start, end = (turn.get(name) for name in ("step", "start", "end"))
            if isinstance(step, int) and isinstance(start, int) and isinstance(end, int) and 0 <= start <= end:
                version = turn.get("version")
                found[step] = CallTokens(sequence, start, end, version if isinstance(version, int) else None)
    return found


def call_arguments(function: Any) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a tool call as an object; if they are not one, an empty object and the text."""
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, dict):
        return arguments, None
    with suppress(ValueError, TypeError, RecursionError):
        read = json.loads(arguments or "{}")
        if isinstance(read, dict):
            return read, None
    return {}, str(arguments)


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in dictionaries(content) if isinstance(part.get("text"), str))


def dictionaries(value: Any) -> list[dict[str, Any]]:
    """Return the dictionaries of a list; empty if it is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
