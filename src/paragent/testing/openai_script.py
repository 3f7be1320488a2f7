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
    retry_after: float | str | None = None
    """Seconds for the header `Retry-After`; a text is sent as it is."""
    code: str = ""
    """The `code` in the error's body, for example `context_length_exceeded`."""
    message: str = "as the script says"
    """The `message` in the error's body."""

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

    For what other servers send: `{"message": ...}` is sent as the message of the completion, whatever it is, `{"usage": ...}`
    beside any of these as its token counts, and `{"body": ...}` as the whole reply.
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
    rejects_tools: bool = False
    """Whether requests with `tools` are refused with status 400."""
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

    def refusal(self, request: Mapping[str, Any]) -> Fault | None:
        """Return the fault that a request meets by what it asks for, if any."""
        limit = self.context_limit
        if limit and sum(len(str(message.get("content"))) for message in request["messages"]) > limit:
            return Fault(400, code="context_length_exceeded")
        if self.rejects_tools and request.get("tools"):
            return Fault(400, message="tools are not supported by this model")
        return None

    def reply(self, request: Mapping[str, Any]) -> Any:
        """Return the body that answers a chat completions request: a completion, or whatever the script has instead."""
        conversation = request.get("messages", [])
        turn = sum(1 for message in conversation if message.get("role") == "assistant")
        replies = self._replies(_text(next((m for m in conversation if m.get("role") == "user"), {})))
        chosen = replies[min(turn, len(replies) - 1)]
        if isinstance(chosen, str):
            chosen = {"content": chosen}
        if "body" in chosen:
            return chosen["body"]
        if "message" in chosen:
            message = chosen["message"]
        else:
            message = {"role": "assistant", "content": chosen.get("content")}
            if calls := chosen.get("tools") or ([chosen] if "tool" in chosen else []):
                named = enumerate(calls)
                message["tool_calls"] = [_tool_call(call, f"call_{turn}_{index}") for index, call in named]
        return _completion(request, message, chosen)

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


_completion_numbers = itertools.count(1)


def _completion(request: Mapping[str, Any], message: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    prompt = sum(tokens(str(m.get("content") or "")) for m in request["messages"])
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    said = tokens(str(message.get("content") or "")) if isinstance(message, dict) else 0
    if "message" not in chosen:
        said += sum(tokens(call["function"]["arguments"]) + 5 for call in calls or ())
    counts = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
    return {
        "id": f"chatcmpl-{next(_completion_numbers)}",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": chosen.get("usage", counts),
    }


def tokens(text: str) -> int:
    """Return a count of tokens that is plausible and always the same: words and signs."""
    return len(re.findall(r"\w+|[^\w\s]", text))
