"""Rollouts against a scripted endpoint: scores, limits, failures, flags, data formats."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import json
import os
import re
import shlex
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from paragent import (
    AgentBase,
    BadData,
    ConfigError,
    Environment,
    EnvironmentFailed,
    Msg,
    RolloutConfig,
    RolloutWorker,
    StoreFailed,
    UnknownName,
    UsageError,
    run_parallel_rollout,
    tool,
)
from paragent._installation import install_command
from paragent._internal.clock import Heartbeat, ManualClock
from paragent.agents.chat import AgentResult, ChatAgent
from paragent.cli import main
from paragent.demo.samples import sample_options, sample_path
from paragent.errors import MissingExtra
from paragent.models import Completion, Model, ModelSettings, rate_limit_client
from paragent.rollout import blame
from paragent.rollout.dataset import read_benchmark
from paragent.rollout.episode import RolloutEpisode
from paragent.rollout.prepare import prepare
from paragent.rollout.resources import RolloutSettings
from paragent.rollout.session import RolloutSession
from paragent.rollout.work_clock import WorkClock
from paragent.runners import retry
from paragent.runners.retry import RetryPolicy
from paragent.store import Journal, RolloutResult, RolloutStatus, RunDirectory
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import Fault, OpenAIServer, Script

HERE = "tests.rollout.test_rollouts"


class Tiny(Environment):
    """A calculator with a constant answer, and tools that fail."""

    name = "tiny"
    metric = "contains"
    broken = 0

    @tool
    async def calculator(self, expression: Annotated[str, "what"]) -> str:
        """Compute."""
        return "42"

    @tool
    async def sleep(self, seconds: Annotated[float, "how long"]) -> str:
        """Wait."""
        import asyncio

        await asyncio.sleep(seconds)
        return "slept"

    @tool
    async def crash(self) -> str:
        """Break the environment, the first two times."""
        Tiny.broken += 1
        if Tiny.broken <= 2:
            raise EnvironmentFailed("the browser died")
        return "fine now"

    @tool
    async def bug(self) -> str:
        """Raise an unexpected error."""
        raise KeyError("oops")


class Broken(Environment):
    """Cannot be opened."""

    name = "broken"
    metric = "contains"

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        raise EnvironmentFailed("there is no browser")


class Closing(Tiny):
    """Fails to open or to score, as configured, and counts how often it is closed."""

    name = "closing"
    closed = 0
    opens = scores = True

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        if not self.opens:
            raise KeyError("cannot open")
        return await super().open(task, machine)

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> dict[str, float] | None:
        if not self.scores:
            await asyncio.sleep(300)
        return None

    async def close(self) -> None:
        Closing.closed += 1
        await super().close()


class Deadly(AgentBase):
    """Kills its worker."""

    def reply(self, x: Any = None) -> Msg:
        os._exit(1)


class Quick(AgentBase):
    """Blocks, then answers without a model."""

    def reply(self, x: Any = None) -> Msg:
        return Msg(name=self.name, content=f"{x.content}: 42")


class Blocking(AgentBase):
    """Blocks until enough other agents block at the same time."""

    others = threading.Barrier(40)

    def reply(self, x: Any = None) -> str:
        Blocking.others.wait(30)
        return "42"


def execute(script: Script, **settings: Any) -> RolloutResult:
    with OpenAIServer(script) as server:
        model = ModelSettings(name="m", base_url=server.url, api_key="k", max_retries=1)
        chosen: dict[str, Any] = {"run": "r", "environment": f"{HERE}:Tiny", "model": model, "judge": model} | settings
        return RolloutWorker(RolloutSettings(**chosen)).run(BenchmarkTask("a", "what is it?", "42"))


def test_a_rollout_is_scored_and_has_a_complete_trajectory() -> None:
    calls = {"tools": [{"tool": "calculator", "arguments": {"expression": "6*7"}}, {"tool": "nothing"}]}
    done = execute(Script(default=[calls, {"tool": "calculator", "arguments": "{no json"}, "It is 42."]))
    assert (done.status, done.score, done.ending, done.turns, done.tool_calls) == ("completed", 1.0, "answered", 3, 3)
    assert done.trajectory is not None
    trajectory = unpack_trajectory(done.trajectory)
    roles = [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [message["role"] for message in trajectory["messages"]] == roles
    reported = [message["content"] for message in trajectory["messages"] if message["role"] == "tool"]
    assert reported[0] == "42"
    assert "no tool 'nothing'" in reported[1]
    assert "JSON" in reported[2]
    assert [step["kind"] for step in trajectory["steps"]] == ["model", "tool", "tool", "model", "tool", "model"]
    assert done.completion_tokens == sum(
        step["usage"]["completion_tokens"] for step in trajectory["steps"] if "usage" in step
    )


def test_used_up_turns_and_a_full_context_end_a_rollout() -> None:
    call = {"tool": "calculator", "arguments": {"expression": "1"}, "content": "Perhaps 42."}
    done = execute(Script(default=call), max_turns=3)
    assert (done.status, done.ending, done.turns, done.score) == ("completed", "turns used up", 3, 1.0)
    done = execute(Script(default=call, context_limit=60))
    assert (done.status, done.ending) == ("completed", "context full")


def test_failures_are_classified_by_cause() -> None:
    failed = execute(Script(default={"tool": "bug"}))
    assert (failed.status, failed.kind) == (RolloutStatus.FAILED, "KeyError")
    assert "oops" in failed.error
    down = execute(Script(faults=[Fault(500)]))
    assert (down.status, down.kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint")
    refused = execute(Script(faults=[Fault(401)]))
    assert (refused.status, refused.kind) == (RolloutStatus.INFRASTRUCTURE, "settings")
    rejected = execute(Script(faults=[Fault(400)]))
    assert (rejected.status, rejected.kind) == (RolloutStatus.FAILED, "RequestRejected")


@pytest.mark.slow
def test_the_time_limit_does_not_count_waiting() -> None:
    late = execute(Script(default=[{"tool": "sleep", "arguments": {"seconds": 30}}, "42"]), timeout=0.5)
    assert (late.status, late.kind) == (RolloutStatus.TIMED_OUT, "time limit")
    assert 0.4 < late.seconds < 25
    patient = execute(Script(faults=[Fault(429, last=1, retry_after=1.5)]), timeout=1.0)
    assert (patient.status, patient.score) == ("completed", 1.0)
    assert patient.waited >= 1.5


def test_work_clock() -> None:
    now = ManualClock()
    clock = WorkClock(now)
    now.advance(2)
    clock.pause("waiting for a machine", None)
    clock.pause("retrying", 5.0)
    now.advance(7)
    clock.resume()
    now.advance(1)
    clock.resume()
    now.advance(1)
    assert (clock.worked, clock.waited) == (3.0, 8.0)


def silence_after(heart: Heartbeat, clock: ManualClock, seconds: float) -> float:
    """Return the silence that a watchdog measures which checks twice per second, for some seconds."""
    silence = 0.0
    for _ in range(int(2 * seconds)):
        clock.advance(0.5)
        silence = heart.silence()
    return silence


def test_silence_does_not_include_time_in_which_the_listener_was_stopped() -> None:
    clock = ManualClock()
    heart = Heartbeat(0.5, clock)
    assert silence_after(heart, clock, 1.0) <= 1.0
    clock.advance(10_000.0)  # the whole process is stopped: no check, no beat
    assert heart.silence() < 5.0
    heart.beat()
    assert silence_after(heart, clock, 1.0) <= 1.0
    assert silence_after(heart, clock, 130.0) > 120.0, "the listener runs, and hears nothing"
    heart.beat()
    clock.advance(0.5)
    assert heart.silence() == 0.0


def test_a_custom_agent_may_block() -> None:
    done = execute(Script(), agent=f"{HERE}:Quick")
    assert (done.status, done.answer, done.requests) == ("completed", "what is it?: 42", 0)


def test_the_environment_is_always_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"agent": f"{HERE}:Quick", "environment": f"{HERE}:Closing"}
    monkeypatch.setattr(Closing, "closed", 0)
    assert execute(Script(), **chosen).status == "completed"
    assert Closing.closed == 1
    monkeypatch.setattr(Closing, "opens", False)
    unopened = execute(Script(), **chosen)
    assert (unopened.status, unopened.kind) == (RolloutStatus.INFRASTRUCTURE, "environment")
    assert "KeyError: 'cannot open'" in unopened.error
    assert Closing.closed == 2


def test_a_scoring_timeout_is_a_failure_of_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "scores", False)
    monkeypatch.setattr("paragent.rollout.worker.SCORE_TIMEOUT", 0.05)
    monkeypatch.setattr("paragent.rollout.worker.SCORE_PAUSE", 0.01)
    late = execute(Script(), agent=f"{HERE}:Quick", environment=f"{HERE}:Closing")
    assert (late.status, late.kind, late.score) == (RolloutStatus.UNSCORED, "scoring", None)


class Said(Model):
    """Returns the given completions, one per turn."""

    def __init__(self, *turns: Completion) -> None:
        super().__init__(ModelSettings(name="said"))
        self._turns = iter(turns)

    async def complete(self, messages: Any, tools: Any, options: Any = None) -> Completion:
        return next(self._turns)


def converse(environment: Environment, *turns: Completion, max_retries: int = 1) -> tuple[AgentResult, RolloutEpisode]:
    episode = RolloutEpisode(environment, Said(*turns), 10, max_retries)
    return asyncio.run(ChatAgent().run_episode(episode)), episode


def said(content: str | None, finish_reason: str = "stop", usage: dict[str, int] | None = None) -> Completion:
    return Completion({"role": "assistant", "content": content}, usage, finish_reason)


def test_empty_messages_are_requested_again_and_cut_ones_are_marked() -> None:
    returned, episode = converse(Tiny(), said(""), said("42"))
    assert (returned.answer, returned.ending, len(episode.messages)) == ("42", "answered", 2)
    assert converse(Tiny(), said(None), said("42"), max_retries=0)[0].answer == ""
    assert converse(Tiny(), said("4", "length"))[0].ending == "answer cut"
    assert converse(Tiny(), said("", "length"), max_retries=0)[0].ending == "answer cut", "all tokens were reasoning"


def test_tokens_are_unknown_if_one_turn_does_not_report_them() -> None:
    counted = {"prompt_tokens": 3, "completion_tokens": 1}
    assert converse(Tiny(), said("", usage=counted), said("42", usage=counted))[1].usage == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
    }
    assert converse(Tiny(), said(""), said("42", usage=counted))[1].usage is None


class Meeting(Environment):
    """Has tool calls that wait for each other."""

    name = "meeting"
    metric = "contains"

    @tool
    async def meet(self, who: Annotated[str, "name"]) -> str:
        """Wait for one more."""
        self.present = [*getattr(self, "present", []), who]
        async with asyncio.timeout(20):
            while len(self.present) < 2:
                await asyncio.sleep(0.001)
        return f"{who} met"


def test_tool_calls_of_a_turn_overlap_and_are_answered_by_id() -> None:
    calls = [{"function": {"name": "meet", "arguments": json.dumps({"who": who})}} for who in "ab"]
    turn = Completion({"role": "assistant", "content": None, "tool_calls": calls}, None)
    _, episode = converse(Meeting(), turn, said("42"))
    asked = [call["id"] for call in episode.messages[1]["tool_calls"]]
    answers = [(message["tool_call_id"], message["content"]) for message in episode.messages[2:4]]
    assert len(set(asked)) == 2
    assert answers == [(asked[0], "a met"), (asked[1], "b met")]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def config(tmp_path: Path, **settings: Any) -> RolloutConfig:
    chosen: dict[str, Any] = {
        "env": f"{HERE}:Tiny",
        "engine": "inline",
        "output_dir": tmp_path / "results",
        "run_name": "run",
    } | settings
    return RolloutConfig(**chosen)


@pytest.mark.slow
def test_infrastructure_failures_are_retried_with_a_new_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tiny.broken = 0
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"})
    with OpenAIServer(Script(default=[{"tool": "crash"}, "42"])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        summary = run_parallel_rollout(config(tmp_path, data=data))
    assert (summary.mean, summary.executions, summary.pending) == (1.0, 3, 0)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        kept = [result.status for result in journal.results("1")]
        assert kept == ["infrastructure", "infrastructure", "completed"]
        assert journal.trajectory(1)["messages"], "a failed execution has a trajectory"


def test_statistics_include_earlier_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [{"id": "a", "question": "?", "answer": "42"}, {"id": "b", "question": "?"}, {"id": "c", "question": "!"}]
    data = write(tmp_path / "d.jsonl", *({**task, "answer": task.get("answer")} for task in tasks))
    with OpenAIServer(Script(default="42", answers={"!": {"tool": "bug"}})) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        first = run_parallel_rollout(config(tmp_path, data=data))
        assert (first.done, first.mean, first.scored, first.measured, first.sessions) == (3, 0.5, 1, 2, 1)
        with RolloutSession(prepare(config(tmp_path, data=data))) as session:
            progress = session.progress
            assert (progress.done, progress.mean, progress.measured, progress.total) == (3, 0.5, 2, 3)
            assert progress.failures == {"KeyError": 1}
            assert (progress.prompt_tokens, progress.completion_tokens) == (
                first.prompt_tokens,
                first.completion_tokens,
            )
            assert session.run().seconds == first.seconds > 0, "nothing was pending"


def test_persistent_infrastructure_failures_stay_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.001))
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"})
    for session in (1, 2):
        summary = run_parallel_rollout(config(tmp_path, data=data, model="demo", env=f"{HERE}:Broken"))
        assert (summary.executions, summary.done, summary.pending, summary.mean) == (3 * session, 0, 1, None)
        assert (summary.mean_of_all, summary.measured, summary.failures) == (None, 0, {"environment": 1})
        assert (summary.sessions, summary.seconds > 0) == (session, True)


def test_a_run_stops_when_the_endpoint_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy())
    monkeypatch.setattr(rate_limit_client, "_FIRST_REPORT_SECONDS", 0.2)
    data = write(tmp_path / "d.jsonl", *({"id": str(n), "question": "?", "answer": "42"} for n in range(100)))
    answer = {"tool": "sleep", "arguments": {"seconds": 0.3}}  # so that others end before the rollout that was answered
    with OpenAIServer(Script(default=answer, faults=[Fault(500, first=2)])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        chosen = config(tmp_path, data=data, max_retries=0, num_rollouts=10)
        with RolloutSession(prepare(chosen)) as session:
            summary = session.run()
        assert "the last 20 rollouts all ended with: EndpointDown" in session.stopped
        assert 60 <= server.seen.requests <= 100, "three executions of twenty rollouts, and those that were active"
    assert summary.pending == 100


@pytest.mark.slow
def test_a_lost_worker_is_an_infrastructure_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LOST_RETRIES", 0)
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"})
    chosen = {"model": "demo", "agent": f"{HERE}:Deadly", "engine": "local", "workers": 1, "num_rollouts": 1}
    summary = run_parallel_rollout(config(tmp_path, data=data, **chosen))
    assert (summary.failures, summary.pending, summary.executions) == ({"worker": 1}, 1, 1)
    assert summary.statuses["infrastructure"] == 1


def test_a_result_that_cannot_be_stored_is_not_counted(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?" * 100_000, "answer": "42"})
    with RolloutSession(prepare(config(tmp_path, data=data, model="demo", agent=f"{HERE}:Quick"))) as session:
        [(pages,)] = session.directory.journal.rows("PRAGMA page_count")
        session.directory.journal.rows(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFailed, match="full"):
            session.run()
        assert (session.progress.done, session.progress.failures, session.summary().done) == (0, {}, 0)
    assert run_parallel_rollout(config(tmp_path, data=data, model="demo", agent=f"{HERE}:Quick")).mean == 1.0


def test_a_rejected_key_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    data = write(tmp_path / "d.jsonl", *({"id": str(n), "question": "?", "answer": "42"} for n in range(50)))
    with OpenAIServer(Script(faults=[Fault(401)])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        monkeypatch.chdir(tmp_path)
        settings = write(
            tmp_path / "settings.json", {"num_rollouts": 4, "engine": "inline", "fresh": True, "model": "m"}
        )
        command = ["rollout", "--env", f"{HERE}:Tiny", "--data", str(data), "--fresh", "--config", str(settings)]
        assert main(command) == 1
        assert server.seen.requests <= 12
        said = capsys.readouterr().err
        assert "OPENAI_API_KEY" in said
        assert "50 rollouts without a result\nTo continue:" in said
        program, *arguments = shlex.split(said.splitlines()[-1])
        assert (program, main(arguments)) == ("paragent", 1)
    [run] = (tmp_path / "results").iterdir()
    assert json.loads((run / "summary.json").read_text())["sessions"] == 2, "the run was continued"
    assert json.loads((run / "config.json").read_text())["fresh"] is False


def test_pass_at_k_and_rescoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    data = write(
        tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"}, {"id": "b", "question": "?", "answer": "7"}
    )
    with OpenAIServer(Script(default="it is 42")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        summary = run_parallel_rollout(config(tmp_path, data=data, attempts=3))
        assert (summary.done, summary.mean) == (6, 0.5)
        assert summary.pass_at == {1: 0.5, 2: 0.5, 3: 0.5}
        asked = server.seen.requests
        assert main(["rescore", str(tmp_path / "results/run"), "--metric", "exact_match"]) == 0
        assert server.seen.requests == asked
    assert "exact_match: mean 0.000; 6 answers scored" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "results/run"), "a"]) == 0
    assert "it is 42" in capsys.readouterr().out
    assert main(["runs", "--output-dir", str(tmp_path / "results")]) == 0
    assert main(["compare", str(tmp_path / "results/run"), str(tmp_path / "results/run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["difference"] == 0.0


@pytest.mark.parametrize("form", ["jsonl", "list", "items", "gz", "pretty"])
def test_data_formats(form: str, tmp_path: Path) -> None:
    entries = [
        {"id": 1, "question": "q1", "answer": "a", "level": 3},
        {"task_id": "b", "query": "q2", "ground_truth": ["x", "y"]},
        {"input": "q3", "expected": 5},
        {"instruction": "q4"},
    ]
    path = tmp_path / "data"
    lines = "\n".join(json.dumps(entry) for entry in entries) + "\n\n"
    texts = {"jsonl": lines, "list": json.dumps(entries), "items": json.dumps({"items": entries})}
    texts["pretty"] = json.dumps({"items": entries}, indent=2)
    path.write_bytes(gzip.compress(lines.encode()) if form == "gz" else texts[form].encode())
    tasks = list(read_benchmark(path))
    assert [task.question for task in tasks] == ["q1", "q2", "q3", "q4"]
    assert [task.id for task in tasks[:2]] == ["1", "b"]
    assert all(re.fullmatch("[0-9a-f]{12}", task.id) for task in tasks[2:])
    assert tasks[0].metadata == {"level": 3}
    assert tasks[1].references == ("x", "y")
    assert [task.id for task in read_benchmark(path, limit=2)] == ["1", "b"]
    assert [task.id for task in read_benchmark(path, task_ids=["b"])] == ["b"]
    with pytest.raises(UsageError, match="no task 'z'"):
        read_benchmark(path, task_ids=["z"])


def test_a_task_without_an_id_gets_one_of_its_content(tmp_path: Path) -> None:
    first = {"question": "2 + 2?", "answer": "4", "level": 1}
    others = [first | {"answer": "5"}, first | {"question": "?"}, first | {"choices": ["4", "5"]}, first | {"level": 2}]
    tasks = list(read_benchmark(write(tmp_path / "d", first, *others)))
    known = tasks[0].id
    assert len({task.id for task in tasks}) == 5
    assert tasks[4].id == f"{known}-2", "the second of two equal tasks"
    moved = list(read_benchmark(write(tmp_path / "e", {"question": "new?"}, first)))
    assert moved[1].id == known, "whatever its place"
    assert [task.id for task in read_benchmark(tmp_path / "d", task_ids=[f"{known}-2"])] == [f"{known}-2"]


def test_a_run_of_a_version_with_numbered_ids_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "d", {"question": "2 + 2?", "answer": "42"}, {"question": "4 * 2?", "answer": "42"})
    digest = read_benchmark(data).digest
    assert digest == "6d4e40185cc2446db8abeb12933008dec35900e55e33dba7823b785bfbf184a8", "as version 0.2 computed it"
    chosen = config(tmp_path, data=data, num_rollouts=1)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    plan = prepare(chosen)
    with RunDirectory(plan.path) as directory:
        directory.open(chosen.stored(), plan.identity)
        directory.journal.add_tasks(
            replace(task, id=f"item_{line}") for line, task in enumerate(read_benchmark(data), 1)
        )
        directory.journal.record([RolloutResult("item_1", 1, RolloutStatus.COMPLETED, score=0.0)])
    with OpenAIServer(Script(default="42")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        summary = run_parallel_rollout(chosen)
        assert server.seen.requests == 1
    assert (summary.tasks, summary.done, summary.mean) == (2, 2, 0.5)


def test_the_digest_covers_all_fields_of_a_task(tmp_path: Path) -> None:
    task = {"id": "a", "question": "q", "answer": "1", "level": 3}
    others = [task | {"id": "b"}, task | {"question": "r"}, task | {"answer": "2"}, task | {"level": 4}]
    digests = [
        read_benchmark(write(tmp_path / "d", one)).digest for one in (task, dict(reversed(task.items())), *others)
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


def test_invalid_lines_are_listed(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d", {"id": "a", "question": "q"}, "{broken", {"id": "b"}, {"id": "a", "question": "q"}, "[]"
    )
    with pytest.raises(BadData) as caught:
        read_benchmark(path)
    assert [line for line, _ in caught.value.problems] == [2, 3, 4, 5]
    assert "not JSON" in str(caught.value)
    assert "no question" in str(caught.value)
    assert "first used in line 1" in str(caught.value)


@pytest.mark.slow
def test_rollout_worker_runs_a_single_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    worker = RolloutWorker(RolloutConfig(mode="math", model="demo"))
    result = worker.run(BenchmarkTask("1", "Compute 2/3 + 1/6.", "5/6"))
    assert (result.status, result.score, result.ending) == (RolloutStatus.COMPLETED, 1.0, "answered")
    assert worker.run(BenchmarkTask("2", "Compute 1/2 + 1/3.", "1")).score == 0.0
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="needs a machine"):
        RolloutWorker(RolloutConfig(mode="py", sandbox="vm", model="demo"))
    with pytest.raises(UsageError, match="no metric called 'maths'"):
        RolloutWorker(RolloutConfig(mode="math", metric="maths", model="demo"))


@pytest.mark.slow
def test_rollouts_can_be_started_inside_an_event_loop(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"})

    async def cell_of_a_notebook() -> tuple[int, float | None]:
        summary = run_parallel_rollout(config(tmp_path, data=data, model="demo"))
        result = RolloutWorker(RolloutConfig(mode="math", model="demo")).run(
            BenchmarkTask("1", "Compute 1/2 + 1/3.", "5/6")
        )
        return summary.pending, result.score

    assert asyncio.run(cell_of_a_notebook()) == (0, 1.0)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"id": "ü", "question": "q"}'.encode("latin-1"), id="latin-1"),
        pytest.param(gzip.compress(b"{}" * 99)[:-9], id="truncated gzip"),
    ],
)
def test_a_file_that_is_not_text_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(ConfigError, match=r"--data: .* cannot be read as UTF-8 JSON"):
        read_benchmark(tmp_path / "d")


def test_flags_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    settings = tmp_path / "c.yaml"
    settings.write_text(f"data: {data}\nnum-rollouts: 7\nmodel: demo\nattempts: 2\n")
    monkeypatch.setenv("PARAGENT_ATTEMPTS", "3")
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", "--env", f"{HERE}:Tiny", "--config", str(settings), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "1 task x 3 attempts = 3 rollouts, 3 pending" in said
    assert "7 concurrent rollouts" in said
    assert not (tmp_path / "results").exists()
    settings.write_text("num_rolouts: 3\n")
    assert main(["rollout", "--config", str(settings)]) == 2
    assert "did you mean 'num_rollouts'" in capsys.readouterr().err
    settings.write_text("5: 3\n")
    assert main(["rollout", "--config", str(settings)]) == 2
    assert "one `key: value` for each setting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "osworld", "observation_type": "smell"}, "must be 'screenshot'"),
        ({"mode": "maths"}, "math"),
        ({}, "--mode is missing"),
        ({"mode": "math", "num_rollouts": 0}, "at least 1"),
        ({"mode": "math", "num_rollouts": "many"}, "must be an integer"),
        ({"mode": "math", "run_name": "../x"}, "name without '/'"),
        ({"mode": "math", "model": "gpt"}, "--model demo"),
        (
            {"mode": "math", "model": "demo", "engine": "rya"},
            "no engine called 'rya', did you mean 'ray'. There are: inline, local, ray, spark",
        ),
        ({"mode": "math", "model": "demo", "agent": "careful"}, "not of the form 'package.module:Name'"),
        ({"mode": "math", "model": "demo", "agent": "d.jsonl"}, "a program begins with cmd:"),
        ({"mode": "math", "model": "demo", "agent": "python3 my_agent.py"}, "--agent 'cmd: python3 my_agent.py'"),
    ],
)
def test_wrong_settings_are_rejected_before_the_run(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    with pytest.raises((ConfigError, UsageError), match=message):
        run_parallel_rollout(RolloutConfig(data=data, output_dir=tmp_path / "results", **settings))
    assert not (tmp_path / "results").exists()


def test_an_address_that_is_not_of_http_is_rejected_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000/v1")
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL: the address of an endpoint begins with http://"):
        run_parallel_rollout(RolloutConfig(mode="math", data=data, model="m", output_dir=tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_a_missing_client_is_named_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "openai" else find(name, *rest))
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    with pytest.raises(MissingExtra, match=re.escape(install_command(["rollout"]))):
        run_parallel_rollout(RolloutConfig(mode="math", data=data, model="m", output_dir=tmp_path / "results"))
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["math", "py", "rag", pytest.param("web", marks=pytest.mark.browser)])
def test_the_demo_policy_solves_the_samples(mode: str, tmp_path: Path) -> None:
    options = {name: str(value) for name, value in sample_options(mode).items()}
    chosen = config(
        tmp_path, env=None, mode=mode, data=sample_path(mode), model="demo", engine="local", env_option=options
    )
    summary = run_parallel_rollout(chosen)
    assert (summary.mean, summary.pending, summary.failures) == (1.0, 0, {})


def test_metric_may_select_a_score_of_the_environment(tmp_path: Path) -> None:
    options = {name: str(value) for name, value in sample_options("rag").items()}
    chosen: dict[str, Any] = {"env": None, "mode": "rag", "data": sample_path("rag"), "limit": 2, "env_option": options}
    summary = run_parallel_rollout(config(tmp_path, model="demo", metric="citation", **chosen))
    assert (summary.mean, summary.scored) == (1.0, 2)
    with pytest.raises(
        UnknownName, match=r"no metric called 'citatoin', did you mean 'citation'. There are: citation, contains"
    ):
        prepare(config(tmp_path, model="demo", metric="citatoin", **chosen))


def test_changed_documents_change_the_run_directory(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    kb = tmp_path / "kb"
    kb.mkdir()
    (kb / "a.md").write_text("one")
    chosen: dict[str, Any] = {
        "mode": "rag",
        "data": data,
        "kb": kb,
        "model": "demo",
        "output_dir": tmp_path / "results",
    }
    first = prepare(RolloutConfig(**chosen))
    assert prepare(RolloutConfig(**chosen, num_rollouts=9, engine="inline")).path == first.path
    (kb / "a.md").write_text("two")
    assert prepare(RolloutConfig(**chosen)).path != first.path


def test_blocking_agents_run_in_separate_threads(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", *({"id": str(n), "question": "?", "answer": "42"} for n in range(40)))
    chosen = config(tmp_path, data=data, model="demo", agent=f"{HERE}:Blocking", num_rollouts=40)
    assert run_parallel_rollout(chosen).mean == 1.0
