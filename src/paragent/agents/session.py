"""What an agent needs to play a rollout, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from paragent.models import Completion

__all__ = ["AgentResult", "Episode"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent ended a rollout by itself."""

    answer: str
    ending: str = "answered"
    """`answered`, `turns used up`, `context full`, or a word of the agent's own."""


class Episode(Protocol):
    """One rollout as its agent sees it. Everything that goes through it is kept in the trajectory.

    An agent with a method `async def run_episode(self, episode) -> AgentResult` drives the whole rollout itself.
    """

    instructions: str
    """The environment's system message; may be empty."""
    question: str
    """The first user message."""
    tools: list[dict[str, Any]]
    """What may be called, in OpenAI's form."""
    messages: list[dict[str, Any]]
    """The conversation. The agent appends to it; `complete` sends it."""
    max_turns: int
    max_retries: int
    ended: str
    """How a tool call ended the attempt, in a word or two; empty while it goes on."""

    async def complete(self) -> Completion:
        """Ask the model for the next message, count what it used, append its message and return it.

        Raises:
            ContextFull: the conversation is too long for the model.
            TurnsUsedUp: the rollout has had `max_turns`. An agent that lets it pass ends there, with what was said last.
            InfrastructureError: the endpoint is down; let it pass, it ends the rollout.
        """

    async def take(self, thinking: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Wait for a message that the agent comes to without `complete`, count the turn, append the message and return it.

        What an agent that asks models by itself has used is unknown from then on.

        Raises:
            TurnsUsedUp: as with `complete`.
        """

    async def observation(self) -> dict[str, Any]:
        """Return what there is to see, as the environment has it and not in words; empty if it has nothing of the kind."""

    async def answer_calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Perform every tool call of a turn, independent ones at the same time, and append their results in order."""
