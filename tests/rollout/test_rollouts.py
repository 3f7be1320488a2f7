"""Rollouts end to end against a real endpoint: scores, limits, failures and whose they are, flags, formats of data."""

from __future__ import annotations

import asyncio
import gzip
import json
import shlex
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest

from manyhands import (
    AgentBase,
    BadData,
    ConfigError,
    Environment,
    EnvironmentFailed,
    Msg,
    RolloutConfig,
    RolloutWorker,
    UnknownName,
    UsageError,
    run_parallel_rollout,
    tool,
)
from manyhands._clock import ManualClock
from manyhands.cli import main
from manyhands.envs.samples import sample_options, sample_path
from manyhands.models import ModelSettings
from manyhands.rollout.benchmark import read_benchmark
from manyhands.rollout.clock import WorkClock
from manyhands.rollout.preparing import prepare
from manyhands.rollout.station import PlaySettings
from manyhands.store import Journal, Play, PlayStatus
from manyhands.store.records import unpack_trajectory
from manyhands.tasks import Item
from manyhands.testing import Fault, OpenAIServer, Script

HERE = "tests.rollout.test_rollouts"


class Tiny(Environment):
    """A calculator that always says the same, and every way to fail."""

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
        """Have a bug."""
        raise KeyError("oops")


class Quick(AgentBase):
    """Blocks, answers, and never asks a model."""

    def reply(self, x: Any = None) -> Msg:
        return Msg(name=self.name, content=f"{x.content}: 42")


class Blocking(AgentBase):
    """Blocks until enough others block beside it."""

    others = threading.Barrier(40)

    def reply(self, x: Any = None) -> str:
        Blocking.others.wait(30)
        return "42"


def play(script: Script, **settings: Any) -> Play:
    with OpenAIServer(script) as server:
        model = ModelSettings(name="m", base_url=server.url, api_key="k", max_retries=1)
        chosen: dict[str, Any] = {"run": "r", "environment": f"{HERE}:Tiny", "model": model, "judge": model} | settings
        return RolloutWorker(PlaySettings(**chosen)).run(Item("a", "what is it?", "42"))


def test_a_rollout_is_scored_and_its_trajectory_has_everything() -> None:
    calls = {"tools": [{"tool": "calculator", "arguments": {"expression": "6*7"}}, {"tool": "nothing"}]}
    done = play(Script(default=[calls, {"tool": "calculator", "arguments": "{no json"}, "It is 42."]))
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
    told = [message["content"] for message in trajectory["messages"] if message["role"] == "tool"]
    assert told[0] == "42"
    assert "no tool 'nothing'" in told[1]
    assert "JSON" in told[2]
    assert [step["kind"] for step in trajectory["steps"]] == ["model", "tool", "tool", "model", "tool", "model"]
    assert done.completion_tokens == sum(
        step["usage"]["completion_tokens"] for step in trajectory["steps"] if "usage" in step
    )


def test_turns_and_context_end_a_rollout_cleanly() -> None:
    call = {"tool": "calculator", "arguments": {"expression": "1"}, "content": "Perhaps 42."}
    done = play(Script(default=call), max_turns=3)
    assert (done.status, done.ending, done.turns, done.score) == ("completed", "turns used up", 3, 1.0)
    done = play(Script(default=call, context_limit=60))
    assert (done.status, done.ending) == ("completed", "context full")


def test_whose_failure_it_was() -> None:
    failed = play(Script(default={"tool": "bug"}))
    assert (failed.status, failed.kind) == (PlayStatus.FAILED, "KeyError")
    assert "oops" in failed.error
    down = play(Script(faults=[Fault(500)]))
    assert (down.status, down.kind) == (PlayStatus.INFRASTRUCTURE, "endpoint")
    refused = play(Script(faults=[Fault(401)]))
    assert (refused.status, refused.kind) == (PlayStatus.INFRASTRUCTURE, "refused")
    rejected = play(Script(faults=[Fault(400)]))
    assert (rejected.status, rejected.kind) == (PlayStatus.FAILED, "RequestRejected")


def test_the_time_limit_counts_work_and_not_waiting() -> None:
    late = play(Script(default=[{"tool": "sleep", "arguments": {"seconds": 30}}, "42"]), timeout=0.5)
    assert (late.status, late.kind) == (PlayStatus.TIMED_OUT, "time limit")
    assert 0.4 < late.seconds < 3
    patient = play(Script(faults=[Fault(429, last=1, retry_after=1.5)]), timeout=1.0)
    assert (patient.status, patient.score) == ("completed", 1.0)
    assert patient.waited >= 1.5


