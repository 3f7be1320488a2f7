"""OpenEnv, with the real package in an environment of its own: its servers in rollouts, and its clients of our server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, RolloutConfig, RolloutWorker, run_parallel_rollout
from paragent.rollout import blame
from paragent.rollout.prepare import prepare
from paragent.runners.retry import RetryPolicy
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script
from tests.children import BoundedPopen
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-openenv/bin/python"
PEER = Path(__file__).with_name("openenv_peer.py")
TINY = "tests.rollout.test_rollouts:Tiny"
pytestmark = [pytest.mark.slow, pytest.mark.integration]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def peer(kind: str) -> Iterator[tuple[str, subprocess.Popen[Any]]]:
    """Run a server of the real package."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with BoundedPopen([PYTHON, PEER, "serve", kind, str(port)]) as process:
        try:
            wait_until(lambda: _listens(port), 60)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()


def execute(script: Script, metadata: dict[str, Any] | None = None, **settings: Any) -> RolloutResult:
    with OpenAIServer(script) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "k")
        worker = RolloutWorker(RolloutConfig(model="m", **settings))
        return worker.run(BenchmarkTask("a", "Find it.", None, metadata or {}))


def messages_of(done: RolloutResult) -> list[Any]:
    assert done.trajectory is not None
    return [(one["role"], one.get("content")) for one in unpack_trajectory(done.trajectory)["messages"]]


def test_actions_of_a_server_are_a_tool_and_its_last_reward_is_the_score() -> None:
    guesses = [{"tool": "step", "arguments": {"guess": number}} for number in (5, 0, 3)]
    with peer("guess") as (url, _):
        done = execute(Script(default=[*guesses, "found it"]), {"reset": {"secret": 3}}, env=f"openenv:{url}")
        half = execute(Script(default=[guesses[0], "no idea"]), env="openenv:" + url, metric="total_reward")
    assert (done.status, done.error, done.ending) == ("completed", "", "done")
    assert (done.score, done.scores) == (1.0, {"reward": 1.0, "total_reward": 1.25})
    assert messages_of(done)[0] == ("user", "Find it.\n\nguess a number from 1 to 10")
    said = [content for role, content in messages_of(done) if role == "tool"]
    assert said == ["lower", "zero is not a number from 1 to 10", "found"]
    assert (half.score, half.ending) == (0.25, "answered")


def test_mcp_tools_of_a_server_are_the_tools() -> None:
    calls = [{"tool": "shout", "arguments": {"text": "hello"}}, {"tool": "shout", "arguments": {}}]
    with peer("tools") as (url, _):
        done = execute(Script(default=[*calls, "HELLO"]), mode="openenv", env_option={"url": url})
    assert (done.status, done.error, done.score) == ("completed", "", 0.5)
    said = [content for role, content in messages_of(done) if role == "tool"]
    assert said[0] == "HELLO"
    assert done.trajectory is not None
    [shout] = unpack_trajectory(done.trajectory)["tools"]
    assert list(shout["function"]["parameters"]["properties"]) == ["text"]
    wrong = [step for step in unpack_trajectory(done.trajectory)["steps"] if step.get("error")]
    assert len(wrong) == 1


def test_a_lost_server_is_an_infrastructure_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.001))
    (tmp_path / "d.jsonl").write_text('{"id": "a", "question": "Find it."}\n')
    with peer("guess") as (url, process):
        config = RolloutConfig(
            env=f"openenv:{url}",
            data=tmp_path / "d.jsonl",
            model="demo",
            output_dir=tmp_path,
            run_name="run",
            engine="inline",
        )
        prepare(config)
        process.kill()
        process.wait(60)
        with pytest.raises(ConfigError, match="there is no OpenEnv server"):
            prepare(config)
    with peer("guess") as (url, process):
        agent = "tests.mcp.test_openenv:kills"
        killed.append(process)
        result = execute(Script(default="x"), env=f"openenv:{url}", agent=agent)
    assert (result.status, result.kind) == (RolloutStatus.INFRASTRUCTURE, "environment"), result.error


killed: list[subprocess.Popen[Any]] = []


class kills:  # noqa: N801 - named as `--agent` names it
    """Kills the server, then acts."""

    async def run_episode(self, episode: Any) -> str:
        killed.pop().kill()
        call = {"id": "1", "function": {"name": "step", "arguments": '{"guess": 1}'}}
        await episode.answer_calls([call])
        return "answered"


@contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """Serve our environment with the protocol of OpenEnv."""
    tasks = [{"id": "a", "question": "first", "answer": "1"}, {"id": "b", "question": "second", "answer": "42"}]
    (folder / "d.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "token").write_text("t0ken")
    command = [sys.executable, "-m", "paragent", "env", "serve", "--protocol", "openenv", "--env", TINY]
    command += ["--data", str(folder / "d.jsonl"), "--token-file", str(folder / "token")]
    with BoundedPopen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_clients_of_the_package_use_our_environments(tmp_path: Path) -> None:
    with own_server(tmp_path) as url:
        used = subprocess.run(
            [PYTHON, PEER, "client", url, "t0ken"], capture_output=True, text=True, timeout=100, check=False
        )
        assert used.returncode == 0, used.stderr
        refused = subprocess.run(
            [PYTHON, PEER, "client", url, "wrong"], capture_output=True, text=True, timeout=100, check=False
        )
    got = json.loads(used.stdout)
    assert (got["question"], got["tools"][0]) == ("second", "calculator")
    assert got["called"] == [{"data": "42"}, None, False]
    assert "there is no tool 'nothing'" in got["failed"]
    assert (got["state"]["step_count"], got["state"]["task_id"]) == (2, "b")
    assert (got["last"], got["again"], got["wrong"]) == ([1.0, True], ["first", False], [0.0, True])
    assert (got["mcp_tools"], got["mcp_called"]) == (got["tools"], "42")
    assert "401" in refused.stderr


def test_our_client_uses_our_server(tmp_path: Path) -> None:
    call = {"tool": "calculator", "arguments": {"expression": "6*7"}}
    with own_server(tmp_path) as url:
        option = {"token": "t0ken", "reset": '{"task_id": "b"}'}
        done = execute(Script(default=[call, "It is 42."]), env=f"openenv:{url}", env_option=option)
    assert (done.status, done.error, done.score) == ("completed", "", 1.0)
    assert ("tool", "42") in messages_of(done)


def test_a_run_uses_a_session_for_each_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"id": f"t{n}", "question": "Find it.", "reset": {"secret": n}} for n in (1, 2, 3)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = Script(default=[{"tool": "step", "arguments": {"guess": 2}}, "done"])
    with peer("guess") as (url, _), OpenAIServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        where: dict[str, Any] = {
            "data": tmp_path / "d.jsonl",
            "output_dir": tmp_path,
            "run_name": "run",
            "engine": "inline",
        }
        summary = run_parallel_rollout(RolloutConfig(env=f"openenv:{url}", model="m", **where))
    assert (summary.done, summary.pending, summary.mean) == (3, 0, 0.5)
