"""Agents that drive a rollout: the interface they use (`Episode`) and the default agent (`ChatAgent`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paragent.agents.base import AgentBase
from paragent.errors import ContextFull
from paragent.tasks import ANSWER_CUT, ANSWERED, CONTEXT_FULL, TURNS_USED_UP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from paragent.models import Completion

__all__ = ["AgentResult", "ChatAgent", "Episode"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What an agent returns at the end of a rollout."""

    answer: str
    """The answer, which is scored."""
    ending: str = "answered"
    """`answered`, `answer cut`, `turns used up`, `context full`, or a short text of the agent's own."""


class Episode(Protocol):
    """One rollout as its agent sees it. All messages that it adds are recorded in the trajectory.

    An agent with a method `async def run_episode(self, episode) -> AgentResult` controls the whole rollout.
    """

    instructions: str
    """The environment's system message; may be empty."""
    question: str
    """The first user message."""
    tools: list[dict[str, Any]]
    """The tools, in the format of OpenAI's API."""
    messages: list[dict[str, Any]]
    """The conversation. The agent appends to it; `complete` sends it."""
    max_turns: int
    """How many turns the agent may take (`--max-turns`)."""
    max_retries: int
    """How often a request to the model is repeated after errors."""
    ended: str
    """How a tool call ended the rollout, in a few words; empty while the rollout continues."""

    async def complete(self) -> Completion:
        """Request the next message from the model, record its usage, append the message and return it.

        Raises:
            ContextFull: the conversation is too long for the model.
            TurnsUsedUp: the rollout has used `max_turns`. If the agent does not catch it, the rollout ends with the last message.
            InfrastructureError: the endpoint is down. Do not catch it: it ends the rollout.
        """

    async def take(self, thinking: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Wait for a message that the agent gets without `complete`, count a turn, append the message and return it.

        From then on the token usage of the rollout is unknown, because the agent calls models by itself.

        Raises:
            TurnsUsedUp: as with `complete`.
        """

    async def observation(self) -> dict[str, Any]:
        """Return the environment's structured observation, for example a screenshot; empty if it has none."""

    async def answer_calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Execute all tool calls of a turn, independent ones concurrently, and append their results in order."""


class ChatAgent(AgentBase):
    """A conversation with a model: requests a message, executes its tool calls, and repeats.

    The first message without a tool call is the answer. A tool call may also end the rollout.
    """

    def __init__(self, name: str | None = "chat") -> None:
        super().__init__(name)

    async def run_episode(self, episode: Episode) -> AgentResult:
        """Run one rollout until there is an answer, no turn is left, or the context is full."""
        if episode.instructions:
            episode.messages.append({"role": "system", "content": episode.instructions})
        episode.messages.append({"role": "user", "content": episode.question})
        said = ""
        empty = 0
        for _ in range(episode.max_turns):
            try:
                completion = await episode.complete()
            except ContextFull:
                return AgentResult(said, CONTEXT_FULL)
            message = completion.message
            ending = ANSWER_CUT if completion.finish_reason == "length" else ANSWERED
            said = message.get("content") or said
            if calls := message.get("tool_calls"):
                await episode.answer_calls(calls)
                if episode.ended:
                    return AgentResult(said, episode.ended)
            elif message.get("content"):
                return AgentResult(said, ending)
            elif empty < episode.max_retries:
                empty += 1
                episode.messages.pop()
            else:
                return AgentResult("", ending)
        return AgentResult(said, TURNS_USED_UP)
