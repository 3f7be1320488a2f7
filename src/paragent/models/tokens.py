"""Sampled tokens: what an endpoint returns with one reply, and the sequences that the calls of a rollout form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["SampledTokens", "TokenSequences", "without_tokens"]

_TOKEN_FIELDS = frozenset({"prompt_token_ids", "token_ids", "prompt_logprobs", "logprobs"})
"""The fields of a reply, or of its choices, that have token ids and log probabilities."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The token ids of one reply, as the endpoint returned them."""

    prompt_ids: list[int]
    ids: list[int]
    """The sampled tokens."""
    logprobs: list[float] | None = None
    """The log probability of each sampled token; None if the endpoint did not return all of them."""


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


def without_tokens(reply: Any) -> Any:
    """Return a reply of chat completions without the token ids and log probabilities, which are stored as sequences."""
    if not isinstance(reply, dict):
        return reply
    short = {name: value for name, value in reply.items() if name not in _TOKEN_FIELDS}
    if isinstance(choices := short.get("choices"), list):
        short["choices"] = [
            {name: value for name, value in choice.items() if name not in _TOKEN_FIELDS}
            if isinstance(choice, dict)
            else choice
            for choice in choices
        ]
    return short
