"""Properties of the dialects: conversations keep their meaning, and malformed bodies are rejected with a reason."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paragent.errors import RequestRejected
from paragent.models.base import Completion
from paragent.models.dialects import DIALECTS, ChatRequest
from paragent.models.replies import MalformedReply

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OTHERS = ["responses", "anthropic"]
NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
IMAGES = st.one_of(
    st.binary(min_size=1, max_size=8).map(lambda data: f"data:image/png;base64,{base64.b64encode(data).decode()}"),
    st.just("https://example.com/a.png"),
).map(lambda url: {"type": "image_url", "image_url": {"url": url}})
PARTS = st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}) | IMAGES, min_size=2, max_size=4)
CONTENT = TEXTS | PARTS


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw a conversation with instructions, images, parallel tool calls, their results and reasoning."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(CONTENT)})
        for step in range(draw(st.integers(0, 2))):
            message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | TEXTS)}
            if draw(st.booleans()):
                message[draw(st.sampled_from(["reasoning_content", "reasoning"]))] = draw(TEXTS)
            ids = [f"call_{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            message["tool_calls"] = [_call(draw, call_id) for call_id in ids]
            messages.append(message)
            messages += [{"role": "tool", "tool_call_id": call_id, "content": draw(CONTENT)} for call_id in ids]
        messages.append({"role": "assistant", "content": draw(TEXTS)})
    return messages


def _call(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    arguments = draw(st.dictionaries(NAMES, JSON, max_size=3).map(json.dumps) | st.just("{not json"))
    return {"id": call_id, "type": "function", "function": {"name": draw(NAMES), "arguments": arguments}}


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": SCHEMA}}


TOOLS = st.lists(NAMES.map(tool), unique_by=lambda one: str(one["function"]["name"]), min_size=1, max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> ChatRequest:
    tools = draw(TOOLS)
    name = tools[0]["function"]["name"]
    options = draw(
        st.fixed_dictionaries(
            {"max_completion_tokens": st.integers(1, 9999)},
            optional={
                "temperature": st.floats(0, 2),
                "top_p": st.floats(0.01, 1),
                "reasoning_effort": st.sampled_from(["low", "high", "max"]),
                "parallel_tool_calls": st.just(False),
                "tool_choice": st.sampled_from(
                    ["auto", "none", "required", {"type": "function", "function": {"name": name}}]
                ),
                "response_format": st.just(
                    {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}
                ),
            },
        )
    )
    return ChatRequest(draw(conversations()), tools, options)


def meaning(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation in which equal arguments have the same text."""
    plain = copy.deepcopy(messages)
    for message in plain:
        for call in message.get("tool_calls") or ():
            try:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
    return plain


@pytest.mark.parametrize("name", OTHERS)
@FEW
@given(request=requests())
def test_a_chat_request_survives_another_protocol(name: str, request: ChatRequest) -> None:
    before = copy.deepcopy(request)
    dialect = DIALECTS[name]
    body = json.loads(json.dumps(dialect.write_request(request)))
    read = dialect.read_request(body)
    assert request == before
    assert meaning(read.messages) == meaning(request.messages)
    assert [{"strict": False, **tool["function"]} for tool in read.tools] == [
        {"strict": False, **tool["function"]} for tool in request.tools
    ]
    options = dict(request.options)
    if options.get("tool_choice") == "none" and name == "anthropic":
        options.pop("parallel_tool_calls", None)
    if options.get("parallel_tool_calls") is False and name == "anthropic":
        options.setdefault("tool_choice", "auto")
    assert {key: value for key, value in read.options.items() if key not in OTHERS} == options


@pytest.mark.parametrize("name", DIALECTS)
@FEW
@given(request=requests())
def test_a_request_that_is_read_and_written_again_is_the_same(name: str, request: ChatRequest) -> None:
    dialect = DIALECTS[name]
    body = dialect.write_request(request)
    assert dialect.write_request(dialect.read_request(body)) == body


@pytest.mark.parametrize("agent", DIALECTS)
@pytest.mark.parametrize("endpoint", DIALECTS)
@FEW
@given(conversation=conversations(), usage=st.tuples(st.integers(50, 99), st.integers(0, 50), st.integers(0, 9)))
def test_a_turn_comes_back_from_the_agent_as_the_endpoint_wrote_it(
    agent: str, endpoint: str, conversation: list[dict[str, Any]], usage: tuple[int, int, int]
) -> None:
    """The endpoint's reply goes to the agent in the agent's protocol, and back with the agent's next request."""
    prompt, cached, reasoning = usage
    counts = {"prompt_tokens": prompt, "completion_tokens": 60, "cached_tokens": cached, "reasoning_tokens": reasoning}
    sent = next(message for message in conversation if message["role"] == "assistant")
    reason = "tool_calls" if sent.get("tool_calls") else "stop"
    reply = DIALECTS[endpoint].write_reply(Completion(sent, counts, reason, model="m"), {})
    completion = DIALECTS[endpoint].read_reply(json.loads(json.dumps(reply)))
    assert completion.usage == counts
    assert completion.finish_reason == reason
    assert completion.model == "m"

    shown = DIALECTS[agent].write_reply(completion, {"model": "x"})
    again = DIALECTS[agent].read_reply(json.loads(json.dumps(shown)))
    assert again.usage == counts
    assert again.finish_reason == reason
    assert meaning([plain(again.message)]) == meaning([plain(completion.message)]) == meaning([plain(sent)])


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning under one name, and without its form in another protocol."""
    kept = {key: value for key, value in message.items() if key not in {"anthropic_content", "responses_output"}}
    return kept | ({"reasoning_content": kept.pop("reasoning")} if "reasoning" in kept else {})


def bodies() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.sampled_from(sorted(DIALECTS)), requests()).map(
        lambda pair: (pair[0], DIALECTS[pair[0]].write_request(pair[1]))
    )


def damaged(data: st.DataObject, body: dict[str, Any]) -> dict[str, Any]:
    """Replace or remove a value at a random place."""
    body = json.loads(json.dumps(body))
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    if isinstance(place, dict) and data.draw(st.booleans()):
        del place[key]
    else:
        place[key] = data.draw(JSON)
    return body


@FEW
@given(chosen=bodies(), data=st.data())
def test_a_damaged_request_is_read_or_rejected(chosen: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    name, body = chosen
    with contextlib.suppress(RequestRejected):
        request = DIALECTS[name].read_request(damaged(data, body))
        for other in DIALECTS.values():
            with contextlib.suppress(RequestRejected):
                other.write_request(request)


@pytest.mark.parametrize("name", DIALECTS)
@FEW
@given(body=JSON)
def test_a_body_that_is_no_request_is_rejected(name: str, body: Any) -> None:
    with pytest.raises(RequestRejected):
        DIALECTS[name].read_request(body)


@FEW
@given(name=st.sampled_from(sorted(DIALECTS)), conversation=conversations(), data=st.data())
def test_a_damaged_reply_is_read_or_malformed(
    name: str, conversation: list[dict[str, Any]], data: st.DataObject
) -> None:
    sent = conversation[-1]
    reply = DIALECTS[name].write_reply(Completion(sent, {"prompt_tokens": 1, "completion_tokens": 1}), {})
    with contextlib.suppress(MalformedReply):
        completion = DIALECTS[name].read_reply(damaged(data, reply))
        for dialect in DIALECTS.values():
            assert b"".join(dialect.stream(dialect.write_reply(completion, {})))
