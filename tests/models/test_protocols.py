"""The models for the Responses API and Anthropic's Messages API, against the scripted endpoint."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from paragent.errors import ConfigError, ContextFull, EndpointDown, EndpointRefused, RequestRejected
from paragent.models import Completion, ModelSettings, Sampling, open_model
from paragent.models.dialects import DIALECTS
from paragent.testing import Fault, OpenAIServer, Script

APIS = ["responses", "anthropic"]
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SIGNED = [
    {"type": "thinking", "thinking": "I must look.", "signature": "EqQBCkYIBRgC"},
    {"type": "redacted_thinking", "data": "EmwKAhgB"},
    {"type": "text", "text": "One moment."},
    {"type": "tool_use", "id": "call_1", "name": "look", "input": {}},
]
ENCRYPTED = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "I must look."}],
        "encrypted_content": "gAAAAABo",
    },
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"},
]
REASONED = {
    "message": {
        "role": "assistant",
        "content": "One moment.",
        "tool_calls": [CALL],
        "anthropic_content": SIGNED,
        "responses_output": ENCRYPTED,
    },
    "usage": {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}},
}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(server: OpenAIServer, api: str, conversation: Any = ASK, tools: Any = (), **settings: Any) -> Completion:
    return converse(server, api, [conversation], tools, **settings)[0]


def converse(
    server: OpenAIServer, api: str, conversations: list[Any], tools: Any = (), **settings: Any
) -> list[Completion]:
    async def run() -> list[Completion]:
        url = server.anthropic_url if api == "anthropic" else server.url
        given: dict[str, Any] = {"max_retries": 1, "request_timeout": 10.0, "api_key": "k"} | settings
        model = open_model(ModelSettings(name="m", base_url=url, api=api, **given))
        try:
            return [await model.complete(one, tools) for one in conversations]
        finally:
            await model.close()

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_sent_back_as_it_was_received(api: str, stream: bool) -> None:
    with OpenAIServer(Script(default=[REASONED, "42"]), keep_requests=True) as server:
        first = ask(server, api, ASK, TOOLS, stream=stream)
        assert first.message["reasoning_content"] == "I must look."
        assert first.message["content"] == "One moment."
        assert first.message["tool_calls"] == [CALL]
        assert first.finish_reason == "tool_calls"
        assert first.usage == {"prompt_tokens": 9, "completion_tokens": 7, "cached_tokens": 5} | (
            {"reasoning_tokens": 0} if api == "responses" else {}
        )
        assert first.model == "m"
        result = {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}
        second = ask(server, api, [*ASK, first.message, result], TOOLS, stream=stream)
    assert second.message["content"] == "42"
    body = server.seen.bodies[1]
    if api == "anthropic":
        assert body["messages"][1] == {"role": "assistant", "content": SIGNED}
        assert body["system"] == "Be brief."
    else:
        assert body["input"][1:4] == ENCRYPTED
        assert body["instructions"] == "Be brief."
        assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])


def test_sampling_settings_have_the_names_of_the_protocol(api: str) -> None:
    sampling = Sampling(
        temperature=0.5, top_p=0.9, max_tokens=99, reasoning_effort="low", extra_body={"metadata": {"user_id": "u"}}
    )
    with OpenAIServer(keep_requests=True) as server:
        ask(server, api, sampling=sampling)
    [body] = server.seen.bodies
    expected: dict[str, Any] = {"model": "m", "temperature": 0.5, "top_p": 0.9, "metadata": {"user_id": "u"}}
    if api == "anthropic":
        expected |= {"max_tokens": 99, "output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}
    else:
        expected |= {"max_output_tokens": 99, "reasoning": {"effort": "low"}}
    assert {name: body[name] for name in expected} == expected


def test_sampling_settings_that_the_protocol_lacks_are_an_error(api: str) -> None:
    with OpenAIServer() as server, pytest.raises(ConfigError, match="--seed"):
        ask(server, api, sampling=Sampling(seed=1))


def test_a_forwarded_request_keeps_its_form(api: str) -> None:
    own = {
        "anthropic": {
            "model": "agent's",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "x"}}]}],
            "stream": True,
        },
        "responses": {"model": "agent's", "input": "Hi", "truncation": "auto", "stream": True},
    }[api]

    async def run(server: OpenAIServer) -> Completion:
        url = server.anthropic_url if api == "anthropic" else server.url
        model = open_model(ModelSettings(name="m", base_url=url, api=api, api_key="k"))
        assert model.dialect == api
        try:
            return await model.forward(own)
        finally:
            await model.close()

    with OpenAIServer(keep_requests=True) as server:
        completion = asyncio.run(run(server))
    added = {"store": False, "include": ["reasoning.encrypted_content"]} if api == "responses" else {}
    kept = {name: value for name, value in own.items() if name != "stream"}
    assert server.seen.bodies == [kept | {"model": "m"} | added]
    assert DIALECTS[api].read_reply(completion.response).message == {"role": "assistant", "content": "42"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 500, 0])
def test_a_failed_request_is_sent_again(api: str, status: int, stream: bool) -> None:
    fault = Fault(status, last=1, retry_after=0 if status else None)
    with OpenAIServer(Script(faults=[fault])) as server:
        completion = ask(server, api, stream=stream)
    assert completion.message["content"] == "42"
    assert completion.retries == 1


def test_an_overloaded_endpoint_refuses_requests_and_uses_up_no_retries() -> None:
    with OpenAIServer(Script(faults=[Fault(529, last=3, retry_after=0, message="Overloaded")])) as server:
        assert ask(server, "anthropic", max_retries=1).retries == 3


ERRORS = {
    "too long": (Fault(400, code="context_length_exceeded"), ContextFull),
    "wrong key": (Fault(401, message="invalid x-api-key"), EndpointRefused),
    "no credit": (Fault(400, message="Your credit balance is too low to access the API"), EndpointRefused),
    "rejected": (Fault(400, message="max_tokens: too high"), RequestRejected),
    "down": (Fault(500), EndpointDown),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_anthropic_are_the_errors_of_models(name: str) -> None:
    fault, expected = ERRORS[name]
    with OpenAIServer(Script(faults=[fault])) as server, pytest.raises(expected) as raised:
        ask(server, "anthropic", max_retries=0)
    if name == "wrong key":
        assert "Set ANTHROPIC_API_KEY to a key of this endpoint" in str(raised.value)


def test_thinking_of_another_endpoint_is_left_out_if_signatures_are_checked() -> None:
    foreign = {"role": "assistant", "content": "Hm.", "reasoning_content": "from elsewhere"}
    conversation = [*ASK, foreign, {"role": "user", "content": "And?"}]
    fault = Fault(400, last=1, message="messages.1.content.0: Invalid `signature` in `thinking` block")
    with OpenAIServer(Script(faults=[fault]), keep_requests=True) as server:
        converse(server, "anthropic", [conversation, conversation])
    sent = [[block["type"] for block in body["messages"][1]["content"]] for body in server.seen.bodies]
    assert sent == [["thinking", "text"], ["text"], ["text"]]


def test_a_model_without_encrypted_reasoning_is_not_asked_for_it_again() -> None:
    fault = Fault(400, last=1, message="Encrypted content is not supported with this model.")
    with OpenAIServer(Script(faults=[fault]), keep_requests=True) as server:
        converse(server, "responses", [ASK, ASK])
    assert [body["include"] for body in server.seen.bodies] == [["reasoning.encrypted_content"], [], []]


def test_the_key_is_missing(api: str) -> None:
    name = "ANTHROPIC_API_KEY" if api == "anthropic" else "OPENAI_API_KEY"
    with pytest.raises(ConfigError, match=name):
        open_model(ModelSettings(name="m", api=api))


def test_the_extra_is_missing() -> None:
    """In a process in which the package `anthropic` cannot be imported."""
    code = (
        "import sys, json; sys.modules['anthropic'] = None\n"
        "from paragent.models import ModelSettings, open_model\n"
        "from paragent.errors import MissingExtra\n"
        "try:\n    open_model(ModelSettings(name='m', api='anthropic', api_key='k'))\n"
        "except MissingExtra as error:\n    print(json.dumps(str(error)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100
    ).stdout
    assert "[anthropic]" in json.loads(printed)
