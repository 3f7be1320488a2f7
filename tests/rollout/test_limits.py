"""Limits and usage of rollouts, runs that stop early, exit statuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from paragent import AgentBase, AgentResult, Environment, RolloutConfig, TurnsUsedUp, run_parallel_rollout, tool
from paragent.cli import main
from paragent.errors import EnvironmentFailed
from paragent.execution import waiting
from paragent.rollout.blame import SameFailures
from paragent.rollout.prepare import prepare
from paragent.rollout.session import RolloutSession
from paragent.scorers import Score, Scorer
from paragent.store import Journal, RolloutResult, RolloutStatus
from paragent.tasks import BenchmarkTask
from paragent.testing import Fault, OpenAIServer, Script
from tests.waiting import wait_until, wait_until_async

HERE = "tests.rollout.test_limits"


class Plain(Environment):
    """Without tools."""

    name = "plain"
    metric = "contains"

    @tool
    async def wait(self) -> str:
        """Do nothing for as long as the test lasts."""
        await asyncio.sleep(600)
        return ""


class Sharing(Plain):
    """Has a resource that writes down, when it is closed, which status files there are."""

    @staticmethod
    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        live = Path("results/run/live")
        await wait_until_async(lambda: any(live.glob("*-*.json")), 60)
        yield
        Path("closed.json").write_text(json.dumps([path.name for path in live.glob("*-*.json")]))

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        await self.shared.get("resource", self.resource)
        return await super().open(task, machine)


class Restless(AgentBase):
    """Requests completions forever."""

    async def run_episode(self, episode: Any) -> AgentResult:
        episode.messages.append({"role": "user", "content": episode.question})
        while True:
            await episode.complete()


class Stubborn(AgentBase):
    """Requests completions forever and ignores TurnsUsedUp. Only the requests that are refused count as working time."""

    async def run_episode(self, episode: Any) -> AgentResult:
        episode.messages.append({"role": "user", "content": episode.question})
        with waiting("completions"), contextlib.suppress(TurnsUsedUp):
            while True:
                await episode.complete()
        while True:
            with contextlib.suppress(TurnsUsedUp):
                await episode.complete()


class Thinker(AgentBase):
    """Creates messages without the model, forever."""

    async def think(self) -> dict[str, Any]:
        return {"role": "assistant", "content": "42, I think"}

    async def run_episode(self, episode: Any) -> AgentResult:
        while True:
            await episode.take(self.think())


class Rude(AgentBase):
    """Raises an error with a different number each time."""

    def reply(self, x: Any = None) -> str:
        raise ValueError(f"no idea {time.monotonic_ns()}")


class Demanding(AgentBase):
    """Needs a constructor argument."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        super().__init__(name)

    def reply(self, x: Any = None) -> str:
        return "42"


class Mute(AgentBase):
    """Has no `reply` method."""


