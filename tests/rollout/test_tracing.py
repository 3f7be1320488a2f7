"""OpenTelemetry: spans of runs, received by an OTLP/HTTP receiver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from paragent import AgentBase, ConfigError, Environment, MissingExtra, RolloutConfig, run_parallel_rollout, tool
from paragent._installation import install_command
from paragent.cli import main
from paragent.demo.samples import sample_path
from paragent.errors import Interrupted
from paragent.rollout import blame, tracing
from paragent.rollout.prepare import prepare
from paragent.rollout.session import RolloutSession
from paragent.rollout.spans import TracedRun
from paragent.rollout.tracing import RunTracing
from paragent.runners.retry import RetryPolicy
from paragent.runners.run import Run
from paragent.store import Journal, RolloutResult, RolloutStatus
from paragent.store.records import pack_trajectory
from paragent.testing import Fault, OpenAIServer, Script
from tests.rollout.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.waiting import wait_until

HERE = "tests.rollout.test_tracing"
SECRET = "xyzzy-plugh"
"""Occurs in every text of a rollout."""
VERDICT = '{"reasoning": "the same", "correct": true}'
"""The reply of a judge."""


class Secretive(Environment):
    """Has the secret in its observations and errors."""

    name = "secretive"
    metric = "contains"

    @tool
    async def look(self, at: Annotated[str, "what"]) -> str:
        """Look at something."""
        return f"you see {SECRET}"

    @tool
    async def bug(self) -> str:
        """Raise an unexpected error."""
        raise KeyError(SECRET)


class OnMachine(Secretive):
    """Needs a machine."""

    name = "on_machine"

    @property
    def needs_machine(self) -> bool:
        return True


class Ending(AgentBase):
    """Answers without a model, and ends in its own words."""

    async def run_episode(self, episode: Any) -> Any:
        from paragent import AgentResult

        return AgentResult(SECRET, f"ended: {SECRET}")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as started:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
        yield started


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    look = {"tool": "look", "arguments": {"at": SECRET}, "content": f"thinking about {SECRET}"}
    unknown = {"tool": f"open_{SECRET}"}
    answers = {"references": VERDICT, "fail": [look, {"tool": "bug"}], "unknown": [unknown, f"It is {SECRET}."]}
    script = Script(default=[look, look, f"It is {SECRET}."], answers=answers, request_ids=True)
    with OpenAIServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield server


def config(tmp_path: Path, *questions: str, **settings: Any) -> RolloutConfig:
    data = tmp_path / "tasks.jsonl"
    tasks = [{"id": f"task-{n}", "question": f"{text} {SECRET}", "answer": SECRET} for n, text in enumerate(questions)]
    data.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    chosen: dict[str, Any] = {"env": f"{HERE}:Secretive", "engine": "inline", "run_name": "run", "otel": True}
    return RolloutConfig(**chosen | {"data": data, "output_dir": tmp_path, "model": "scripted"} | settings)


def spans_of_journal(path: Path) -> int:
    """Return how many spans a run has without its sessions."""
    total = 0
    with Journal(path / "journal.sqlite", read_only=True) as journal:
        for result in journal.results("1"):
            steps = (journal.trajectory(result.number) or {}).get("steps", [])
            turns = {step["turn"] for step in steps if step["kind"] in {"model", "agent", "tool"}}
            calls = [step for step in steps if step["kind"] in {"model", "tool", "judge"}]
            total += 1 + len(turns) + len(calls)
    return total


def check_times(span: ReceivedSpan) -> None:
    assert span.start <= span.end, span.name
    for child in span.children:
        assert span.start <= child.start <= child.end <= span.end, (span.name, child.name)
        check_times(child)


def names(span: ReceivedSpan) -> Any:
    return [span.name, *map(names, span.children)] if span.children else span.name


def test_an_execution_is_a_trace_with_a_link_to_its_session(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer
) -> None:
    before = time.time_ns()
    summary = run_parallel_rollout(config(tmp_path, "good", attempts=2))
    assert summary.mean == 1.0
    [session] = receiver.sessions()
    executions = receiver.executions()
    assert names(session) == "run run"
    turns = [["turn 1", "chat scripted", "execute_tool look"], ["turn 2", "chat scripted", "execute_tool look"]]
    for execution in executions:
        assert names(execution) == ["invoke_agent ChatAgent", *turns, ["turn 3", "chat scripted"]]
        assert before <= session.start <= execution.start <= execution.end <= session.end <= time.time_ns()
        check_times(execution)
        assert {span.trace for span in execution.all()} == {execution.trace}
        assert [len(span.links) for span in execution.all()] == [1] + [0] * 8
        assert execution.links == [(session.trace, session.id)]
        found = [execution.attributes[f"paragent.{name}"] for name in ("run.id", "run.name", "session.number")]
        assert found == [session.attributes["paragent.run.id"], "run", 1]
    assert len({root.trace for root in receiver.roots()}) == 3
    assert len(receiver.spans()) == 1 + spans_of_journal(tmp_path / "run")
    assert receiver.paths == ["/v1/traces"] * len(receiver.paths)
    assert receiver.resources()[0]["service.name"] == "paragent"


def test_the_span_of_a_session_has_totals(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.001))
    summary = run_parallel_rollout(config(tmp_path, "good", "fail", "unknown"))
    [session] = receiver.sessions()
    expected = {
        "paragent.rollouts": 3,
        "paragent.executions": summary.executions,
        "paragent.score.mean": summary.mean,
        "paragent.tokens.input": summary.prompt_tokens,
        "paragent.tokens.output": summary.completion_tokens,
    }
    assert {name: session.attributes.get(name) for name in expected} == expected
    run_parallel_rollout(config(tmp_path, "good", "fail", "unknown", retry_failed=True))
    second = receiver.sessions()[1].attributes
    assert [second[f"paragent.{name}"] for name in ("rollouts", "executions", "score.mean")] == [1, 1, 0.0]


def test_a_span_of_the_calling_program_is_not_a_parent(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer
) -> None:
    with TracerProvider().get_tracer("caller").start_as_current_span("caller"):
        run_parallel_rollout(config(tmp_path, "good"))
    assert [root.parent for root in receiver.roots()] == ["", ""]


def test_spans_have_the_attributes_of_the_conventions(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer
) -> None:
    run_parallel_rollout(config(tmp_path, "good", temperature=0.5))
    by_name = {span.name: span for span in receiver.spans()}
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        [result] = journal.results()
        steps = journal.trajectory(result.number)["steps"]
    agent = by_name["invoke_agent ChatAgent"]
    run_id = by_name["run run"].attributes["paragent.run.id"]
    expected = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "ChatAgent",
        "gen_ai.request.model": "scripted",
        "gen_ai.conversation.id": f"{run_id}/{result.number}",
        "gen_ai.usage.input_tokens": result.prompt_tokens,
        "gen_ai.usage.output_tokens": result.completion_tokens,
        "paragent.run.id": run_id,
        "paragent.run.name": "run",
        "paragent.task": "task-0",
        "paragent.attempt": 1,
        "paragent.status": "completed",
        "paragent.score": 1.0,
        "paragent.ending": "answered",
        "paragent.turns": 3,
    }
    assert {name: agent.attributes.get(name) for name in expected} == expected
    score = {"gen_ai.evaluation.name": "contains", "gen_ai.evaluation.score.value": 1.0}
    assert agent.events == [("gen_ai.evaluation.result", score)]
    chat = by_name["chat scripted"]
    host, _, port = endpoint.url.partition("//")[2].partition("/")[0].partition(":")
    last = [step for step in steps if step["kind"] == "model"][-1]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": last["response"]["id"],
        "gen_ai.response.model": last["response"]["model"],
        "gen_ai.response.finish_reasons": ["stop"],
        "paragent.request_id": last["request_id"],
        "paragent.retries": 0,
        "gen_ai.usage.input_tokens": last["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": last["usage"]["completion_tokens"],
        "server.address": host,
        "server.port": int(port),
    }
    assert {name: chat.attributes.get(name) for name in expected} == expected
    assert chat.kind == "CLIENT"
    looked = by_name["execute_tool look"]
    call = [step for step in steps if step["kind"] == "tool"][-1]["call"]
    expected = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": call}
    assert {name: looked.attributes.get(name) for name in expected} == expected
    assert not any(span.error for span in receiver.spans())


def test_there_are_no_contents_by_default(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.001))
    summary = run_parallel_rollout(config(tmp_path, "good", "fail", "unknown"))
    assert summary.statuses["failed"] == 1
    run_parallel_rollout(config(tmp_path, "good", agent=f"{HERE}:Ending", run_name="other"))
    assert len(receiver.spans()) == 2 + spans_of_journal(tmp_path / "run") + spans_of_journal(tmp_path / "other")
    assert SECRET.encode() not in b"".join(receiver.bodies)
    assert "execute_tool _OTHER" in {span.name for span in receiver.spans()}


def test_contents_are_sent_on_request(tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer) -> None:
    run_parallel_rollout(config(tmp_path, "good", "fail", otel_content=True))
    good, bad = receiver.executions()
    if good.attributes["paragent.task"] != "task-0":
        good, bad = bad, good
    definitions = json.loads(good.attributes["gen_ai.tool.definitions"])
    assert [(one["type"], one["name"]) for one in definitions] == [("function", "look"), ("function", "bug")]
    assert definitions[0]["parameters"]["required"] == ["at"]
    *_, last = [span for span in good.all() if span.name == "chat scripted"]
    sent = json.loads(last.attributes["gen_ai.input.messages"])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "tool"]
    call = sent[1]["parts"][1]
    assert call == {"type": "tool_call", "id": call["id"], "name": "look", "arguments": {"at": SECRET}}
    response = {"type": "tool_call_response", "id": call["id"], "response": f"you see {SECRET}"}
    assert sent[2] == {"role": "tool", "parts": [response]}
    said = {"role": "assistant", "parts": [{"type": "text", "content": f"It is {SECRET}."}], "finish_reason": "stop"}
    assert json.loads(last.attributes["gen_ai.output.messages"]) == [said]
    looks = [span.attributes for span in good.all() if span.name == "execute_tool look"]
    assert [json.loads(one["gen_ai.tool.call.arguments"]) for one in looks] == [{"at": SECRET}] * 2
    assert [one["gen_ai.tool.call.result"] for one in looks] == [f"you see {SECRET}"] * 2
    assert (bad.error, bad.attributes["error.type"], SECRET in bad.message) == (True, "KeyError", True)


def test_failures_have_an_error_status(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.001))
    run_parallel_rollout(config(tmp_path, "fail"))
    with OpenAIServer(Script(faults=[Fault(500)])) as broken:
        monkeypatch.setenv("OPENAI_BASE_URL", broken.url)
        run_parallel_rollout(config(tmp_path, "good", run_name="down", max_retries=0))
    agents = [span for span in receiver.spans() if span.name == "invoke_agent ChatAgent"]
    found = [(span.error, span.attributes["error.type"], span.attributes["paragent.party"]) for span in agents]
    assert found == [(True, "KeyError", "agent")] + [(True, "endpoint", "endpoint")] * 3
    assert [span.attributes["paragent.final"] for span in agents] == [True, False, False, True]
    calls = [call for span in agents[1:] for turn in span.children for call in turn.children]
    assert [(call.name, call.error, call.attributes["error.type"]) for call in calls] == [
        ("chat scripted", True, "EndpointDown")
    ] * 3


def test_the_calls_of_a_judge_are_spans_of_the_execution(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer
) -> None:
    run_parallel_rollout(
        config(tmp_path, "unknown", metric="llm_judge", judge_model="referee", otel_content=True, run_name="run")
    )
    [agent] = receiver.executions()
    *turns, judge = [span.name for span in agent.children]
    assert (turns, judge) == (["turn 1", "turn 2"], "chat referee")
    asked = json.loads(agent.children[-1].attributes["gen_ai.input.messages"])
    assert f"It is {SECRET}." in asked[-1]["parts"][0]["content"]
    assert json.loads(agent.children[-1].attributes["gen_ai.output.messages"])[0]["parts"]
    assert len(receiver.spans()) == 1 + spans_of_journal(tmp_path / "run")


@pytest.mark.slow
def test_the_wait_for_a_machine_comes_before_the_first_turn(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer
) -> None:
    machines = {"provider_name": "process", "use_vm_pool": True, "num_vms": 1, "num_spares": 0, "num_rollouts": 2}
    run_parallel_rollout(config(tmp_path, "good", "good", env=f"{HERE}:OnMachine", **machines))
    for execution in receiver.executions():
        check_times(execution)
    first, second = sorted(receiver.executions(), key=lambda span: span.children[0].start)
    assert first.attributes["paragent.machine"]
    assert second.attributes["paragent.seconds.waited"] > 0
    assert second.children[0].start >= first.children[-1].end, "the second rollout had to wait for the machine"


def test_a_tool_call_that_fails_has_an_error_status(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer
) -> None:
    run_parallel_rollout(config(tmp_path, "unknown"))
    [failed] = [span for span in receiver.spans() if span.error]
    assert (failed.name, failed.attributes["error.type"]) == ("execute_tool _OTHER", "tool_error")


@pytest.mark.slow
def test_workers_of_the_local_engine(tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer) -> None:
    chosen = config(tmp_path, *["good", "unknown"] * 3, engine="local", workers=2, num_rollouts=4, attempts=3)
    summary = run_parallel_rollout(chosen)
    assert summary.executions == 18
    [session] = receiver.sessions()
    executions = receiver.executions()
    assert len(executions) == summary.executions == session.attributes["paragent.rollouts"]
    assert len(receiver.spans()) == 1 + spans_of_journal(tmp_path / "run")
    assert len({span.attributes["paragent.worker"] for span in executions}) == 2
    for execution in executions:
        check_times(execution)


def test_sessions_of_a_run_are_found_together(tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer) -> None:
    for flags in ({}, {"retry_failed": True}, {"fresh": True}):
        run_parallel_rollout(config(tmp_path, "fail", **flags))
    first, second, fresh = receiver.sessions()
    assert len({root.trace for root in receiver.roots()}) == 6
    assert (first.links, fresh.links) == ([], [])
    assert second.links == [(first.trace, first.id)]
    ids = [root.attributes["paragent.run.id"] for root in (first, second, fresh)]
    assert ids[0] == ids[1] != ids[2]
    assert [root.attributes["paragent.session.number"] for root in (first, second, fresh)] == [1, 2, 1]
    [execution] = [one for one in receiver.executions() if one.links == [(second.trace, second.id)]]
    assert {span.attributes["paragent.run.id"] for span in execution.all()} == {ids[0]}
    assert [execution.attributes[f"paragent.{name}"] for name in ("session.number", "execution")] == [2, 2]


def test_a_complete_run_sends_nothing(tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer) -> None:
    run_parallel_rollout(config(tmp_path, "good"))
    received = len(receiver.bodies)
    run_parallel_rollout(config(tmp_path, "good"))
    assert len(receiver.bodies) == received


def test_the_standard_variables_are_used(
    tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic abc")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "evaluation")
    run_parallel_rollout(config(tmp_path, "good"))
    assert {headers["content-encoding"] for headers in receiver.headers} == {"gzip"}
    assert {headers["authorization"] for headers in receiver.headers} == {"Basic abc"}
    resource = receiver.resources()[0]
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("evaluation", "test")


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_SAMPLER", "always_off")])
def test_traces_can_be_turned_off_by_the_standard_variables(
    name: str,
    value: str,
    tmp_path: Path,
    receiver: OtlpReceiver,
    endpoint: OpenAIServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    for flags in ({}, {"retry_failed": True}):
        with RolloutSession(prepare(config(tmp_path, "fail", **flags))) as session:
            session.run()
        assert session.unsent_spans == ""
    assert receiver.bodies == []


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_sampler_chooses_executions(sampler: str, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    body = pack_trajectory({"steps": [{"kind": "model", "turn": 1, "at": 0, "seconds": 0}]})
    executions = [execution(f"{n}", number=n, trajectory=body) for n in range(200)]
    traced = RunTracing(traced_run(), started=1e9, previous=None, content=False)
    traced.record(executions)
    assert traced.close() == ""
    sent = receiver.executions()
    assert 50 < len(sent) < 150, "the probability of another number is below 1e-12"
    assert {len(one.all()) for one in sent} == {3}, "traces are complete"
    assert len(receiver.spans()) == 1 + 3 * len(sent)
    [session] = receiver.sessions()
    assert session.attributes["paragent.rollouts"] == 200


def test_sessions_are_sent_with_every_ratio(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    traced = RunTracing(traced_run(), started=1e9, previous=None, content=False)
    traced.record([execution("a")])
    assert traced.close() == ""
    assert [span.name for span in receiver.spans()] == ["run run"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OTEL_TRACES_SAMPLER", "sometimes", "sometimes"),
        ("OTEL_TRACES_SAMPLER", "traceidratio", "TRACES_SAMPLER_ARG"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "soon"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"Bearer {SECRET}", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    ],
)
def test_wrong_variables_are_rejected_before_the_run(
    name: str, value: str, message: str, tmp_path: Path, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message) as raised:
        prepare(config(tmp_path, "good"))
    assert SECRET not in str(raised.value)


def test_an_empty_variable_is_not_set(tmp_path: Path, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.setenv(name, "")
    prepare(config(tmp_path, "good"))


def results(path: Path) -> list[Any]:
    with Journal(path / "journal.sqlite", read_only=True) as journal:
        return sorted((one.task, one.status, one.score, one.answer, one.turns) for one in journal.results())


@pytest.mark.parametrize("kind", ["down", "hangs", "refuses"])
def test_a_broken_receiver_changes_no_result(
    kind: str,
    tmp_path: Path,
    endpoint: OpenAIServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tracing, "CLOSE_TIMEOUT", 0.3)
    plain = config(tmp_path, "good", "better", "unknown", otel=False, run_name="plain")
    run_parallel_rollout(plain)
    flags = ["--env", f"{HERE}:Secretive", "--data", str(plain.data.path), "--model", "scripted", "--engine", "inline"]
    with OtlpReceiver(400 if kind == "refuses" else 200, hangs=kind == "hangs") as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9" if kind == "down" else receiver.url)
        assert main(["rollout", *flags, "--output-dir", str(tmp_path), "--run-name", "run", "--otel"]) == 0
    assert results(tmp_path / "run") == results(tmp_path / "plain")
    [line] = [line for line in capfd.readouterr().err.splitlines() if "OpenTelemetry" in line]
    reason = {"down": "ConnectionError", "hangs": "the endpoint is too slow", "refuses": "400"}[kind]
    spans = 1 + spans_of_journal(tmp_path / "run")
    assert f"OpenTelemetry: {spans} spans not sent to http://127.0.0.1:" in line
    assert reason in line


@pytest.mark.slow
def test_a_hanging_receiver_delays_the_end_by_seconds(
    tmp_path: Path, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OtlpReceiver(hangs=True) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        with RolloutSession(prepare(config(tmp_path, "good"))) as session:
            summary = session.run()
    assert summary.pending == 0
    assert session.unsent_spans.endswith(": the endpoint is too slow")


def test_an_interrupted_session_ends_its_span(tmp_path: Path, receiver: OtlpReceiver, endpoint: OpenAIServer) -> None:
    def interrupted(self: Run, *_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "collect", interrupted)
        with pytest.raises(Interrupted):
            run_parallel_rollout(config(tmp_path, "good", "better"))
    [root] = receiver.sessions()
    assert (root.error, root.attributes["error.type"]) == (True, "Interrupted")
    assert len(receiver.spans()) == 1 + spans_of_journal(tmp_path / "run")
    run_parallel_rollout(config(tmp_path, "good", "better"))
    assert len(receiver.spans()) == 2 + spans_of_journal(tmp_path / "run")


def execution(task: str, **fields: Any) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.COMPLETED, **{"number": 1, "ended": 1e9} | fields)


def traced_run() -> TracedRun:
    return TracedRun(
        run_id="run-1",
        run_name="run",
        session=1,
        environment="math",
        engine="inline",
        agent="ChatAgent",
        model="demo",
        provider="paragent",
        server={},
        request={},
    )


def test_the_queue_is_limited_and_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_TIMEOUT", 0.3)
    executions = [execution(f"{n}", number=n) for n in range(2_500)]
    with OtlpReceiver(hangs=True) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        traced = RunTracing(traced_run(), started=1e9, previous=None, content=False)
        traced.record(executions)
        unsent = traced.close()
    found = re.match(r"OpenTelemetry: ([\d,]+) spans and the spans of ([\d,]+) executions not sent", unsent)
    assert found, unsent
    spans, without_spans = (int(count.replace(",", "")) for count in found.groups())
    assert spans <= 513, "512 and the session"
    assert spans + without_spans in {2_500, 2_501}, unsent  # on a busy host, the session may not have its span yet


def test_large_contents_are_sent_in_several_requests(receiver: OtlpReceiver) -> None:
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": "x" * 60_000} for n in range(400)]
    steps = [{"kind": "model", "turn": n + 1, "at": 0, "seconds": 0, "messages": 2 * n + 1} for n in range(200)]
    body = pack_trajectory({"messages": messages, "steps": steps})
    traced = RunTracing(traced_run(), started=1e9, previous=None, content=True)
    traced.record([execution("a", trajectory=body)])
    assert traced.close() == ""
    assert len(receiver.spans()) == 1 + 1 + 200 + 200
    assert max(map(len, receiver.bodies)) < 6 * 1024 * 1024


def test_a_damaged_trajectory_does_not_stop_the_others(receiver: OtlpReceiver) -> None:
    good, bad = execution("good", number=2), execution("bad", trajectory=b"not packed")
    traced = RunTracing(traced_run(), started=1e9, previous=None, content=False)
    traced.record([bad, good])
    assert "the spans of 1 execution not sent" in traced.close()
    assert [root.attributes["paragent.task"] for root in receiver.executions()] == ["good"]


def test_the_span_of_a_session_ends_before_spans_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver(hangs=True) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        traced = RunTracing(traced_run(), started=time.time(), previous=None, content=False)
        traced.record([execution(f"{n}", number=n) for n in range(600)])
        wait_until(lambda: bool(receiver.paths))
        before = time.time_ns()
        release = threading.Timer(1.0, receiver.released.set)
        release.start()
        assert traced.close() == ""
        release.join(60)
        [session] = receiver.sessions()
    assert before - 1000 <= session.end < before + 900_000_000, "the first request took a second"


def test_the_answer_of_an_endpoint_is_shown_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver(400, reason="\x1b[31mred" + "x" * 1000) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        unsent = RunTracing(traced_run(), started=1e9, previous=None, content=False).close()
    assert "[31mred" in unsent
    assert "\x1b" not in unsent
    assert len(unsent) < 400


def test_contents_need_spans() -> None:
    with pytest.raises(ConfigError, match="add --otel"):
        RolloutConfig(mode="math", otel_content=True)


def test_another_protocol_is_rejected(tmp_path: Path, endpoint: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="http/protobuf"):
        prepare(config(tmp_path, "good"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    prepare(config(tmp_path, "good"))


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paragent.rollout.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command(["otel"]))):
        prepare(config(tmp_path, "good"))


@pytest.mark.slow
def test_opentelemetry_is_imported_only_with_the_flag(tmp_path: Path) -> None:
    code = (
        "import sys; from paragent import RolloutConfig, run_parallel_rollout; "
        f"run_parallel_rollout(RolloutConfig(mode='math', data={str(sample_path('math'))!r}, model='demo', limit=1, "
        f"engine='inline', output_dir={str(tmp_path)!r})); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0
