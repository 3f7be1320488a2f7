"""Conversions between protocols, case by case: what each protocol calls a thing, and what it does not have."""

from __future__ import annotations

from typing import Any

import pytest

from paragent.errors import RequestRejected
from paragent.models.base import Completion
from paragent.models.dialects import DIALECTS

CHAT, RESPONSES, ANTHROPIC = (DIALECTS[name] for name in ("chat", "responses", "anthropic"))
USER = {"role": "user", "content": "Hi"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_an_image_in_the_result_of_a_tool() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    blocks = [{"type": "text", "text": "a cat"}, {"type": "image", "source": source}]
    results = [{"type": "tool_result", "tool_use_id": "c1", "content": blocks}, {"type": "text", "text": "Go on."}]
    body = {
        "max_tokens": 9,
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
            {"role": "user", "content": results},
        ],
    }
    request = ANTHROPIC.read_request(body)
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    assert CHAT.write_request(request)["messages"][2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        {"role": "user", "content": [image]},
        {"role": "user", "content": "Go on."},
    ]
    [output] = [item for item in RESPONSES.write_request(request)["input"] if item["type"] == "function_call_output"]
    assert output["output"] == [
        {"type": "input_text", "text": "a cat"},
        {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
    ]
    assert ANTHROPIC.write_request(request)["messages"] == body["messages"]


@pytest.mark.parametrize(("text", "expected"), [("no file", "Error: no file"), ("error 7", "error 7"), ("", "Error")])
def test_an_error_of_a_tool(text: str, expected: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": text, "is_error": True}
    body = {
        "max_tokens": 9,
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
            {"role": "user", "content": [result]},
        ],
    }
    request = ANTHROPIC.read_request(body)
    assert CHAT.write_request(request)["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": expected}
    assert RESPONSES.write_request(request)["input"][-1]["output"] == expected
    assert ANTHROPIC.write_request(request)["messages"][-1]["content"] == [result]


def test_a_custom_tool_is_a_function_for_endpoints_that_lack_it() -> None:
    body = {"input": "Hi", "tools": [{"type": "custom", "name": "patch", "description": "applies a patch"}]}
    request = RESPONSES.read_request(body)
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    function = {"name": "patch", "description": "applies a patch", "parameters": schema}
    assert CHAT.write_request(request)["tools"] == [{"type": "function", "function": function}]
    assert ANTHROPIC.write_request(request)["tools"][0]["input_schema"] == schema
    assert RESPONSES.write_request(request)["tools"] == body["tools"]
    call = {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": '{"input": "*** Begin"}'}}
    reply = RESPONSES.write_reply(Completion({"role": "assistant", "content": None, "tool_calls": [call]}, None), body)
    [item] = reply["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "*** Begin")


def test_only_some_tools_are_allowed() -> None:
    tools: list[dict[str, Any]] = [{"type": "function", "name": name, "parameters": {}} for name in ("look", "touch")]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    request = RESPONSES.read_request({"input": "Hi", "tools": tools, "tool_choice": allowed})
    written = ANTHROPIC.write_request(request)
    assert [tool["name"] for tool in written["tools"]] == ["look"]
    assert written["tool_choice"] == {"type": "any"}
    assert RESPONSES.write_request(request)["tool_choice"] == allowed


def test_instructions_in_the_middle_of_a_conversation_stay_there() -> None:
    messages = [{"role": "developer", "content": "A"}, USER, {"role": "developer", "content": "B"}, USER]
    request = CHAT.read_request({"messages": messages})
    written = ANTHROPIC.write_request(request)
    assert written["system"] == "A"
    assert [message["role"] for message in written["messages"]] == ["user", "system", "user"]
    roles = [item["role"] for item in RESPONSES.write_request(request)["input"]]
    assert roles == ["developer", "user", "developer", "user"]


def test_what_only_one_protocol_has_is_kept_for_it_and_rejected_by_others() -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    searching = ANTHROPIC.read_request({"max_tokens": 9, "messages": [USER], "tools": [tool]})
    reading = ANTHROPIC.read_request({"max_tokens": 9, "messages": [{"role": "user", "content": [document]}]})
    assert ANTHROPIC.write_request(searching)["tools"] == [tool]
    assert ANTHROPIC.write_request(reading)["messages"][0]["content"] == [document]
    for dialect in (CHAT, RESPONSES):
        with pytest.raises(RequestRejected, match="web_search_20250305"):
            dialect.write_request(searching)
        with pytest.raises(RequestRejected, match=r"document|anthropic"):
            dialect.write_request(reading)


UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("responses", {"stop": ["x"]}, "`stop`"),
    ("responses", {"n": 2}, "`n`"),
    ("anthropic", {"logit_bias": {"1": 2}}, "`logit_bias`"),
    ("anthropic", {"response_format": {"type": "json_object"}}, "json_schema"),
]


@pytest.mark.parametrize(("name", "options", "said"), UNSUPPORTED)
def test_options_that_a_protocol_lacks_are_rejected(name: str, options: dict[str, Any], said: str) -> None:
    request = CHAT.read_request({"messages": [USER], **options})
    with pytest.raises(RequestRejected, match=said):
        DIALECTS[name].write_request(request)


STORED: list[dict[str, Any]] = [
    {"previous_response_id": "resp_1"},
    {"conversation": "conv_1"},
    {"prompt": {"id": "p"}},
    {"background": True},
    {"input": [{"type": "item_reference", "id": "msg_1"}]},
]


@pytest.mark.parametrize("fields", STORED, ids=lambda fields: next(iter(fields)))
def test_requests_that_need_stored_responses_are_rejected_with_advice(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected, match=r"send the|request a response"):
        RESPONSES.read_request({"input": "Hi"} | fields)


def test_a_turn_that_the_agent_changed_is_not_sent_in_its_original_form() -> None:
    blocks = [{"type": "thinking", "thinking": "T", "signature": "s"}, {"type": "text", "text": "yes"}]
    completion = ANTHROPIC.read_reply({"content": blocks, "stop_reason": "end_turn"})
    assert completion.message["anthropic_content"] == blocks
    changed = completion.message | {"content": "no"}
    written = ANTHROPIC.write_request(CHAT.read_request({"messages": [USER, changed, USER]}))
    assert written["messages"][1]["content"][-1] == {"type": "text", "text": "no"}


def test_a_reply_that_was_cut_says_why() -> None:
    message = {"role": "assistant", "content": "half"}
    for reason, stop, status in [("length", "max_tokens", "incomplete"), ("content_filter", "refusal", "incomplete")]:
        completion = Completion(message, None, reason)
        assert ANTHROPIC.write_reply(completion, {})["stop_reason"] == stop
        assert RESPONSES.write_reply(completion, {})["status"] == status
        for dialect in DIALECTS.values():
            assert dialect.read_reply(dialect.write_reply(completion, {})).finish_reason == reason
