"""Rollouts with each protocol of endpoints (`--api`), of the built-in agent and of agents with an SDK of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from paragent import RolloutConfig, RolloutWorker, run_parallel_rollout
from paragent.store import Journal
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script

AGENTS = {
    "chat": "tests.rollout.gateway_agents:plain",
    "anthropic": "tests.rollout.gateway_agents:claude",
    "responses": "tests.rollout.test_protocols:responses",
}
QUESTION = "What is 40 + 2?"
ARGUMENTS = {"a": 40, "b": 2}
SIGNED = [
    {"type": "thinking", "thinking": "I add.", "signature": "EqQBCkYIBRgC"},
    {"type": "redacted_thinking", "data": "EmwKAhgB"},
    {"type": "text", "text": "One moment."},
    {"type": "tool_use", "id": "call_1", "name": "add", "input": ARGUMENTS},
]
ENCRYPTED = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
    },
    {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAAABp"},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "status": "completed",
        "name": "add",
        "arguments": json.dumps(ARGUMENTS),
    },
]
TURN = {
    "role": "assistant",
    "content": "One moment.",
    "reasoning": "I add.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": json.dumps(ARGUMENTS)}}
    ],
}
FIRST = {"message": TURN | {"anthropic_content": SIGNED, "responses_output": ENCRYPTED}}


async def responses(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """A loop with a tool and the Responses API, streamed."""
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
    items: list[Any] = [{"role": "user", "content": task["question"]}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        while True:
            async with client.responses.stream(model="any", input=items, tools=[tool]) as stream:
                reply = await stream.get_final_response()
            items += [item.to_dict(exclude_none=True) for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            if not calls:
                return reply.output_text
            for call in calls:
                given = json.loads(call.arguments)
                output = str(given["a"] + given["b"])
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


def use(server: OpenAIServer, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OPENAI_BASE_URL", server.url)
    patch.setenv("ANTHROPIC_BASE_URL", server.anthropic_url)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        patch.setenv(name, "k")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "anthropic"])
def test_the_built_in_agent_solves_a_task(
    api: str, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text(json.dumps({"id": "1", "question": "What is 1/2 + 1/3?", "answer": "5/6"}))
    calling = {"tool": "calculator", "arguments": {"expression": "1/2 + 1/3"}}
    with OpenAIServer(Script(default=[calling, "5/6"]), keep_requests=True) as server:
        use(server, monkeypatch)
        config = RolloutConfig(
            mode="math",
            data=data,
            output_dir=tmp_path,
            run_name="run",
            model="m",
            api=api,
            stream=stream,
            engine="inline",
        )
        summary = run_parallel_rollout(config)
    assert (summary.done, summary.mean) == (1, 1.0)
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        [result] = journal.results("1")
    assert (result.turns, result.tool_calls) == (2, 1)
    assert ("input" if api == "responses" else "max_tokens") in server.seen.bodies[0]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("api", AGENTS)
def test_an_agent_of_any_protocol_brings_the_turn_back_as_the_endpoint_wrote_it(
    agent: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signatures, encrypted reasoning and the order of a turn survive the agent's own protocol."""
    first = {"message": TURN} if api == "chat" else FIRST
    with OpenAIServer(Script(default=[first, "It is 42."]), keep_requests=True) as server:
        use(server, monkeypatch)
        config = RolloutConfig(agent=AGENTS[agent], mode="math", metric="contains", model="m", api=api)
        result = RolloutWorker(config).run(BenchmarkTask("1", QUESTION, "42", {}))
    assert (result.answer, result.score, result.turns, result.tool_calls) == ("It is 42.", 1.0, 2, 1)
    assert result.trajectory is not None
    assert "branches" not in unpack_trajectory(result.trajectory)
    body = server.seen.bodies[1]
    if api == "anthropic":
        assert SIGNED in [message["content"] for message in body["messages"]]
    elif api == "responses":
        place = body["input"].index(ENCRYPTED[0])
        assert body["input"][place : place + 4] == ENCRYPTED
    else:
        [sent] = [message for message in body["messages"] if message["role"] == "assistant"]
        assert sent == TURN
