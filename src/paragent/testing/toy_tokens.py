"""A toy tokenizer for the scripted endpoint: token ids and log probabilities in the form of vLLM.

The ids are the bytes of a conversation in a simple chat template, with two more for the beginning and the end of a message. If
the history is unchanged, the prompt of the next turn continues the earlier tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BEGIN", "END", "decode", "logprob_of", "prompt_ids", "sampled_ids", "with_tokens", "word_count"]

BEGIN = 256
"""The id of the token before each message."""
END = 257
"""The id of the token after each message, which the model samples too."""


def prompt_ids(request: Mapping[str, Any]) -> list[int]:
    """Return the tokens of a chat completion request: its tools, its messages, and the beginning of the assistant's turn."""
    ids: list[int] = []
    if request.get("tools"):
        ids += [BEGIN, *f"tools\n{json.dumps(request['tools'], sort_keys=True)}".encode(), END]
    for message in request.get("messages", ()):
        ids += [BEGIN, *f"{message.get('role')}\n".encode(), *_body(message), END]
    return [*ids, BEGIN, *b"assistant\n"]


def sampled_ids(message: Mapping[str, Any]) -> list[int]:
    """Return the tokens of the assistant's turn."""
    return [*_body(message), END]


def _body(message: Mapping[str, Any]) -> bytes:
    """Return a message in the template: reasoning, text and tool calls. As in real templates, arguments have one form."""
    text = ""
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        text += f"<think>{reasoning}</think>"
    content = message.get("content") or ""
    text += content if isinstance(content, str) else json.dumps(content, sort_keys=True)
    for call in message.get("tool_calls") or ():
        function = call.get("function") or call.get("custom") or {}
        given: Any = function.get("arguments", function.get("input"))
        with contextlib.suppress(ValueError, TypeError):  # what is not JSON stays a text
            given = json.loads(given)
        text += f"<tool_call>{json.dumps([function.get('name'), given])}</tool_call>"
    return text.encode("utf-8", "surrogatepass")


def decode(ids: list[int]) -> str:
    """Return the text of tokens."""
    special = {BEGIN: b"<|begin|>", END: b"<|end|>"}
    return b"".join(special.get(one) or bytes([one]) for one in ids).decode(errors="replace")


def logprob_of(ids: list[int], position: int) -> float:
    """Return the log probability of a token: any number that depends only on the tokens up to it."""
    return -((ids[position] * 31 + position * 7 + 1) % 97) / 97


def with_tokens(completion: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion with the token ids and log probabilities that the request asks for."""
    prompt, [choice] = prompt_ids(request), completion["choices"]
    ids = sampled_ids(choice["message"])
    choice = dict(choice)
    if request.get("logprobs"):
        content: list[dict[str, Any]] = [
            {"token": decode([one]), "logprob": logprob_of(ids, place), "bytes": None, "top_logprobs": []}
            for place, one in enumerate(ids)
        ]
        choice["logprobs"] = {"content": content, "refusal": None}
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
    written = completion | {"choices": [choice], "usage": {**counts, **(completion.get("usage") or {}), **counts}}
    if request.get("return_token_ids"):
        choice["token_ids"] = ids
        written["prompt_token_ids"] = prompt
    return written


def word_count(text: str) -> int:
    """Return the number of words and punctuation marks, the token counts of requests that do not ask for token ids."""
    return len(re.findall(r"\w+|[^\w\s]", text))
