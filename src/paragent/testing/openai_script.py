"""What a scripted model says, and when its endpoint fails: plain data, so that it fits in a JSON file."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Fault", "Script"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way in which the endpoint fails, and for which requests.

    It happens to the requests number `first` to `last` (counted from 1; 0: without end), to every `every`-th of them.
    """

    status: int = 500
    """The HTTP status: 429, 500, 503, 400, 401, ...; 0: the connection is cut in the middle of the answer."""
    first: int = 1
    last: int = 0
    every: int = 1
    retry_after: float | None = None
    """Seconds for the header `Retry-After`."""
    code: str = ""
    """The `code` in the error's body, for example `context_length_exceeded`."""

    def hits(self, number: int) -> bool:
        """Return whether the request with this number meets the fault."""
        within = number >= self.first and (not self.last or number <= self.last)
        return within and (number - self.first) % self.every == 0


@dataclass(slots=True)
class Script:
    """The replies of a scripted model.

    A reply is a text (the final answer), `{"tool": name, "arguments": {...}}`, or `{"tools": [such, ...], "content": text}`.
    `arguments` may be a string, which is sent as it is: this is how a malformed tool call is made. The reply to a request is
    chosen by how many turns the model has already taken in the conversation; the last one is repeated.
    """

    answers: Mapping[str, Any] = field(default_factory=dict)
    """Replies by the text of the task: for the first key that occurs in the first user message, its reply or list of replies."""
    default: Any = "42"
    """The reply, or the list of them, for every other conversation."""
    latency: float = 0.0
    """Seconds until an answer begins."""
    faults: Sequence[Fault] = ()
    most_at_once: int = 0
    """Requests in flight above which the endpoint refuses with status 429; 0: it takes all."""
    context_limit: int = 0
    """Characters of conversation above which the endpoint refuses with `context_length_exceeded`; 0: no limit."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Read a script that was written as JSON with the fields of this class.

        Raises:
            ConfigError: the text is no JSON object with these fields.
        """
        try:
            settings = json.loads(text)
            settings["faults"] = [Fault(**fault) for fault in settings.get("faults", ())]
            return cls(**settings)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is no script of a scripted model: {error}") from error

    def fault(self) -> Fault | None:
        """Count a request; return the fault that it meets, if any."""
        number = next(self._numbers)
        return next((fault for fault in self.faults if fault.hits(number)), None)

    def message(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the assistant's message that answers a chat completions request."""
        conversation = request.get("messages", [])
        turn = sum(1 for message in conversation if message.get("role") == "assistant")
        replies = self._replies(_text(next((m for m in conversation if m.get("role") == "user"), {})))
        reply = replies[min(turn, len(replies) - 1)]
        if isinstance(reply, str):
            return {"role": "assistant", "content": reply}
        calls = reply.get("tools") or [reply]
        return {
            "role": "assistant",
            "content": reply.get("content"),
            "tool_calls": [_tool_call(call, f"call_{turn}_{index}") for index, call in enumerate(calls)],
        }

    def _replies(self, question: str) -> list[Any]:
        chosen = next((replies for key, replies in self.answers.items() if key in question), self.default)
        return chosen if isinstance(chosen, list) else [chosen]


def _tool_call(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": call["tool"], "arguments": text}}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


def tokens(text: str) -> int:
    """Return a count of tokens that is plausible and always the same: words and signs."""
    return len(re.findall(r"\w+|[^\w\s]", text))
