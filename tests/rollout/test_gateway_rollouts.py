"""Rollouts of agents that call the model through the gateway: what is recorded, charged and reported."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, RolloutConfig, RolloutWorker, run_parallel_rollout
from paragent.store import PendingRollout, RolloutResult, RolloutStatus
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import Fault, OpenAIServer, Script
from tests.rollout import gateway_agents

AGENTS = "tests.rollout.gateway_agents"
TASK = BenchmarkTask("1", "What is 40 + 2?", "42", {"difficulty": "low"})
ADDING = [{"tool": "add", "arguments": {"a": 40, "b": 2}}, "The sum is 42."]


def execute(server: OpenAIServer, agent: str, patch: pytest.MonkeyPatch, **settings: Any) -> RolloutResult:
    patch.setenv("OPENAI_BASE_URL", server.url)
    patch.setenv("OPENAI_API_KEY", "the key of the endpoint")
    given: dict[str, Any] = {"mode": "math", "metric": "contains", "model": "scripted"} | settings
    return RolloutWorker(RolloutConfig(agent=f"{AGENTS}:{agent}", **given)).run(TASK)


def trajectory_of(result: RolloutResult) -> Any:
    assert result.trajectory is not None
    return unpack_trajectory(result.trajectory)


def test_the_traceback_of_a_failed_function_has_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script()) as server:
        failed = execute(server, "expects_json", monkeypatch)
    assert (failed.status, failed.kind) == (RolloutStatus.FAILED, "JSONDecodeError")
    assert "json.JSONDecoder().decode(question)" in failed.error


def test_a_cut_reply_is_the_ending_of_an_own_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "The sum is"}, "finish_reason": "length"}
    with OpenAIServer(Script(default={"body": {"choices": [choice]}})) as server:
        result = execute(server, "plain", monkeypatch)
    assert (result.status, result.answer, result.ending) == (RolloutStatus.COMPLETED, "The sum is", "answer cut")


@pytest.mark.parametrize("agent", ["plain", "claude"])
def test_calls_are_turns_with_tool_results_and_tokens(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default=ADDING), keep_requests=True) as server:
        result = execute(server, agent, monkeypatch)
    assert (result.status, result.answer, result.score) == (RolloutStatus.COMPLETED, "The sum is 42.", 1.0)
    assert (result.turns, result.requests, result.tool_calls) == (2, 2, 1)
    assert result.prompt_tokens
    assert result.completion_tokens
    trajectory = trajectory_of(result)
    roles = [message["role"] for message in trajectory["messages"] if message["role"] != "system"]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert trajectory["messages"][-2]["content"] == "42"
    assert [tool["function"]["name"] for tool in trajectory["tools"]] == ["add"]
    steps = [(step["kind"], step["turn"], step["messages"]) for step in trajectory["steps"]]
    system = len(trajectory["messages"]) - len(roles)
    assert steps == [("model", 1, 1 + system), ("model", 2, 3 + system)]
    assert "branches" not in trajectory
    assert all(body["model"] == "scripted" for body in server.seen.bodies)


@pytest.mark.parametrize("agent", ["streamed", "responses"])
def test_other_protocols_have_the_same_record(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default="42")) as server:
        result = execute(server, agent, monkeypatch)
    assert (result.answer, result.turns) == ("42", 1)
    messages = trajectory_of(result)["messages"]
    assert [message["content"] for message in messages] == [TASK.question, "42"]


@pytest.mark.parametrize(("api", "agent"), [("anthropic", "plain"), ("responses", "claude"), ("anthropic", "streamed")])
def test_the_agent_may_use_another_protocol_than_the_endpoint(
    api: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(default=ADDING if agent in {"plain", "claude"} else "The sum is 42.")
    with OpenAIServer(script, keep_requests=True) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "the key of the endpoint")
        result = execute(server, agent, monkeypatch, api=api)
    assert (result.status, result.answer, result.score) == (RolloutStatus.COMPLETED, "The sum is 42.", 1.0), (
        result.error
    )
    trajectory = trajectory_of(result)
    roles = [message["role"] for message in trajectory["messages"] if message["role"] != "system"]
    assert roles == ["user", "assistant"] + ["tool", "assistant"] * (result.turns - 1)
    assert "branches" not in trajectory
    assert result.prompt_tokens


def test_an_agent_cannot_let_the_provider_act_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(), keep_requests=True) as server:
        result = execute(server, "asking_for_more", monkeypatch, api="responses")
        *refused, last = json.loads(result.answer or "")
        assert [status for status, _ in refused] == [400] * 4
        assert last == [200, ""]
        assert any("--agent-hosted-tools" in message for _, message in refused)
        assert [(body.get("tools"), body["store"]) for body in server.seen.bodies] == [(None, False)]
        allowed = execute(server, "asking_for_more", monkeypatch, api="responses", agent_hosted_tools=True)
    statuses = [status for status, _ in json.loads(allowed.answer or "")]
    assert statuses[1] == statuses[3] == 200


def test_a_rewritten_history_and_other_conversations_are_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default=["41", "42"])) as server:
        result = execute(server, "rewriting", monkeypatch)
    trajectory = trajectory_of(result)
    roles = [message["role"] for message in trajectory["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    branches = trajectory["branches"]
    assert [(one["parent"], one["shared"], len(one["messages"])) for one in branches] == [
        (0, 1, 2),
        (0, 0, 2),
        (0, 0, 2),
    ]
    steps = [(step.get("branch", 0), step["messages"]) for step in trajectory["steps"]]
    assert steps[:3] == [(0, 2), (0, 4), (1, 2)]
    assert sorted(steps[3:]) == [(2, 1), (3, 1)]


def test_images_are_files_of_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default=["41", "42"]), keep_requests=True) as server:
        result = execute(server, "pictures", monkeypatch)
    trajectory = trajectory_of(result)
    [name] = trajectory["messages"][0]["images"]
    assert trajectory["messages"][0]["content"] == TASK.question
    assert len(trajectory["messages"]) == 4
    assert result.files[name].startswith(b"\x89PNG")
    assert "base64" not in json.dumps(trajectory)
    assert "base64" in json.dumps(server.seen.bodies[1])


def test_refusals_and_errors_of_the_endpoint_are_invisible_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = (Fault(429, last=1, retry_after=0.05), Fault(500, first=2, last=2), Fault(0, first=3, last=3))
    with OpenAIServer(Script(default=ADDING, faults=faults)) as server:
        result = execute(server, "plain", monkeypatch)
    assert result.answer == "The sum is 42."
    steps = trajectory_of(result)["steps"]
    assert [step["retries"] for step in steps] == [3, 0]
    assert result.waited > 0
    assert result.waited >= sum(step["waited"] for step in steps) - 0.01, "it also waited for the start of the gateway"


def test_an_agent_that_fails_after_the_endpoint_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(faults=[Fault(500)])) as server:
        failed = execute(server, "failing", monkeypatch, max_retries=0)
        recovered = execute(server, "recovering", monkeypatch, max_retries=0)
    assert (failed.status, failed.kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint")
    assert "failed 1 time " in failed.error
    assert [step["kind"] for step in trajectory_of(failed)["steps"]] == ["model"]
    assert "EndpointDown" in trajectory_of(failed)["steps"][0]["error"]
    assert (recovered.status, recovered.kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint"), "it had no reply at all"


def test_a_wrong_key_for_the_endpoint_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(faults=[Fault(401)])) as server:
        result = execute(server, "failing", monkeypatch)
    assert (result.status, result.kind) == (RolloutStatus.INFRASTRUCTURE, "settings")


def test_a_mistake_of_the_agent_is_its_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script()) as server:
        result = execute(server, "failing_by_itself", monkeypatch)
    assert (result.status, result.kind) == (RolloutStatus.FAILED, "LookupError")
    assert len(trajectory_of(result)["messages"]) == 2


def test_an_agent_without_turns_left_ends_with_its_last_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default="42")) as server:
        result = execute(server, "endless", monkeypatch, max_turns=3)
    assert (result.status, result.ending, result.answer) == (RolloutStatus.COMPLETED, "turns used up", "42")
    assert server.seen.requests == result.turns == 3


def test_an_agent_whose_context_is_full_ends_with_its_last_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default=["41", "42"], context_limit=30)) as server:
        result = execute(server, "rewriting", monkeypatch)
    assert (result.status, result.ending, result.answer) == (RolloutStatus.COMPLETED, "context full", "41")


def test_calls_that_an_agent_leaves_behind_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(latency=30)) as server:
        result = execute(server, "leaving", monkeypatch)
    assert result.answer == "42"
    assert all(step.get("error") == "cancelled" for step in trajectory_of(result)["steps"] if step["kind"] == "model")


def test_the_time_limit_cancels_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(latency=30)) as server:
        result = execute(server, "streamed", monkeypatch, timeout=1.0)
    assert (result.status, result.kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint")
    [step] = [one for one in trajectory_of(result)["steps"] if one["kind"] == "model"]
    assert step["error"] == "cancelled"


def test_a_thread_that_outlives_its_rollout_cannot_call_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of one worker: the first one times out while its thread sleeps, and the second one wakes the thread."""
    with OpenAIServer(Script(default="42")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "the key of the endpoint")
        config = RolloutConfig(mode="math", model="scripted", agent=f"{AGENTS}:sleeping", timeout=1.0)
        worker = RolloutWorker(config)

        async def both() -> list[RolloutResult]:
            first = await worker(PendingRollout(TASK, 1))
            gateway_agents.wake.set()
            return [first, await worker(PendingRollout(TASK, 2))]

        first, second = asyncio.run(both())
    assert first.status is RolloutStatus.TIMED_OUT
    assert (second.status, second.answer) == (RolloutStatus.COMPLETED, "410")
    assert server.seen.requests == 0