def write(path: Path, number: int) -> Path:
    path.write_text("".join(json.dumps({"id": f"t{n}", "question": "?", "answer": "42"}) + "\n" for n in range(number)))
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that builds the command line of a run."""
    monkeypatch.chdir(tmp_path)

    def arguments(server: OpenAIServer, tasks: int, *more: str) -> list[str]:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        data = str(write(tmp_path / "d.jsonl", tasks))
        return [
            "rollout", "--env", f"{HERE}:Plain", "--data", data, "--engine", "inline", "--run-name", "run",
            "--model", "m", "--max-retries", "0", *more,
        ]  # fmt: skip

    return arguments


def results(folder: Path) -> list[RolloutResult]:
    with Journal(folder / "results/run/journal.sqlite", read_only=True) as journal:
        return list(journal.results("1"))


# --- turns ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("agent", "requests"), [("Restless", 5), ("Thinker", 0)])
def test_max_turns_applies_to_agents_that_control_the_episode(
    agent: str, requests: int, run: Any, tmp_path: Path
) -> None:
    with OpenAIServer(Script(default="42 perhaps")) as server:
        assert main(run(server, 1, "--max-turns", "5", "--agent", f"{HERE}:{agent}")) == 0
        assert server.seen.requests == requests
    [result] = results(tmp_path)
    assert (result.status, result.ending, result.turns, result.score) == ("completed", "turns used up", 5, 1.0)
    assert "42" in (result.answer or "")


def test_an_agent_that_ignores_max_turns_times_out(run: Any, tmp_path: Path) -> None:
    with OpenAIServer(Script(default="42")) as server:
        assert main(run(server, 1, "--max-turns", "2", "--timeout", "1", "--agent", f"{HERE}:Stubborn")) == 1
        assert server.seen.requests == 2
    [result] = results(tmp_path)
    assert (result.status, result.turns, result.requests) == (RolloutStatus.TIMED_OUT, 2, 2)


# --- the account ----------------------------------------------------------------------------------------------------------


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    source = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-m", "paragent", *command], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )


def used(folder: Path) -> list[list[Any]]:
    """Return the usage in the status files of workers."""
    found = []
    for path in (folder / "results/run/live").glob("*-*.json"):
        try:
            found += [one for one in json.loads(path.read_text())["active"] if one[5]]  # with requests
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.slow
def test_usage_of_a_cancelled_rollout_is_counted(run: Any, tmp_path: Path) -> None:
    with OpenAIServer(Script(default={"tool": "wait"})) as server:
        process = start([*run(server, 3), "--engine", "local", "--workers", "1"], tmp_path)
        try:
            wait_until(lambda: len(used(tmp_path)) == 3, 60)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 130, said
    summary = json.loads((tmp_path / "results/run/summary.json").read_text())
    assert (summary["requests"], summary["pending"], summary["done"]) == (3, 3, 0)
    assert summary["prompt_tokens"] > 0
    assert {result.kind for result in results(tmp_path)} == {"cancelled"}


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_usage_of_a_killed_worker_is_counted(victim: str, run: Any, tmp_path: Path) -> None:
    with OpenAIServer(Script(default={"tool": "wait"})) as server:
        command = [*run(server, 3), "--engine", "local", "--workers", "1"]
        process = start(command, tmp_path)
        try:
            wait_until(lambda: len(used(tmp_path)) == 3, 60)
            [status_file] = (tmp_path / "results/run/live").glob("*-*.json")
            worker = int(status_file.stem.rpartition("-")[2])
            if victim == "worker":
                os.kill(worker, signal.SIGKILL)
                # What the dead worker wrote is still there. The rollouts are retried one at a time, so when the first of them
                # has its answer, no other request is in flight.
                wait_until(lambda: len(used(tmp_path)) == 4, 60)
                process.send_signal(signal.SIGINT)
            else:
                process.kill()
            process.communicate(timeout=60)
        finally:
            process.kill()
        if victim == "driver":
            wait_until(lambda: not Path(f"/proc/{worker}").exists(), 30)
    with RolloutSession(prepare(_again(command))) as session:
        summary = session.summary()
    assert [result.requests for result in results(tmp_path) if result.kind == "worker" and result.requests] == [1, 1, 1]
    assert summary.requests == (server.seen.requests if victim == "worker" else 3)
    assert (summary.pending, summary.done) == (3, 0)


def _again(command: list[str]) -> RolloutConfig:
    """Return the configuration of a command line."""
    flags: dict[str, Any] = dict(zip(command[1::2], command[2::2], strict=True))
    return RolloutConfig(**{name.removeprefix("--"): value for name, value in flags.items()})


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_worker_removes_its_status_file_before_it_closes_its_resources(engine: str, run: Any, tmp_path: Path) -> None:
    with OpenAIServer(Script(default="42")) as server:
        assert main([*run(server, 1), "--env", f"{HERE}:Sharing", "--engine", engine, "--workers", "1"]) == 0
    wait_until((tmp_path / "closed.json").exists, 60)
    assert json.loads((tmp_path / "closed.json").read_text()) == []


# --- giving up, and the exit status ---------------------------------------------------------------------------------------


def failed(error: str, kind: str = "ValueError") -> RolloutResult:
    return RolloutResult("a", 1, RolloutStatus.FAILED, kind=kind, error=error)


def test_only_identical_first_failures_stop_a_run() -> None:
    alike = SameFailures(3)
    assert [alike.note(failed(f"ValueError: no 'x{n}' at 0x{n}f\n  line {n}")) for n in range(2)] == ["", ""]
    assert "the first 3 rollouts all failed with the same error: ValueError: no" in alike.note(
        failed("ValueError: no 'y' at 1")
    )
    for other in (
        RolloutResult("a", 1, RolloutStatus.COMPLETED),
        RolloutResult("a", 1, RolloutStatus.TIMED_OUT),
        failed("KeyError: 1", "KeyError"),
    ):
        alike = SameFailures(3)
        alike.note(failed("ValueError: 1"))
        alike.note(other)
        assert not any(alike.note(failed("ValueError: 1")) for _ in range(9)), other
    never = SameFailures(0)
    assert not any(never.note(failed("ValueError: 1")) for _ in range(9))


def test_a_run_stops_when_its_first_rollouts_fail_with_the_same_error(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(default="42")) as server:
        command = run(server, 100, "--agent", f"{HERE}:Rude", "--num-rollouts", "4")
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "stopped early: the first 10 rollouts all failed with the same error: ValueError: no idea" in said
        assert "--retry-failed" in said.splitlines()[-1]
        assert 10 <= len(results(tmp_path)) < 20
        assert main([*command, "--give-up-after", "0"]) == 1
    assert len(results(tmp_path)) == 100


def test_a_run_with_only_rejected_requests_stops_with_the_endpoints_message(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(faults=[Fault(400)])) as server:
        assert main(run(server, 200)) == 1
        assert server.seen.requests < 40
    assert "RequestRejected" in capsys.readouterr().err


def test_retry_failed_executes_failed_rollouts_again(run: Any, tmp_path: Path) -> None:
    with OpenAIServer(Script(default="42", faults=[Fault(400, last=3)])) as server:
        command = run(server, 3)
        assert main(command) == 1
        assert main(command) == 1, "failed rollouts have a final result"
        assert server.seen.requests == 3
        assert main([*command, "--retry-failed"]) == 0
    summary = json.loads((tmp_path / "results/run/summary.json").read_text())
    assert (summary["mean"], summary["executions"], summary["statuses"]["failed"]) == (1.0, 6, 0)
    assert len((tmp_path / "results/run/results.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("agent", "message"),
    [("Demanding", "cannot be constructed: missing a required argument: 'tokenizer'"), ("Mute", "a `reply`")],
)
def test_an_unusable_agent_is_rejected_before_the_run(
    agent: str, message: str, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script()) as server:
        assert main(run(server, 5, "--agent", f"{HERE}:{agent}")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("answer", "status"), [("no", 1), ("42", 0)])
def test_exit_status_of_a_run_that_used_up_all_turns(
    answer: str, status: int, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(default=answer)) as server:
        assert main(run(server, 3, "--max-turns", "2", "--agent", f"{HERE}:Restless")) == status
    assert ("all rollouts used up their turns" in capsys.readouterr().err) == bool(status)


# --- the model that nobody chose ------------------------------------------------------------------------------------------


class Undecided(Scorer):
    """Does not score answers that contain a question mark."""

    name = "undecided"

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        return Score(None if "?" in answer else 1.0)


@pytest.mark.parametrize(
    ("reference", "answers", "status"), [("42", ["?", "?"], 1), (None, ["?", "1"], 1), (None, ["?", "?"], 0)]
)
def test_exit_status_of_a_completed_rollout_without_a_score(
    reference: str | None,
    answers: list[str],
    status: int,
    run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = Script(answers={f"question {number}": answer for number, answer in enumerate(answers)})
    with OpenAIServer(script) as server:
        command = run(server, 1, "--metric", f"{HERE}:Undecided")
        lines = [{"id": str(n), "question": f"question {n}", "answer": reference} for n in range(len(answers))]
        (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert main(command) == status
    said = capsys.readouterr().err
    assert (f"{answers.count('?')} rollout" in said) == bool(status)
    assert ("completed without a score: the scorer had nothing to compare" in said) == bool(status)


class Broken(Scorer):
    """Fails for every answer."""

    name = "broken"

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        raise EnvironmentFailed("no verdict")


def test_the_hint_after_a_failed_scorer_is_a_command_that_works(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paragent.rollout.worker.SCORE_PAUSE", 0.0)
    with OpenAIServer(Script()) as server:
        assert main(run(server, 1, "--metric", f"{HERE}:Broken")) == 1
        said = capsys.readouterr().err
        hint = re.search("the scorer failed for 1 answer; .*; `(.*)` scores it without another rollout", said)
        assert hint, said
        assert main(shlex.split(hint[1])[1:]) == 1, "the scorer still fails"
    assert "no verdict" in capsys.readouterr().err


def without_model(command: list[str]) -> list[str]:
    place = command.index("--model")
    return command[:place] + command[place + 2 :]


def test_the_default_model_needs_confirmation(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(default="42")) as server, Path(os.devnull).open() as nobody:
        command = without_model(run(server, 2))
        monkeypatch.setattr(sys, "stdin", nobody)
        assert main(command) == 2
        said = capsys.readouterr().err
        assert f"2 rollouts with the default model, gpt-4.1-2025-04-14, at {server.url}: nothing was started" in said
        assert not (tmp_path / "results").exists()
        assert server.seen.requests == 0
        assert main([*command, "--yes"]) == 0
        assert f"Model gpt-4.1-2025-04-14 at {server.url}" in capsys.readouterr().err
        monkeypatch.setenv("PARAGENT_MODEL", "chosen")
        assert main([*command, "--fresh"]) == 0
        assert f"Model chosen at {server.url}" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "status"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_the_default_model_is_confirmed_at_a_terminal(
    said: str, status: int, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = os.openpty()
    with OpenAIServer(Script(default="42")) as server, os.fdopen(here, "r") as terminal:
        os.write(there, said.encode() or b"\x04")
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(without_model(run(server, 2))) == status
        assert server.seen.requests == (0 if status else 2)
    os.close(there)


def test_credentials_in_the_endpoint_url_are_not_printed(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(default="42")) as server, Path(os.devnull).open() as nobody:
        command = without_model(run(server, 1))
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("//", "//me:secret@"))
        monkeypatch.setattr(sys, "stdin", nobody)
        assert main(command) == 2
    said = capsys.readouterr().err
    assert f"at {server.url}" in said
    assert "secret" not in said


def test_a_configuration_in_python_needs_no_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default="42")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        chosen = RolloutConfig(
            env=f"{HERE}:Plain", data=write(tmp_path / "d", 2), engine="inline", output_dir=tmp_path / "results"
        )
        assert run_parallel_rollout(chosen).mean == 1.0
