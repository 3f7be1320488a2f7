"""Requests that agents send through the gateway: `Model.forward` of a chat completions endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paragent.errors import RequestRejected, ToolsUnsupported
from paragent.models import Completion, ModelSettings, Sampling, open_model
from paragent.testing import OpenAIServer, Script

QUESTION = {"role": "user", "content": "what is it?"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
CALL_AS_TEXT = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'


def forward(server: OpenAIServer, request: dict[str, Any], **settings: Any) -> Completion:
    async def run() -> Completion:
        model = open_model(ModelSettings(name="m", base_url=server.url, api_key="k", max_retries=0, **settings))
        try:
            return await model.forward(request)
        finally:
            await model.close()

    return asyncio.run(run())


def test_a_request_is_sent_as_it_is_except_for_the_model() -> None:
    request = {
        "model": "theirs",
        "messages": [{**QUESTION, "name": "anna"}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "temperature": 0.5,
        "unknown_field": {"a": [1]},
    }
    with OpenAIServer(Script(default="it"), keep_requests=True) as server:
        completion = forward(server, request)
        [body] = server.seen.bodies
    assert body == {**request, "model": "m"}
    assert request["model"] == "theirs", "the agent's request is not changed"
    assert completion.message == {"role": "assistant", "content": "it"}
    assert completion.response["choices"][0]["message"]["content"] == "it"


def test_the_settings_of_the_run_replace_those_of_the_agent() -> None:
    asked = {
        "messages": [QUESTION],
        "temperature": 2.0,
        "top_p": 0.1,
        "seed": 1,
        "max_completion_tokens": 10_000,
        "reasoning_effort": "high",
        "stop": "x",
        "extra": 1,
        "kept": True,
    }
    sampling = Sampling(
        temperature=0.0,
        top_p=0.9,
        seed=7,
        max_tokens=50,
        reasoning_effort="low",
        stop=("END", "\n\n"),
        extra_body={"extra": 2},
    )
    with OpenAIServer(Script(), keep_requests=True) as server:
        forward(server, asked, sampling=sampling)
        [body] = server.seen.bodies
    assert body == {
        "model": "m",
        "messages": [QUESTION],
        "temperature": 0.0,
        "top_p": 0.9,
        "seed": 7,
        "max_tokens": 50,
        "reasoning_effort": "low",
        "stop": ["END", "\n\n"],
        "extra": 2,
        "kept": True,
    }


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_the_run_decides_whether_replies_are_streamed(stream: bool, asked: bool) -> None:
    request = {"messages": [QUESTION], "stream": asked, "stream_options": {"include_usage": False}}
    with OpenAIServer(Script(), keep_requests=True) as server:
        completion = forward(server, request, stream=stream)
        [body] = server.seen.bodies
    assert body.get("stream", False) is stream
    assert body.get("stream_options") == ({"include_usage": True} if stream else None)
    assert completion.response["choices"][0]["message"]["content"] == "42"
    assert completion.usage is not None


@pytest.mark.parametrize("request_body", [{}, {"messages": "hi"}, {"messages": [QUESTION], "tools": {"a": 1}}])
def test_what_is_not_a_request_is_rejected(request_body: dict[str, Any]) -> None:
    with OpenAIServer(Script()) as server:
        with pytest.raises(RequestRejected, match="messages"):
            forward(server, request_body)
        assert server.seen.requests == 0


def test_tool_calls_as_text_are_reported_or_parsed() -> None:
    request = {"messages": [QUESTION], "tools": [TOOL]}
    with OpenAIServer(Script(default=CALL_AS_TEXT), keep_requests=True) as server:
        with pytest.raises(ToolsUnsupported, match="--tool-format text"):
            forward(server, request)
        completion = forward(server, request, tool_format="text")
        assert "tools" not in server.seen.bodies[-1]
        with pytest.raises(RequestRejected, match="function"):
            forward(server, {**request, "tools": [{"type": "custom", "custom": {"name": "x"}}]}, tool_format="text")
    for message in (completion.message, completion.response["choices"][0]["message"]):
        assert message["tool_calls"][0]["function"]["name"] == "look"


def test_tools_of_other_types_are_passed_on() -> None:
    with OpenAIServer(Script(), keep_requests=True) as server:
        tools = [{"type": "web_search"}, {"type": "function"}]
        forward(server, {"messages": [QUESTION], "tools": tools}, hosted_tools=True)
        assert len(server.seen.bodies[0]["tools"]) == 2
