"""Token ids of replies, and the sequences that the calls of a rollout form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.models.replies import assemble_stream, read_reply
from paragent.models.tokens import SampledTokens, TokenSequences, read_tokens, without_tokens

LOGPROBS = {"content": [{"token": "4", "logprob": -0.5, "top_logprobs": []}, {"token": "2", "logprob": -1.0}]}
EXPECTED = SampledTokens([1, 2, 3], [7, 8], [-0.5, -1.0])


def reply(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "42"}
    return {"id": "c", "choices": [{"message": message, "finish_reason": "stop", **choice}], **fields}


VLLM = reply({"token_ids": [7, 8], "logprobs": LOGPROBS}, prompt_token_ids=[1, 2, 3], prompt_logprobs=None)
SGLANG = reply({"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8], "logprobs": LOGPROBS})
SGLANG_EXTENSION = reply({"logprobs": LOGPROBS}, sglext={"input_ids": [1, 2, 3], "output_ids": [[7, 8]]})
SGLANG_META = reply(
    {"prompt_token_ids": [1, 2, 3], "meta_info": {"output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, None]]}}
)


@pytest.mark.parametrize("given_reply", [VLLM, SGLANG, SGLANG_EXTENSION, SGLANG_META])
def test_token_ids_and_logprobs_are_read(given_reply: dict[str, Any]) -> None:
    assert read_reply(given_reply).tokens == EXPECTED
    shortened = without_tokens(given_reply)
    assert read_tokens(shortened) is None
    assert read_reply(shortened).message["content"] == "42"
    assert "logprob" not in str(shortened)


@pytest.mark.parametrize(
    ("given_reply", "tokens"),
    [
        (reply({"token_ids": [7, 8]}, prompt_token_ids=[1]), SampledTokens([1], [7, 8])),
        (reply({"token_ids": [7], "logprobs": LOGPROBS}, prompt_token_ids=[1]), SampledTokens([1], [7])),
        (reply({"token_ids": [], "logprobs": {"content": []}}, prompt_token_ids=[1]), SampledTokens([1], [], [])),
        (reply({"token_ids": [7]}), None),
        (reply({}, prompt_token_ids=[1]), None),
        (reply({"token_ids": ["7"]}, prompt_token_ids=[1]), None),
        (reply({"token_ids": [True]}, prompt_token_ids=[1]), None),
        (reply({"token_ids": [-1]}, prompt_token_ids=[1]), None),
        (reply({"token_ids": [7.0]}, prompt_token_ids=[1]), None),
        (reply({"token_ids": [2**31]}, prompt_token_ids=[1]), None),
        (reply({"token_ids": [7]}, prompt_token_ids=[2**64]), None),
        (
            reply({"token_ids": [7], "logprobs": {"content": [{"logprob": -(10**400)}]}}, prompt_token_ids=[1]),
            SampledTokens([1], [7]),
        ),
        (
            reply({"token_ids": [7], "logprobs": {"content": [{"logprob": float("-inf")}]}}, prompt_token_ids=[1]),
            SampledTokens([1], [7]),
        ),
        (
            reply({"token_ids": [7], "logprobs": {"content": [{"logprob": "nan"}]}}, prompt_token_ids=[1]),
            SampledTokens([1], [7]),
        ),
        (reply({}, prompt_token_ids="x", sglext=[1]), None),
    ],
)
def test_tokens_are_complete_or_missing(given_reply: dict[str, Any], tokens: SampledTokens | None) -> None:
    assert read_reply(given_reply).tokens == tokens


def test_token_ids_of_a_streamed_reply_are_put_together() -> None:
    async def stream() -> AsyncIterator[Any]:
        head = {"id": "c", "model": "m"}
        yield {**head, "prompt_token_ids": [1, 2, 3], "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        for text, token, logprob in (("4", 7, -0.5), ("2", 8, -1.0)):
            choice = {"index": 0, "delta": {"content": text}, "token_ids": [token], "finish_reason": None}
            content = [{"token": text, "logprob": logprob}]
            yield {**head, "prompt_token_ids": None, "choices": [{**choice, "logprobs": {"content": content}}]}
        end = {"index": 0, "delta": {}, "finish_reason": "stop", "token_ids": None, "logprobs": None}
        yield {**head, "prompt_token_ids": None, "choices": [end]}
        yield {**head, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    assert read_reply(asyncio.run(assemble_stream(stream()))).tokens == EXPECTED


def test_a_turn_extends_the_sequence_that_its_prompt_continues() -> None:
    sequences = TokenSequences()
    assert sequences.add(SampledTokens([1, 2], [3], [-1.0]), step=0, version=4) == 0
    assert sequences.add(SampledTokens([1, 2, 3, 9], [5, 6], [-2.0, -3.0]), step=2, version=5) == 0
    assert sequences.add(SampledTokens([1, 2, 4], [5]), step=3) == 1, "a rewritten history"
    first, second = sequences.stored()
    assert first == {
        "token_ids": [1, 2, 3, 9, 5, 6],
        "mask": [0, 0, 1, 0, 1, 1],
        "logprobs": [0.0, 0.0, -1.0, 0.0, -2.0, -3.0],
        "turns": [{"step": 0, "start": 2, "end": 3, "version": 4}, {"step": 2, "start": 4, "end": 6, "version": 5}],
    }
    assert second == {
        "token_ids": [1, 2, 4, 5],
        "mask": [0, 0, 0, 1],
        "turns": [{"step": 3, "start": 3, "end": 4, "version": None}],
    }


def test_the_longest_sequence_is_extended() -> None:
    sequences = TokenSequences()
    sequences.add(SampledTokens([1], [2]), step=0)
    sequences.add(SampledTokens([1, 5], [6]), step=1)
    sequences.add(SampledTokens([1, 2, 3], [4]), step=2)
    sequences.add(SampledTokens([1], [2, 3]), step=3)
    assert sequences.add(SampledTokens([1, 2, 3, 4, 5], [6]), step=4) == 0
    assert sequences.add(SampledTokens([1, 2, 3, 7], [8]), step=5) == 2


TOKENS = st.lists(st.integers(0, 3), max_size=4)


@st.composite
def calls(draw: st.DrawFn) -> list[SampledTokens]:
    """Calls of several conversations at once, which continue, are rewritten, or are unrelated; few ids, so that they collide."""
    conversations: list[list[int]] = [[]]
    made = []
    for _ in range(draw(st.integers(0, 12))):
        history = draw(st.sampled_from(conversations))
        how = draw(st.sampled_from(["continue", "cut", "rewrite", "new"]))
        if how == "cut":
            history = history[: draw(st.integers(0, len(history)))]
        elif how == "rewrite":
            history = [(token + 1) % 4 for token in history]
        elif how == "new":
            history = []
        prompt = history + draw(TOKENS)
        sampled = draw(TOKENS)
        logprobs = draw(st.sampled_from([None, [-0.1 * (number + 1) for number in range(len(sampled))]]))
        made.append(SampledTokens(prompt, sampled, logprobs))
        conversations.append(prompt + sampled)
    return made


@given(calls())
def test_no_sampled_token_is_lost_or_counted_twice(made: list[SampledTokens]) -> None:
    sequences = TokenSequences()
    numbers = [sequences.add(tokens, step, version=step * 10) for step, tokens in enumerate(made)]
    stored = sequences.stored()
    found = {}
    for number, one in enumerate(stored):
        assert len(one["token_ids"]) == len(one["mask"])
        covered = [0] * len(one["mask"])
        for turn in one["turns"]:
            assert turn["step"] not in found
            found[turn["step"]] = number
            tokens = made[turn["step"]]
            assert one["token_ids"][: turn["start"]] == tokens.prompt_ids, "exactly the prompt that was sent"
            assert one["token_ids"][turn["start"] : turn["end"]] == tokens.ids
            assert turn["version"] == turn["step"] * 10
            for position in range(turn["start"], turn["end"]):
                covered[position] += 1
            if "logprobs" in one:
                assert one["logprobs"][turn["start"] : turn["end"]] == tokens.logprobs
        assert covered == one["mask"], "each sampled token belongs to one turn"
        assert ("logprobs" in one) == all(made[turn["step"]].logprobs is not None for turn in one["turns"])
        if "logprobs" in one:
            assert all(value == 0.0 for value, sampled in zip(one["logprobs"], one["mask"], strict=True) if not sampled)
    assert found == dict(enumerate(numbers))
    assert sum(map(sum, (one["mask"] for one in stored))) == sum(len(tokens.ids) for tokens in made)