def test_waiting_for_the_rate_limit_is_not_working_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default="42", faults=[Fault(429, last=1, retry_after=1.5)])) as server:
        result = execute(server, "streamed", monkeypatch, timeout=1.2)
    assert result.status is RolloutStatus.COMPLETED
    assert result.waited >= 1.5


def test_the_demo_model_answers_through_the_gateway() -> None:
    config = RolloutConfig(mode="math", model="demo", agent=f"{AGENTS}:streamed")
    result = RolloutWorker(config).run(BenchmarkTask("1", "Hello?", "x"))
    assert (result.status, result.turns) == (RolloutStatus.COMPLETED, 1)
    assert "scripted policy" in str(result.answer)


def test_a_function_with_other_parameters_gets_the_question_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script()) as server:
        result = execute(server, "without_model", monkeypatch)
    assert result.answer == TASK.question.upper()
    assert [one["role"] for one in trajectory_of(result)["messages"]] == ["user", "assistant"]
    assert server.seen.requests == 0


@pytest.mark.parametrize("agent", ["needs_more", "keyword_question"])
def test_a_function_with_parameters_that_are_not_passed_is_rejected_before_the_run(agent: str, tmp_path: Path) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text(json.dumps({"id": "1", "question": "?", "answer": "!"}))
    with pytest.raises(ConfigError, match="which have no default"):
        run_parallel_rollout(
            RolloutConfig(
                mode="math", model="demo", agent=f"{AGENTS}:{agent}", data=str(data), output_dir=str(tmp_path)
            )
        )


