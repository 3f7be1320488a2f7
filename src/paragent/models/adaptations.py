"""Forms of chat completion requests that an endpoint rejects, and the forms that it gets instead. No I/O.

Endpoints disagree about the reasoning in earlier turns of the assistant: some reject a conversation that has it, some one in
which a turn has none. They also disagree about the name of the limit of one reply. What an endpoint wants is learnt from the
message with which it rejects a request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from paragent.messages import REASONING, reasoning_of, without_reasoning

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REPLY_LIMITS", "ChatAdaptations"]

REPLY_LIMITS = ("max_tokens", "max_completion_tokens")
"""The names of the limit of one reply's tokens: most endpoints; newer models of OpenAI, which reject the first."""
_NAMED = (
    ("reasoning_content", re.compile(r"\breasoning[_ ]content\b", re.IGNORECASE)),
    ("reasoning_details", re.compile(r"\breasoning_details\b")),
    ("reasoning", re.compile(r"""['"`.\]]reasoning['"`\]]""")),
)
"""The fields with reasoning, and how messages name them. `reasoning` is also an ordinary word, and a field with settings."""
_DEMANDED = re.compile(r"must be (passed|included|provided|sent)|must include|missing|required", re.IGNORECASE)
_BLANK = " "
"""The reasoning of a turn that has none, for an endpoint that demands it. DeepSeek V4 also rejects an empty text."""


class ChatAdaptations:
    """What one endpoint has rejected."""

    def __init__(self) -> None:
        self._rejects_reasoning = False
        self._demands: str | None = None
        """The field with reasoning that each turn of the assistant must have."""
        self._limit = "max_tokens"

    def learn(self, request: Mapping[str, Any], message: str) -> bool:
        """Learn from a rejected request; return whether `apply` now returns another request.

        Args:
            request: what was sent.
            message: the endpoint's message.
        """
        before = (self._rejects_reasoning, self._demands, self._limit)
        if "max_tokens" in request and all(name in message for name in REPLY_LIMITS):
            self._limit = "max_completion_tokens"
        elif field := next((name for name, pattern in _NAMED if pattern.search(message)), None):
            turns = [one for one in _messages(request) if one.get("role") == "assistant"]
            if _DEMANDED.search(message):
                if not all(one.get(field) for one in turns):
                    self._rejects_reasoning, self._demands = False, field
            elif any(name in one for one in turns for name in REASONING):
                self._rejects_reasoning, self._demands = True, None
        return before != (self._rejects_reasoning, self._demands, self._limit)

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request in a form that the endpoint has not rejected."""
        if self._limit not in request and "max_tokens" in request:
            request[self._limit] = request.pop("max_tokens")
        if self._rejects_reasoning:
            request["messages"] = without_reasoning(request["messages"])
        elif self._demands is not None:
            request["messages"] = [self._with_reasoning(one, self._demands) for one in request["messages"]]
        return request

    def _with_reasoning(self, message: Any, field: str) -> Any:
        if not isinstance(message, dict) or message.get("role") != "assistant" or message.get(field):
            return message
        return {**message, field: reasoning_of(message) or _BLANK}


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in request.get("messages", ()) if isinstance(one, dict)]
