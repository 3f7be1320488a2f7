"""The default agent of rollouts: a conversation with a model that may call tools until it has an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.agents.base import AgentBase
from paragent.agents.session import AgentResult
from paragent.errors import ContextFull
from paragent.tasks import TURNS_USED_UP

if TYPE_CHECKING:
    from paragent.agents.session import Episode

__all__ = ["ChatAgent"]


class ChatAgent(AgentBase):
    """Asks, performs the tool calls, asks again; the first message without a tool call is the answer.

    A call that ends the attempt is an end, too.
    """

    def __init__(self, name: str | None = "chat") -> None:
        super().__init__(name)

    async def run_episode(self, episode: Episode) -> AgentResult:
        """Play one rollout to its end: an answer, the last turn, or a context that is full."""
        if episode.instructions:
            episode.messages.append({"role": "system", "content": episode.instructions})
        episode.messages.append({"role": "user", "content": episode.question})
        said = ""
        empty = 0
        for _ in range(episode.max_turns):
            try:
                completion = await episode.complete()
            except ContextFull:
                return AgentResult(said, "context full")
            message = completion.message
            said = message.get("content") or said
            if calls := message.get("tool_calls"):
                await episode.answer_calls(calls)
                if episode.ended:
                    return AgentResult(said, episode.ended)
            elif message.get("content"):
                return AgentResult(said, "answer cut" if completion.finish_reason == "length" else "answered")
            elif empty < episode.max_retries:
                empty += 1
                episode.messages.pop()
            else:
                return AgentResult("", "answered")
        return AgentResult(said, TURNS_USED_UP)
