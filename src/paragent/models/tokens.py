"""Sampled tokens: what an endpoint returns with one reply, and the sequences that the calls of a rollout form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["TOKEN_IDS", "SampledTokens", "TokenSequences", "read_tokens", "without_tokens"]

TOKEN_IDS: dict[str, Any] = {"return_token_ids": True, "logprobs": True}
"""The fields of a request that ask vLLM and SGLang for token ids and their log probabilities."""
_MOST_IDS = 2**31
"""Token ids are below this, so that trainers can store them in 32 bits. No log probability is as large either."""
_REPLY_FIELDS = {"prompt_token_ids", "prompt_logprobs"}
_CHOICE_FIELDS = {"prompt_token_ids", "token_ids", "response_token_ids", "logprobs"}
_META_FIELDS = {"output_token_logprobs", "input_token_logprobs"}
_EXTENSION_FIELDS = {"input_ids", "output_ids"}


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The token ids of one reply, as the endpoint returned them."""

    prompt_ids: list[int]
    ids: list[int]
    """The sampled tokens."""
    logprobs: list[float] | None = None
    """The log probability of each sampled token; None if the endpoint did not return all of them."""


def read_tokens(reply: Any) -> SampledTokens | None:
    """Return the token ids of a chat completion; None if it does not have those of prompt and answer.

    vLLM sends `prompt_token_ids` with the reply and `token_ids` with each choice. SGLang sends both with each choice, or
    `input_ids` and `output_ids` in `sglext`; its `meta_info` may have pairs of log probability and token id.
    """
    if not isinstance(reply, dict) or not isinstance(choices := reply.get("choices"), list) or not choices:
        return None
    choice, extension = _object(choices[0]), _object(reply.get("sglext"))
    meta = _object(choice.get("meta_info")).get("output_token_logprobs")
    pairs: list[Any] = (
        meta if isinstance(meta, list) and all(isinstance(one, list) and len(one) > 1 for one in meta) else []
    )
    outputs = extension.get("output_ids")
    prompts = (reply.get("prompt_token_ids"), choice.get("prompt_token_ids"), extension.get("input_ids"))
    sampled = (
        choice.get("token_ids"),
        choice.get("response_token_ids"),
        outputs[0] if isinstance(outputs, list) and outputs else None,
        [pair[1] for pair in pairs] or None,
    )
    prompt = next(filter(_are_ids, prompts), None)
    ids = next(filter(_are_ids, sampled), None)
    if prompt is None or ids is None:
        return None
    content = _object(choice.get("logprobs")).get("content")
    stated: list[Any] = [_object(one).get("logprob") for one in content] if isinstance(content, list) else []
    logprobs = next(
        (one for one in (stated, [pair[0] for pair in pairs]) if len(one) == len(ids) and _numbers(one)), None
    )
    return SampledTokens(list(prompt), list(ids), None if logprobs is None else [float(one) for one in logprobs])


def _object(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(one) is int and 0 <= one < _MOST_IDS for one in given)


def _numbers(given: list[Any]) -> bool:
    return all(
        (type(one) is float and math.isfinite(one)) or (type(one) is int and abs(one) < _MOST_IDS) for one in given
    )


def without_tokens(reply: Any) -> Any:
    """Return a chat completion without token ids and log probabilities, which are stored in the sequences.

    The reply of another protocol is returned unchanged.
    """
    if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
        return reply
    shortened = {name: value for name, value in reply.items() if name not in _REPLY_FIELDS}
    if isinstance(extension := reply.get("sglext"), dict):
        shortened["sglext"] = {name: value for name, value in extension.items() if name not in _EXTENSION_FIELDS}
    shortened["choices"] = [_choice_without_tokens(choice) for choice in reply["choices"]]
    return shortened


def _choice_without_tokens(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    shortened = {name: value for name, value in choice.items() if name not in _CHOICE_FIELDS}
    if isinstance(meta := choice.get("meta_info"), dict):
        shortened["meta_info"] = {name: value for name, value in meta.items() if name not in _META_FIELDS}
    return shortened


@dataclass(slots=True)
class _Sequence:
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    turns: list[dict[str, Any]]
    has_logprobs: bool = True


class TokenSequences:
    """The token sequences of a rollout.

    A call whose prompt continues a sequence token for token extends the longest such sequence. Any other call starts a new
    sequence: its history was rewritten, or it belongs to another conversation.
    """

    def __init__(self) -> None:
        self._sequences: list[_Sequence] = []

    def add(self, tokens: SampledTokens, step: int, version: int | None = None) -> int:
        """Add the tokens of a call and return the number of its sequence.

        Args:
            tokens: the tokens.
            step: the number of the step of the call in the trajectory.
            version: the version of the policy that sampled them.
        """
        prompt = tokens.prompt_ids
        number = self._continued(prompt)
        if number is None:
            number = len(self._sequences)
            self._sequences.append(_Sequence([], [], [], []))
        sequence = self._sequences[number]
        start = len(prompt)
        unsampled = start - len(sequence.ids)
        sequence.ids += prompt[len(sequence.ids) :] + tokens.ids
        sequence.mask += [0] * unsampled + [1] * len(tokens.ids)
        sequence.logprobs += [0.0] * unsampled + (tokens.logprobs or [0.0] * len(tokens.ids))
        sequence.has_logprobs = sequence.has_logprobs and tokens.logprobs is not None
        sequence.turns.append({"step": step, "start": start, "end": len(sequence.ids), "version": version})
        return number

    def _continued(self, prompt: list[int]) -> int | None:
        """Return the number of the longest sequence that the prompt continues; None if there is none."""
        lengths = sorted(((len(one.ids), number) for number, one in enumerate(self._sequences)), reverse=True)
        for length, number in lengths:
            if length <= len(prompt) and prompt[:length] == self._sequences[number].ids:
                return number
        return None

    def stored(self) -> list[dict[str, Any]]:
        """Return the sequences for the trajectory."""
        sequences = []
        for one in self._sequences:
            stored: dict[str, Any] = {"token_ids": one.ids, "mask": one.mask, "turns": one.turns}
            if one.has_logprobs:
                stored["logprobs"] = one.logprobs
            sequences.append(stored)
        return sequences
