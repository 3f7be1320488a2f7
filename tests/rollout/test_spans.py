"""Spans made from records: whatever a trajectory has, the tree is well formed, limited and without contents by default."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paragent.rollout.span_contents import MOST_CONTENT
from paragent.rollout.spans import ExecutionSpans, Span, TracedRun
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import pack_trajectory, unpack_trajectory

RUN = TracedRun(
    run_id="run-1",
    run_name="run",
    session=1,
    environment="math",
    engine="local",
    agent="ChatAgent",
    model="m",
    provider="openai",
    server={"server.address": "localhost", "server.port": 80},
    request={},
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TIMES = st.floats(0, 20, allow_nan=False)
STEPS = st.builds(
    lambda kind, turn, at, seconds, more: more | {"kind": kind, "turn": turn, "at": at, "seconds": seconds},
    st.sampled_from(["model", "tool", "agent", "judge", "machine", "score", ["model"]]),
    st.integers(0, 5),
    TIMES | ANYTHING,
    TIMES | ANYTHING,
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("name", "call", "usage", "model", "messages", "request", "response", "finish_reason", "error", "retries"),
            ANYTHING,
        ),
    ),
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | ANYTHING},
    optional=dict.fromkeys(("content", "tool_calls", "tool_call_id", "images", "reasoning_content"), ANYTHING),
)
TRAJECTORIES = ANYTHING | st.fixed_dictionaries(
    {
        "steps": st.lists(STEPS | ANYTHING, max_size=12) | ANYTHING,
        "messages": st.lists(MESSAGES | ANYTHING, max_size=6),
    },
    optional={"tools": ANYTHING},
)


def result(**fields: Any) -> RolloutResult:
    return RolloutResult("a", 1, RolloutStatus.COMPLETED, **{"number": 7, "started": 1000.0, "ended": 1010.0} | fields)


def made(content: bool, execution: RolloutResult, trajectory: Any) -> Span:
    """Return the tree of an execution."""
    spans = ExecutionSpans(RUN, content=content)
    span = spans.execution(execution)
    spans.add_steps(span, execution, trajectory)
    return span


def check(span: Span) -> None:
    """Check that children lie within their parents and that all attributes can be sent."""
    for name, value in span.attributes.items():
        assert isinstance(value, str | bool | int | float | list), name
        if isinstance(value, str):
            assert len(value) <= MOST_CONTENT, name
        elif isinstance(value, int):
            assert abs(value) < 2**63, name
    for child in span.children:
        assert span.start <= child.start <= child.end <= span.end
        check(child)


@given(TRAJECTORIES, st.booleans())
def test_every_trajectory_has_a_well_formed_tree(trajectory: Any, content: bool) -> None:
    stored = unpack_trajectory(pack_trajectory(trajectory))
    span = made(content, result(), stored)
    check(span)
    steps = stored.get("steps") if isinstance(stored, dict) else None
    known = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    kinds = ("model", "tool", "agent", "judge")
    timed = [step for step in known if step.get("kind") in kinds and type(step.get("turn")) is int]
    calls = [step for step in timed if step["kind"] != "agent"]
    assert span.count() == 1 + len(
        {step["turn"] for step in timed if step["turn"] > 0 and step["kind"] != "judge"}
    ) + len(calls)


def step(kind: str, turn: int, at: float, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"kind": kind, "turn": turn, "at": at, "seconds": seconds, **facts}


def test_times_are_those_of_the_records() -> None:
    steps = [
        {"kind": "machine", "machine": "m1", "address": "10.0.0.1"},
        step("model", 1, 1.0, 2.0),
        step("tool", 1, 3.0, 1.0, name="look", call="c1"),
        step("tool", 1, 3.5, 2.5, name="look", call="c2"),
        step("model", 2, 6.0, 60.0),
    ]
    span = made(False, result(), {"steps": steps})
    assert (span.start, span.end) == (1000.0, 1010.0)
    assert [(turn.start, turn.end) for turn in span.children] == [(1001.0, 1006.0), (1006.0, 1010.0)]
    calls = [(call.name, call.start, call.end) for call in span.children[0].children]
    tool = "execute_tool _OTHER"
    assert calls == [("chat m", 1001.0, 1003.0), (tool, 1003.0, 1004.0), (tool, 1003.5, 1006.0)]


def test_an_execution_without_a_known_start_has_its_duration() -> None:
    span = made(False, result(started=0.0, seconds=3.0, waited=1.0), None)
    assert (span.start, span.end, span.children) == (1006.0, 1010.0, [])


def test_a_model_call_has_what_the_endpoint_returned() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "cached_tokens": 8, "reasoning_tokens": 3}
    facts = {"model": "m-2", "request_id": "req_1", "retries": 2, "waited": 1.5, "finish_reason": "length"}
    call = step("model", 1, 0, 1, usage=usage, response={"id": "chatcmpl-1", "model": "m-2-2026"}, **facts)
    [turn] = made(False, result(), {"steps": [call]}).children
    [chat] = turn.children
    expected = {
        "gen_ai.request.model": "m-2",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "m-2-2026",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "paragent.request_id": "req_1",
        "paragent.retries": 2,
        "paragent.seconds.waited": 1.5,
    }
    assert chat.name == "chat m-2"
    assert {name: chat.attributes.get(name) for name in expected} == expected


def call_message(identifier: str, at: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": json.dumps({"at": at})}
    return {"role": "assistant", "tool_calls": [{"id": identifier, "type": "function", "function": function}]}


def test_calls_are_matched_although_an_endpoint_repeats_their_ids() -> None:
    messages = [
        {"role": "user", "content": "?"},
        call_message("call_0", "left"),
        {"role": "tool", "tool_call_id": "call_0", "content": "a door", "images": ["step_1.png"]},
        call_message("call_0", "right"),
        {"role": "tool", "tool_call_id": "call_0", "content": "a wall"},
    ]
    steps = [
        step("model", 1, 0, 1, messages=1),
        step("tool", 1, 1, 1, name="look", call="call_0"),
        step("model", 2, 2, 1, messages=3),
        step("tool", 2, 3, 1, name="look", call="call_0"),
    ]
    span = made(True, result(), {"messages": messages, "steps": steps})
    tools = [turn.children[1].attributes for turn in span.children]
    assert [json.loads(str(one["gen_ai.tool.call.arguments"]))["at"] for one in tools] == ["left", "right"]
    assert [one["gen_ai.tool.call.result"] for one in tools] == ["a door", "a wall"]
    sent = json.loads(str(span.children[1].children[0].attributes["gen_ai.input.messages"]))
    image = {"type": "file", "modality": "image", "mime_type": "image/png", "file_id": "step_1.png"}
    assert sent[-1]["parts"][1] == image


def test_of_a_long_conversation_the_last_messages_are_sent() -> None:
    messages = [{"role": "user", "content": f"{n}" * 20_000} for n in range(8)]
    messages.append({"role": "assistant", "content": "done", "reasoning_content": "hm"})
    call = step("model", 1, 0, 1, messages=8)
    span = made(True, result(), {"messages": messages, "steps": [call]})
    chat = span.children[0].children[0].attributes
    sent = json.loads(str(chat["gen_ai.input.messages"]))
    assert chat["paragent.messages"] == 8
    assert [message["parts"][0]["content"][0] for message in sent] == ["5", "6", "7"]
    assert sent[-1]["parts"][0]["content"].endswith("characters left out)")
    [said] = json.loads(str(chat["gen_ai.output.messages"]))
    assert [part["type"] for part in said["parts"]] == ["reasoning", "text"]