def run_many(
    tmp_path: Path, server: OpenAIServer, patch: pytest.MonkeyPatch, agent: str, count: int = 20, **settings: Any
) -> Any:
    data = tmp_path / "tasks.jsonl"
    tasks = [{"id": str(n), "question": f"What is number <{n}>?", "answer": f"[{n}]"} for n in range(count)]
    data.write_text("\n".join(map(json.dumps, tasks)))
    patch.setenv("OPENAI_BASE_URL", server.url)
    patch.setenv("OPENAI_API_KEY", "the key of the endpoint")
    given: dict[str, Any] = {"mode": "math", "metric": "contains", "model": "scripted"} | settings
    return run_parallel_rollout(
        RolloutConfig(agent=f"{AGENTS}:{agent}", data=str(data), output_dir=str(tmp_path / "runs"), **given)
    )


NUMBERS = Script(answers={f"<{n}>": f"It is [{n}]." for n in range(20)}, latency=0.02)


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ("streamed", {"count": 20, "workers": 2, "num_rollouts": 10}),
        ("from_environment", {"count": 6, "isolate": True, "num_rollouts": 2}),
    ],
)
def test_rollouts_at_the_same_time_do_not_mix(
    agent: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OpenAIServer(NUMBERS) as server:
        report = run_many(tmp_path, server, monkeypatch, agent, **settings)
    assert report.mean == 1.0
    assert server.seen.answered == settings["count"]


def test_a_rollout_whose_worker_is_killed_during_a_call_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "once"
    monkeypatch.setenv("KILL_ONCE", str(once))
    with OpenAIServer(Script(answers=NUMBERS.answers, latency=0.3)) as server:
        report = run_many(tmp_path, server, monkeypatch, "killing", workers=1, num_rollouts=10)
    assert once.exists()
    assert (report.mean, report.done, report.pending) == (1.0, 20, 0)
    assert server.seen.requests > 20


@pytest.mark.ray
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_rollouts_on_ray_call_the_gateway_of_their_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(NUMBERS) as server:
        report = run_many(tmp_path, server, monkeypatch, "streamed", engine="ray", workers=2, num_rollouts=6)
    assert report.mean == 1.0
    assert server.seen.answered == 20
