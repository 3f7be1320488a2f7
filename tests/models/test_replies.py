"""Parsing of replies: any JSON is parsed or raises MalformedReply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.models.replies import MalformedReply, assemble_stream, read_reply

DETAILS = [{"type": "reasoning.encrypted", "data": "abc", "id": None}]
SURROGATE = "\ud800"


def reply(message: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"}], **more}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, None),
        (42, "42"),
        (0.5, "0.5"),
        ([{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}], "two parts"),
        ([{"type": "image_url"}, "bare", 7], "bare"),
        ({"type": "text", "text": "one part"}, "one part"),
        ([], None),
        (f"lone {SURROGATE}", "lone \ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
    ],
)
def test_content_is_normalised_to_text(content: Any, text: str | None) -> None:
    assert read_reply(reply({"content": content})).message == {"role": "assistant", "content": text}


CALL = {"name": "f", "arguments": '{"x": 1}'}


@pytest.mark.parametrize(
    "calls",
    [
        [{"id": "1", "type": "function", "function": CALL}],
        {"id": "1", "function": CALL},
        [{"id": 1, "function": {"name": "f", "arguments": {"x": 1}}}],
        [{"id": "1", **CALL}],
        [{"id": "1", "name": "f", "parameters": {"x": 1}}],
        [json.dumps({"id": "1", "function": CALL})],
        json.dumps([{"id": "1", "function": CALL}]),
    ],
)
def test_tool_calls_are_parsed_in_every_common_format(calls: Any) -> None:
    completion = read_reply(reply({"content": None, "tool_calls": calls}))
    assert completion.message["tool_calls"] == [{"id": "1", "type": "function", "function": CALL}]


def test_the_older_function_call_format_is_parsed() -> None:
    [call] = read_reply(reply({"content": None, "function_call": CALL})).message["tool_calls"]
    assert call["function"] == CALL


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"prompt_tokens": 3}, (3, 0)),
        ({"prompt_tokens": 3.0, "completion_tokens": "4"}, (3, 4)),
        ({"prompt_tokens": 2**64, "completion_tokens": 4}, None),
        ({"prompt_tokens": -1, "completion_tokens": 4}, None),
        ({"prompt_tokens": [3], "completion_tokens": 4}, None),
        ({"prompt_tokens": float("nan"), "completion_tokens": 4}, None),
        ({"total_tokens": 7}, None),
        ("many", None),
        ([1, 2], None),
        (None, None),
    ],
)
def test_invalid_token_counts_are_unknown(usage: Any, counts: tuple[int, int] | None) -> None:
    read = read_reply(reply({"content": "42"}, usage=usage)).usage
    assert read == (counts and {"prompt_tokens": counts[0], "completion_tokens": counts[1]})


@pytest.mark.parametrize(
    ("usage", "cached", "reasoning"),
    [
        ({}, None, None),
        ({"prompt_tokens_details": None, "completion_tokens_details": {}}, None, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0, None),
        ({"prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 1}, 2, None),
        ({"cache_read_input_tokens": 2, "cache_creation_input_tokens": 1}, 2, None),
        ({"cached_tokens": 2, "reasoning_tokens": 3}, 2, 3),
        ({"prompt_tokens_details": {"cached_tokens": None}, "cached_tokens": 1}, 1, None),
        ({"completion_tokens_details": {"reasoning_tokens": 4}}, None, 4),
        ({"input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 2}}, 1, 2),
        ({"prompt_tokens_details": {"cached_tokens": -1}, "completion_tokens_details": [4]}, None, None),
        ({"prompt_tokens_details": {"cached_tokens": 2**64}}, None, None),
    ],
)
def test_cached_and_reasoning_tokens_are_found_under_every_common_name(
    usage: dict[str, Any], cached: int | None, reasoning: int | None
) -> None:
    read = read_reply(reply({"content": "42"}, usage={"prompt_tokens": 3, "completion_tokens": 4, **usage})).usage
    assert read is not None
    assert (read.get("cached_tokens"), read.get("reasoning_tokens")) == (cached, reasoning)


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"reasoning_content": "so"}, {"reasoning_content": "so"}),
        ({"reasoning": "so"}, {"reasoning": "so"}),
        ({"reasoning_content": "so", "reasoning": "so"}, {"reasoning_content": "so"}),
        ({"reasoning_content": "", "reasoning": "so"}, {"reasoning": "so"}),
        ({"reasoning": [{"type": "text", "text": "s"}, {"type": "text", "text": "o"}]}, {"reasoning": "so"}),
        ({"thinking": "so"}, {"reasoning_content": "so"}),
        (
            {"content": [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "42"}]},
            {"reasoning_content": "so"},
        ),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}, "42"]},
            {"reasoning_content": "so"},
        ),
        ({"reasoning": "so", "reasoning_details": DETAILS}, {"reasoning": "so", "reasoning_details": DETAILS}),
        ({"reasoning_details": DETAILS}, {"reasoning_details": DETAILS}),
        ({"reasoning_details": "no list"}, {}),
        ({"reasoning_content": None}, {}),
        ({"reasoning": {"effort": "high"}}, {}),
        ({"reasoning": True}, {}),
        ({"reasoning_content": f"so {SURROGATE}"}, {"reasoning_content": "so \ufffd"}),
    ],
)
def test_reasoning_is_kept_under_the_name_that_the_endpoint_used(
    message: dict[str, Any], reasoning: dict[str, Any]
) -> None:
    read = read_reply(reply({"content": "42", **message})).message
    assert read == {"role": "assistant", "content": "42", **reasoning}


def test_a_streamed_reply_has_everything_that_its_chunks_had() -> None:
    head = {"id": "c-1", "object": "chat.completion.chunk", "model": "m-2026", "provider": "p"}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "s", "reasoning_details": [{"text": "s"}]},
        {"reasoning": "o", "reasoning_details": [{"text": "o"}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "sig"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "x"}]},
        {"content": "4", "annotations": None},
        {"content": "2"},
    ]

    async def stream() -> AsyncIterator[Any]:
        for delta in deltas:
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 7}]}
        yield {**head, "choices": [], "usage": {"prompt_tokens": 1}, "service_tier": "flex"}

    assembled = asyncio.run(assemble_stream(stream()))
    assert assembled == {
        "id": "c-1",
        "model": "m-2026",
        "provider": "p",
        "service_tier": "flex",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "stop_reason": 7,
                "message": {
                    "role": "assistant",
                    "content": "42",
                    "reasoning": "so",
                    "reasoning_details": [
                        {"text": "s"},
                        {"text": "o"},
                        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "sig"},
                        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 1},
    }
    assert read_reply(assembled).message["reasoning"] == "so"
    assert read_reply(assembled).model == "m-2026"


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "<html>",
        None,
        7,
        {"choices": []},
        {"choices": {}},
        {"choices": [None]},
        {"choices": [{"text": "x"}]},
        reply("text"),
        reply({"content": True}),
        reply({"tool_calls": ["not json"]}),
        reply({"tool_calls": [7]}),
        reply({"tool_calls": [{}]}),
        {"error": {"message": f"out of order {SURROGATE}"}},
    ],
)
def test_malformed_replies_are_shown_in_the_error(body: Any) -> None:
    with pytest.raises(MalformedReply, match="not a chat completion") as refused:
        read_reply(body)
    str(refused.value).encode()


def test_a_reply_nested_too_deeply_is_malformed() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(MalformedReply):
        read_reply(reply({"content": None, "tool_calls": [{"name": "f", "arguments": {"x": deep}}]}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "name", "function", "arguments", "parameters", "text", "type", "content"]), inner
        )
    ),
    max_leaves=8,
)
shaped = st.builds(
    lambda content, calls, old, finish, usage: {
        "choices": [
            {"message": {"content": content, "tool_calls": calls, "function_call": old}, "finish_reason": finish}
        ],
        "usage": usage,
    },
    *[anything] * 4,
    st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), anything) | anything,
)


def check(body: Any) -> None:
    """Check that a completion can be stored: well-formed text, valid counts, complete calls."""
    try:
        completion = read_reply(body)
    except MalformedReply as error:
        str(error).encode()
        return
    json.dumps(completion.message, ensure_ascii=False).encode()
    assert isinstance(completion.message["content"], str | None)
    for call in completion.message.get("tool_calls", ()):
        assert isinstance(call["id"], str)
        assert [type(value) for value in call["function"].values()] == [str, str]
    assert completion.usage is None or all(0 <= count < 2**63 for count in completion.usage.values())
    assert completion.finish_reason


@given(anything | shaped)
def test_any_json_is_parsed_or_malformed(body: Any) -> None:
    check(body)


@given(st.lists(anything | st.builds(lambda delta: {"choices": [{"delta": delta}]}, anything), max_size=4))
def test_any_stream_is_parsed_or_malformed(chunks: list[Any]) -> None:
    async def stream() -> AsyncIterator[Any]:
        for chunk in [*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]:
            yield chunk

    try:
        body = asyncio.run(assemble_stream(stream()))
    except MalformedReply:
        return
    check(body)