def test_the_working_clock() -> None:
    now = ManualClock()
    clock = WorkClock(10.0, now)
    now.advance(2)
    clock.pause("waiting for machine", None)
    clock.pause("retrying", 5.0)
    now.advance(7)
    clock.resume()
    now.advance(1)
    clock.resume()
    now.advance(1)
    assert (clock.worked, clock.waited) == (3.0, 8.0)


def test_an_agent_of_ones_own_may_block() -> None:
    done = play(Script(), agent=f"{HERE}:Quick")
    assert (done.status, done.answer, done.requests) == ("completed", "what is it?: 42", 0)


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


def test_infrastructure_is_retried_with_a_fresh_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tiny.broken = 0
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"})
    with OpenAIServer(Script(default=[{"tool": "crash"}, "42"])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        summary = run_parallel_rollout(config(tmp_path, data=data))
    assert (summary.mean, summary.plays, summary.owed) == (1.0, 3, 0)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        kept = [play.status for _, play in journal.results("1")]
        assert kept == ["infrastructure", "infrastructure", "completed"]
        assert journal.trajectory(1)["messages"], "a failed play keeps its trajectory"


def test_a_refusal_stops_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    data = write(tmp_path / "d.jsonl", *({"id": str(n), "question": "?", "answer": "42"} for n in range(50)))
    with OpenAIServer(Script(faults=[Fault(401)])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        monkeypatch.chdir(tmp_path)
        settings = write(tmp_path / "settings.json", {"num_rollouts": 4, "engine": "inline", "fresh": True})
        command = ["rollout", "--env", f"{HERE}:Tiny", "--data", str(data), "--fresh", "--config", str(settings)]
        assert main(command) == 1
        assert server.seen.requests <= 12
        said = capsys.readouterr().err
        assert "OPENAI_API_KEY" in said
        assert "50 rollouts left without a result. To continue:" in said
        program, *arguments = shlex.split(said.splitlines()[-1])
        assert (program, main(arguments)) == ("manyhands", 1)
    [run] = (tmp_path / "results").iterdir()
    assert json.loads((run / "summary.json").read_text())["sessions"] == 2, "it went on, and did not start anew"
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
    assert "exact_match: 0.000 over 6 answers" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "results/run"), "a"]) == 0
    assert "it is 42" in capsys.readouterr().out
    assert main(["runs", "--output-dir", str(tmp_path / "results")]) == 0
    assert main(["compare", str(tmp_path / "results/run"), str(tmp_path / "results/run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["difference"] == 0.0


@pytest.mark.parametrize("form", ["jsonl", "list", "items", "gz", "pretty"])
def test_formats_of_data(form: str, tmp_path: Path) -> None:
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
    items = list(read_benchmark(path))
    assert [item.question for item in items] == ["q1", "q2", "q3", "q4"]
    assert [item.id for item in items] == ["1", "b", "item_3", "item_4"]
    assert items[0].metadata == {"level": 3}
    assert items[1].references == ("x", "y")
    assert [item.id for item in read_benchmark(path, limit=2)] == ["1", "b"]
    assert [item.id for item in read_benchmark(path, task_ids=["b"])] == ["b"]
    with pytest.raises(UsageError, match="no task 'z'"):
        read_benchmark(path, task_ids=["z"])


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d", {"id": "a", "question": "q"}, "{broken", {"id": "b"}, {"id": "a", "question": "q"}, "[]"
    )
    with pytest.raises(BadData) as caught:
        read_benchmark(path)
    assert [line for line, _ in caught.value.problems] == [2, 3, 4, 5]
    assert "no JSON" in str(caught.value)
    assert "no question" in str(caught.value)
    assert "used before, in line 1" in str(caught.value)


def test_one_task_is_played_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    worker = RolloutWorker(RolloutConfig(mode="math", model="demo"))
    play = worker.run(Item("1", "Compute 2/3 + 1/6.", "5/6"))
    assert (play.status, play.score, play.ending) == (PlayStatus.COMPLETED, 1.0, "answered")
    assert worker.run(Item("2", "Compute 1/2 + 1/3.", "1")).score == 0.0
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="needs a machine"):
        RolloutWorker(RolloutConfig(mode="py", sandbox="vm", model="demo"))
    with pytest.raises(UsageError, match="no metric called 'maths'"):
        RolloutWorker(RolloutConfig(mode="math", metric="maths", model="demo"))


def test_rollouts_are_played_from_within_an_event_loop(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "?", "answer": "42"})

    async def cell_of_a_notebook() -> tuple[int, float | None]:
        summary = run_parallel_rollout(config(tmp_path, data=data, model="demo"))
        play = RolloutWorker(RolloutConfig(mode="math", model="demo")).run(Item("1", "Compute 1/2 + 1/3.", "5/6"))
        return summary.owed, play.score

    assert asyncio.run(cell_of_a_notebook()) == (0, 1.0)


@pytest.mark.parametrize("content", ['{"id": "ü", "question": "q"}'.encode("latin-1"), gzip.compress(b"{}" * 99)[:-9]])
def test_a_file_that_is_no_text_is_told_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(ConfigError, match=r"--data: .* cannot be read as JSON"):
        read_benchmark(tmp_path / "d")


def test_flags_variables_and_files_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    settings = tmp_path / "c.yaml"
    settings.write_text(f"data: {data}\nnum-rollouts: 7\nmodel: demo\nattempts: 2\n")
    monkeypatch.setenv("MANYHANDS_ATTEMPTS", "3")
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", "--env", f"{HERE}:Tiny", "--config", str(settings), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "1 task x 3 attempts = 3 rollouts, 3 owed" in said
    assert "7 rollouts at a time" in said
    assert not (tmp_path / "results").exists()
    settings.write_text("num_rolouts: 3\n")
    assert main(["rollout", "--config", str(settings)]) == 1
    assert "did you mean 'num_rollouts'" in capsys.readouterr().err
    settings.write_text("5: 3\n")
    assert main(["rollout", "--config", str(settings)]) == 1
    assert "one `key: value` for each setting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "osworld", "observation_type": "smell"}, "must be one of 'screenshot'"),
        ({"mode": "maths"}, "math"),
        ({}, "--mode is missing"),
        ({"mode": "math", "num_rollouts": 0}, "at least 1"),
        ({"mode": "math", "num_rollouts": "many"}, "whole number"),
        ({"mode": "math", "run_name": "../x"}, "plain name"),
        ({"mode": "math", "model": "gpt"}, "--model demo"),
        (
            {"mode": "math", "model": "demo", "engine": "rya"},
            "no engine called 'rya'; there are: inline, local, ray, spark",
        ),
        ({"mode": "math", "model": "demo", "agent": "careful"}, "not of the form 'package.module:Name'"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "d.jsonl", {"id": "a", "question": "q"})
    with pytest.raises((ConfigError, UsageError), match=message):
        run_parallel_rollout(RolloutConfig(data=data, output_dir=tmp_path / "results", **settings))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("mode", ["math", "py", "rag", "web"])
def test_the_policy_that_is_no_llm_solves_the_samples(mode: str, tmp_path: Path) -> None:
    options = {name: str(value) for name, value in sample_options(mode).items()}
    chosen = config(
        tmp_path, env=None, mode=mode, data=sample_path(mode), model="demo", engine="local", env_option=options
    )
    summary = run_parallel_rollout(chosen)
    assert (summary.mean, summary.owed, summary.failures) == (1.0, 0, {})


def test_a_score_of_the_environments_own_may_decide(tmp_path: Path) -> None:
    options = {name: str(value) for name, value in sample_options("rag").items()}
    chosen: dict[str, Any] = {"env": None, "mode": "rag", "data": sample_path("rag"), "limit": 2, "env_option": options}
    summary = run_parallel_rollout(config(tmp_path, model="demo", metric="citation", **chosen))
    assert (summary.mean, summary.scored) == (1.0, 2)
    with pytest.raises(UnknownName, match="no metric called 'citatoin'; there are: citation, contains"):
        prepare(config(tmp_path, model="demo", metric="citatoin", **chosen))


def test_documents_that_changed_make_another_run(tmp_path: Path) -> None:
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


def test_agents_that_block_have_a_thread_each(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", *({"id": str(n), "question": "?", "answer": "42"} for n in range(40)))
    chosen = config(tmp_path, data=data, model="demo", agent=f"{HERE}:Blocking", num_rollouts=40)
    assert run_parallel_rollout(chosen).mean == 1.0
