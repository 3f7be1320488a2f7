"""Reasoning goes back to the endpoint with the next turn, in the form that the endpoint accepts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paragent.errors import RequestRejected
from paragent.models import Completion, ModelSettings, Sampling, open_model
from paragent.models.adaptations import ChatAdaptations
from paragent.testing import OpenAIServer, Script

ASK = {"role": "user", "content": "what is it?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
DETAILS = [{"type": "reasoning.encrypted", "data": "abc"}]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "it"}
THOUGHTS = {"role": "assistant", "content": "hm", "reasoning_content": "so"}


def converse(server: OpenAIServer, *conversations: list[dict[str, Any]], **settings: Any) -> list[Completion]:
    """Send conversations one after the other with one model."""

    async def run() -> list[Completion]:
        model = open_model(ModelSettings(name="m", base_url=server.url, api_key="k", max_retries=0, **settings))
        try:
            return [await model.complete(messages, [TOOL]) for messages in conversations]
        finally:
            await model.close()

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool_format", ["native", "text"])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_sent_back_under_the_same_name(name: str, tool_format: str, stream: bool) -> None:
    said = {"role": "assistant", "content": "hm", name: "so", "reasoning_details": DETAILS}
    with OpenAIServer(Script(default={"message": said}), keep_requests=True) as server:
        [first] = converse(server, [ASK], tool_format=tool_format, stream=stream)
        first.message["tool_calls"] = [CALL]
        converse(server, [ASK, first.message, RESULT], tool_format=tool_format, stream=stream)
        turn = next(one for one in server.seen.bodies[-1]["messages"] if one["role"] == "assistant")
    assert (turn[name], turn["reasoning_details"]) == ("so", DETAILS)


def test_an_endpoint_that_rejects_reasoning_gets_no_more_of_it() -> None:
    conversation = [ASK, THOUGHTS, ASK]
    with OpenAIServer(Script(rejects_reasoning=True), keep_requests=True) as server:
        first, second = converse(server, conversation, conversation)
        sent = ["reasoning_content" in body["messages"][1] for body in server.seen.bodies]
    assert sent == [True, False, False], "the third request is the second turn"
    assert (first.message["content"], first.retries, second.retries) == ("42", 1, 0)
    assert "reasoning_content" in THOUGHTS, "the conversation itself is not changed"


def test_an_endpoint_that_demands_reasoning_gets_it_with_each_turn() -> None:
    conversation = [ASK, THOUGHTS, ASK, {"role": "assistant", "content": "no thoughts"}, ASK]
    with OpenAIServer(Script(demands_reasoning=True), keep_requests=True) as server:
        completion, accepted, again = converse(server, conversation, [ASK, THOUGHTS, ASK], conversation)
        bodies = server.seen.bodies
    assert (completion.retries, accepted.retries, again.retries) == (1, 0, 0)
    assert [one["messages"][1]["reasoning_content"] for one in bodies] == ["so"] * 4
    assert bodies[1]["messages"][3]["reasoning_content"] == " "


def test_reasoning_under_another_name_satisfies_an_endpoint_that_demands_it() -> None:
    said = {"role": "assistant", "content": "hm", "reasoning": "so"}
    with OpenAIServer(Script(demands_reasoning=True), keep_requests=True) as server:
        converse(server, [ASK, said, ASK])
        assert server.seen.bodies[-1]["messages"][1]["reasoning_content"] == "so"


def test_an_endpoint_that_accepts_neither_form_rejects_the_request() -> None:
    with OpenAIServer(Script(demands_reasoning=True, rejects_reasoning=True)) as server:
        with pytest.raises(RequestRejected, match="reasoning_content"):
            converse(server, [ASK, THOUGHTS, ASK])
        assert server.seen.requests <= 4


def test_the_limit_of_a_reply_gets_the_name_that_the_endpoint_accepts() -> None:
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    with OpenAIServer(Script(rejects={"max_tokens": message}), keep_requests=True) as server:
        converse(server, [ASK], [ASK], sampling=Sampling(max_tokens=9))
        first, second, third = server.seen.bodies
    assert (first["max_tokens"], second["max_completion_tokens"], third["max_completion_tokens"]) == (9, 9, 9)
    assert "max_tokens" not in second | third


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model.",
        "Your reasoning is not allowed here",
        "'stream' must be a boolean",
    ],
)
def test_other_rejections_change_nothing(message: str) -> None:
    adaptations = ChatAdaptations()
    request = {"messages": [ASK, THOUGHTS], "max_tokens": 1}
    assert not adaptations.learn(request, message)
    assert adaptations.apply(dict(request)) == request
