"""The scripted endpoint, which writes replies with the dialects, as the packages `openai` and `anthropic` see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from paragent.testing import Fault, OpenAIServer, Script
from paragent.testing.toy_tokens import END, decode

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "call_2", "type": "function", "function": {"name": "mul", "arguments": "{}"}},
]
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
TURN = {"role": "assistant", "content": "Let me see: 3 ≥ 2", "reasoning_content": "Think.", "tool_calls": CALLS}
SCRIPT = [{"message": TURN, "usage": USAGE}, "12"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Script(default=SCRIPT), keep_requests=True) as server:
        yield server


@pytest.fixture
def client(server: OpenAIServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="k", base_url=server.url, _strict_response_validation=True) as client:
        yield client


@pytest.fixture
def claude(server: OpenAIServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="k", base_url=server.anthropic_url, _strict_response_validation=True) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions(server: OpenAIServer, client: openai.OpenAI, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "3 times 4?"}]
    tools: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    if stream:
        with client.chat.completions.stream(
            model="m", messages=messages, tools=tools, stream_options={"include_usage": True}
        ) as events:
            completion: Any = events.get_final_completion()
    else:
        completion = client.chat.completions.create(model="m", messages=messages, tools=tools)
    message = completion.choices[0].message
    assert message.content == TURN["content"]
    assert message.reasoning_content == "Think."
    assert [call.function.name for call in message.tool_calls] == ["add", "mul"]
    assert completion.usage.completion_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_of_responses(server: OpenAIServer, client: openai.OpenAI, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": "3 times 4?"}]
    tools: list[Any] = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]

    def ask() -> Any:
        if not stream:
            return client.responses.create(model="m", input=items, tools=tools, instructions="Be brief.")
        with client.responses.stream(model="m", input=items, tools=tools, instructions="Be brief.") as events:
            kinds = [event.type for event in events]
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            return events.get_final_response()

    first = ask()
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert first.output_text == TURN["content"]
    assert first.output[0].summary[0].text == "Think."
    assert (first.usage.input_tokens_details.cached_tokens, first.usage.output_tokens_details.reasoning_tokens) == (
        4,
        2,
    )
    items += [item.model_dump(exclude_none=True, exclude={"parsed", "parsed_arguments"}) for item in first.output]
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        for call in first.output
        if call.type == "function_call"
    ]
    assert ask().output_text == "12"


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_of_anthropic_messages(server: OpenAIServer, claude: anthropic.Anthropic, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "3 times 4?"}]
    tools: list[Any] = [{"name": "add", "input_schema": SCHEMA}]

    def ask() -> Any:
        if not stream:
            return claude.messages.create(model="m", max_tokens=99, messages=messages, tools=tools, system="Be brief.")
        with claude.messages.stream(
            model="m", max_tokens=99, messages=messages, tools=tools, system="Be brief."
        ) as events:
            return events.get_final_message()

    first = ask()
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert first.content[2].input == {"a": 1}
    assert first.stop_reason == "tool_use"
    assert (first.usage.input_tokens, first.usage.cache_read_input_tokens) == (6, 4)
    messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "12"}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
    assert ask().content[0].text == "12"


def test_errors_have_the_form_of_the_protocol(claude: anthropic.Anthropic, server: OpenAIServer) -> None:
    server.script.context_limit = 5
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "a long question"}])
    server.script.faults = [Fault(529, message="Overloaded")]
    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        claude.with_options(max_retries=0).messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "a"}]
        )


def test_a_stored_response_is_refused_with_advice(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="send the whole conversation in `input`"):
        client.responses.create(model="m", input="and now?", previous_response_id="resp_1")


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_continue_those_of_the_turn_before(server: OpenAIServer, stream: bool) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "3 times 4?"}]
    first = ask_for_tokens(server, messages, stream)
    assert decode(first["ids"]).endswith("<|end|>")
    assert len(first["logprobs"]) == len(first["ids"])
    assert all(value <= 0 for value in first["logprobs"])
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in CALLS]
    second = ask_for_tokens(server, [*messages, TURN, *results], stream)
    known = first["prompt"] + first["ids"]
    assert second["prompt"][: len(known)] == known
    assert second["ids"] == [*b"12", END]


def ask_for_tokens(server: OpenAIServer, messages: list[dict[str, Any]], stream: bool) -> dict[str, list[Any]]:
    """Return the tokens of a reply; those of a streamed one come with several chunks."""
    body = {"model": "m", "messages": messages, "return_token_ids": True, "logprobs": True, "stream": stream}
    reply = httpx.post(f"{server.url}/chat/completions", json=body)
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line] if stream else [reply.text]
    replies = [json.loads(line) for line in lines if line != "[DONE]"]
    choices = [choice for one in replies for choice in one["choices"]]
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content") or ()]
    return {
        "prompt": [one for reply in replies for one in reply.get("prompt_token_ids") or ()],
        "ids": [one for choice in choices for one in choice.get("token_ids") or ()],
        "logprobs": [entry["logprob"] for entry in entries],
    }
