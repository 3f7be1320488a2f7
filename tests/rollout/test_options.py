"""Flags: processes, prices, secrets, clusters, modules, rescoring."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, RolloutConfig, RunBusy, UnknownName, run_parallel_rollout
from paragent.cli import main
from paragent.demo.samples import sample_path
from paragent.rollout.config import HIDDEN, is_secret
from paragent.rollout.machines import host_address
from paragent.rollout.prepare import prepare
from paragent.store import Journal, RunDirectory
from paragent.testing import Fault, OpenAIServer, Script

TINY = "tests.rollout.test_rollouts:Tiny"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{i}", "question": "?", "answer": "42"}) + "\n" for i in range(12)))
    return path


def run(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **settings: Any) -> Any:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    chosen: dict[str, Any] = {"env": TINY, "output_dir": tmp_path / "results", "run_name": "run", "model": "m"}
    return run_parallel_rollout(RolloutConfig(**chosen | settings))


@pytest.mark.slow
def test_isolate_uses_one_process_per_rollout(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default="42", latency=0.3)) as server:
        summary = run(server, monkeypatch, tmp_path, data=data, isolate=True, num_rollouts=4)
    assert (summary.mean, summary.pending) == (1.0, 0)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        results = sorted((result.worker, result.ended - result.seconds, result.ended) for result in journal.results())
    assert 1 < len({worker for worker, *_ in results}) <= 4
    for (worker, _, ended), (other, began, _) in itertools.pairwise(results):
        assert worker != other or began >= ended - 0.05, "one rollout at a time in each process"


def test_streamed_answers_and_prices(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("m: {input: 1000000, output: 2000000}\n")
    replies = [{"tool": "calculator", "arguments": {"expression": "6*7"}}, "It is 42."]
    chosen: dict[str, Any] = {"data": data, "engine": "inline", "stream": True, "prices": prices}
    with OpenAIServer(Script(default=replies), keep_requests=True) as server:
        summary = run(server, monkeypatch, tmp_path, **chosen)
        assert all(body["stream"] for body in server.seen.bodies)
        unknown = run(server, monkeypatch, tmp_path, **chosen | {"model": "other", "run_name": "other"})
    assert (summary.mean, unknown.mean) == (1.0, 1.0)
    assert summary.cost == summary.prompt_tokens + 2 * summary.completion_tokens > 0
    assert unknown.cost is None, "unknown for a model without a price"
    assert main(["show", str(tmp_path / "results/run")]) == 0
    assert f"{summary.cost:,.4f}" in capsys.readouterr().out
    prices.write_text("m: {input: cheap}\n")
    assert main(["rollout", "--env", TINY, "--data", str(data), "--model", "m", "--prices", str(prices)]) == 2
    assert "needs two numbers" in capsys.readouterr().err


@pytest.mark.slow
def test_secrets_are_not_stored(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(is_secret, ("api_key", "apikey", "SERPER-KEY", "token", "client_password", "aws_secret", "key")))
    assert not any(map(is_secret, ("monkey", "max_tokens", "keyboard", "top_k", "tokenizer")))
    chosen: dict[str, Any] = {"data": data, "model": "demo", "mode": "math", "client_password": "tiger-1"}
    chosen |= {"vm_option": {"access_key": "tiger-2", "region": "moon"}, "output_dir": tmp_path, "limit": 1}
    config = RolloutConfig(**chosen)
    run_parallel_rollout(config)
    [folder] = (path for path in tmp_path.iterdir() if path.is_dir())
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"tiger" not in written
    shown = json.loads((folder / "config.json").read_text())
    assert (shown["client_password"], shown["vm_option"]) == (HIDDEN, {"access_key": HIDDEN, "region": "moon"})
    other = RolloutConfig(**chosen | {"client_password": "another"})
    assert prepare(other).path == folder, "a new password is not a new run"


def test_settings_of_a_running_cluster(data: Path) -> None:
    chosen: dict[str, Any] = {"env": TINY, "data": data, "model": "demo"}
    assert host_address(RolloutConfig(**chosen).run) == "127.0.0.1"
    ray = RolloutConfig(**chosen, engine="ray", engine_address="127.0.0.1:6379")
    engine = prepare(ray).engine
    assert (engine.in_local, engine.engine_options, host_address(ray.run)) == (
        False,
        {"address": "127.0.0.1:6379"},
        "127.0.0.1",
    )
    spark = RolloutConfig(**chosen, engine="spark", engine_address="spark://10.0.0.1:7077", host="10.0.0.2")
    assert (spark.run.engine_options, host_address(spark.run)) == ({"master": "spark://10.0.0.1:7077"}, "10.0.0.2")
    assert prepare(RolloutConfig(**chosen)).path == prepare(spark).path, "the engine is not part of the identity"
    with pytest.raises(ConfigError, match="--engine-address is for ray and spark"):
        RolloutConfig(**chosen, engine_address="127.0.0.1:1")


def test_engine_options_are_parsed_passed_and_stored_without_secrets(data: Path) -> None:
    chosen: dict[str, Any] = {"env": TINY, "data": data, "model": "demo", "engine": "spark"}
    conf = {"spark.executor.memory": "1g", "spark.hadoop.fs.s3a.secret.key": "tiger"}
    options: Any = ["partitions=2", f"conf={json.dumps(conf)}"]  # as the command line has them
    config = RolloutConfig(**chosen, engine_option=options)
    assert prepare(config).engine.engine_options == {"partitions": 2, "conf": conf}
    assert prepare(config).path == prepare(RolloutConfig(**chosen)).path, "options are not part of the identity"
    assert config.stored()["engine_option"] == {
        "partitions": 2,
        "conf": {**conf, "spark.hadoop.fs.s3a.secret.key": HIDDEN},
    }
    with pytest.raises(ConfigError, match="no option 'partition'"):
        prepare(RolloutConfig(**chosen, engine_option={"partition": 2}))
    with pytest.raises(ConfigError, match="--engine-address"):
        RolloutConfig(**chosen, engine_option={"master": "spark://10.0.0.1:7077"})


def test_a_wrong_key_gives_no_score_one_count_and_a_failure(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    command = ["rollout", "--env", TINY, "--data", str(data), "--model", "m", "--run-name", "run", "--engine", "inline"]
    command += ["--output-dir", str(tmp_path / "results")]
    with OpenAIServer(Script(faults=[Fault(401)])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        assert main(command) == 1
        shown = capsys.readouterr()
        assert main([*command, "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert (summary["mean"], summary["mean_of_all"], summary["interval"], summary["measured"]) == (None, None, None, 0)
    assert (summary["done"], summary["pending"], summary["rollouts"]) == (0, 12, 12)
    assert json.loads((tmp_path / "results/run/summary.json").read_text())["mean"] is None
    assert "none: nothing was measured" in shown.out
    assert "0 of 12 done" in shown.out
    assert "run: 0 of 12 done" in shown.err
    assert "12 rollouts without a result" in shown.err


def test_cut_replies_are_reported(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "It is 42"}, "finish_reason": "length"}
    with OpenAIServer(Script(default={"body": {"choices": [choice]}})) as server:
        summary = run(server, monkeypatch, tmp_path, data=data, engine="inline")
    assert (summary.cut, summary.mean) == (12, 1.0)
    assert main(["show", str(tmp_path / "results/run"), "--cut"]) == 0
    assert "cut replies" in capsys.readouterr().out


def test_rescore_needs_the_lock_of_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with OpenAIServer(Script(default="It is 42.")) as server:
        run(server, monkeypatch, tmp_path, data=data, engine="inline")
    path = tmp_path / "results/run"
    holder = RunDirectory(path)
    holder.open_existing()
    with pytest.raises(RunBusy):
        RunDirectory(path).open_existing()
    assert main(["rescore", str(path), "--metric", "exact_match"]) == 2
    assert "is in use by process" in capsys.readouterr().err
    holder.close()
    assert main(["rescore", str(path), "--metric", "exact_match"]) == 0
    lines = [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
    assert all(line["scores"] == {"contains": 1.0, "exact_match": 0.0} for line in lines)


@pytest.mark.slow
def test_modules_in_the_current_folder_are_found(data: Path, tmp_path: Path) -> None:
    (tmp_path / "my_world.py").write_text(
        "from paragent import AgentBase, Environment\n"
        "class World(Environment):\n    name = 'world'\n    metric = 'contains'\n"
        "class Sure(AgentBase):\n    def reply(self, x=None):\n        return '42'\n"
    )
    command = [str(Path(sys.executable).with_name("paragent")), "rollout", "--data", str(data), "--model", "demo"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def outcome(*more: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        return done.returncode, done.stdout + done.stderr

    status, said = outcome("--env", "my_world:World", "--agent", "my_world:Sure", "--json")
    assert (status, '"mean": 1.0' in said) == (0, True), said
    for flag in ("--env", "--agent", "--metric"):
        status, said = outcome("--env", "my_world:World", flag, "no_world:X")
        assert (status, f"{flag} no_world:X" in said, "Traceback" in said) == (2, True, False), said


def test_the_current_folder_has_priority_over_installed_modules(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed/hands_on.py").write_text("class Theirs: ...\n")
    (tmp_path / "hands_on.py").write_text("class Mine:\n    async def run_episode(self, episode): ...\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.chdir(tmp_path)
    command = ["rollout", "--mode", "math", "--model", "demo", "--data", str(data), "--dry-run", "--agent"]
    assert main([*command, "hands_on:Mine"]) == 0
    assert main([*command, "hands_on:Theirs"]) == 2
    assert f"module 'hands_on' ({tmp_path / 'hands_on.py'}) has no attribute 'Theirs'" in capsys.readouterr().err


@pytest.mark.parametrize(("right", "mean"), [(True, 1.0), (False, 0.0)])
def test_a_benchmark_in_humaneval_format(
    right: bool, mean: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [json.loads(line) for line in sample_path("py").read_text().splitlines()]
    chosen = [entry for entry in entries if "canonical_solution" in entry]
    assert len(chosen) >= 3
    lines, answers = [], {}
    for number, entry in enumerate(chosen):
        prompt = entry.pop("question")
        lines.append(json.dumps({**entry, "task_id": f"HumanEval/{number}", "prompt": prompt}))
        answers[f"def {entry['entry_point']}("] = entry["canonical_solution"] if right else "    return None\n"
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with OpenAIServer(Script(answers=answers)) as server:
        summary = run(server, monkeypatch, tmp_path, env=None, mode="py", data=path, engine="inline")
    assert (summary.mean, summary.done, summary.failures) == (mean, len(chosen), {})


def test_sample_tasks_need_no_file_and_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = run_parallel_rollout(RolloutConfig(mode="rag", data="sample", model="demo", engine="inline", limit=2))
    assert (summary.mean, summary.scored) == (1.0, 2)
    plan = prepare(RolloutConfig(mode="rag", data="sample", model="demo", env_option={"top_k": "3"}))
    assert plan.config.data.path == sample_path("rag")
    assert plan.settings.options["top_k"] == "3"


def test_a_file_called_sample_has_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sample").write_text('{"id": "own", "question": "q", "answer": "a"}\n')
    plan = prepare(RolloutConfig(mode="math", data="sample", model="demo"))
    assert [task.id for task in plan.benchmark] == ["own"]


@pytest.mark.parametrize("settings", [{}, {"env": TINY}, {"mode": "math", "env": TINY}])
def test_sample_tasks_belong_to_a_mode(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="set --mode"):
        prepare(RolloutConfig(data="sample", model="demo", **settings))


def test_a_mode_may_have_no_sample_tasks() -> None:
    with pytest.raises(UnknownName, match="no sample called 'openenv'; there are: math, osworld"):
        prepare(RolloutConfig(mode="openenv", data="sample", model="demo"))


def test_missing_answers_are_reported_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "tasks.jsonl"
    command = ["rollout", "--mode", "math", "--model", "demo", "--data", str(data), "--dry-run"]
    for answer, reported in (({}, True), ({"answer": "4"}, False)):
        data.write_text(json.dumps({"question": "2 + 2?", **answer}) + "\n")
        assert main(command) == 0
        assert ("no task has an expected answer, so nothing is scored" in capsys.readouterr().err) is reported
