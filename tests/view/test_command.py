"""`paragent view` and `paragent rollout --view` as commands, with real rollouts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from paragent.cli import main
from paragent.demo.samples import sample_path
from tests.view.recorded import result, serving, write_run
from tests.waiting import wait_until

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)")


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paragent", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def link_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if match := LINK.search(line):
            return match[0]
    raise AssertionError("no link was printed")


@pytest.mark.slow
def test_the_command_prints_a_link_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path / "results", "one", [result("a", score=1.0)])
    process = start("view", "one", "--no-browser", folder=tmp_path)
    link = link_of(process)
    with httpx.Client() as client:
        assert client.get(link, follow_redirects=True).status_code == 200
        found = client.get(f"{link.partition('?')[0]}api/runs").json()
    assert [row["name"] for row in found["runs"]] == ["one"]
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in rest


@pytest.mark.slow
def test_an_address_that_others_can_reach_is_warned_about(tmp_path: Path) -> None:
    process = start("view", str(tmp_path), "--host", "0.0.0.0", "--no-browser", folder=tmp_path)
    assert process.stdout is not None
    assert "not encrypted" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.slow
def test_an_agent_server_is_shown_without_runs(tmp_path: Path) -> None:
    process = start("view", "--agent-server", "localhost:1", "--no-browser", folder=tmp_path)
    link = link_of(process)
    root = link.partition("?")[0]
    with httpx.Client() as client:
        client.get(link)
        assert client.get(f"{root}api/runs").json()["runs"] == []
        assert "localhost:1" in client.get(f"{root}api/servers").text
    assert process.stdout is not None
    assert any(
        line.startswith("paragent: agent server localhost:1: no agent server answers") for line in process.stdout
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_rollout_with_view_can_be_watched(tmp_path: Path) -> None:
    arguments = ["--mode", "math", "--model", "demo", "--data", str(sample_path("math")), "--limit", "3"]
    process = start("rollout", *arguments, "--run-name", "watched", "--view", folder=tmp_path)
    link = link_of(process)
    port = int(LINK.search(link)[1])  # type: ignore[index]  # it was matched before
    with httpx.Client() as client:
        client.get(link)
        seen = client.get(f"http://127.0.0.1:{port}/api/runs/watched").json()
    assert seen["row"]["total"] == 3
    process.communicate(timeout=60)
    assert process.returncode == 0

    def is_closed() -> bool:
        try:
            httpx.get(f"http://127.0.0.1:{port}/")
        except httpx.TransportError:
            return True
        return False

    wait_until(is_closed, 20, what="the view ends with the run")


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    for name, attempts in (("first", "1"), ("second", "2")):
        arguments = ["--mode", "math", "--model", "demo", "--data", str(sample_path("math")), "--limit", "3"]
        main(["rollout", *arguments, "--output-dir", str(folder / "runs"), "--run-name", name, "--attempts", attempts])
    return folder / "runs"


@pytest.mark.slow
def test_every_route_answers_for_real_rollouts(real_runs: Path) -> None:
    with serving(real_runs) as (_, client):
        assert {row["state"] for row in client.get("/api/runs").json()["runs"]} == {"complete"}
        detail = client.get("/api/runs/second").json()
        assert (detail["tasks"], detail["attempts"], detail["row"]["score"]) == (3, 2, 1.0)
        numbers = client.get("/api/runs/second/rollouts").json()["number"]
        assert len(numbers) == 6
        for number in numbers:
            execution = client.get(f"/api/runs/second/executions/{number}").json()
            assert {"user", "model", "tool"} <= {step["kind"] for step in execution["steps"]}
            assert execution["activity"]
            assert len(execution["attempts"]) == 2
            replies = [step["index"] for step in execution["steps"] if step["raw"]]
            assert client.get(f"/api/runs/second/executions/{number}/raw/{replies[-1]}").json()["request"]["messages"]
        timeline = client.get("/api/runs/second/timeline").json()
        assert timeline["tracks"]
        assert all(track["spans"] for track in timeline["tracks"])
        assert client.get("/api/compare?runs=first,second").json()["common"] == 3
        assert client.get("/api/runs/second/engine").json()["workers"]
        wait_until(lambda: client.get("/api/runs/second/search?q=calculator").json()["total"] > 0, 30, what="the index")


@pytest.mark.slow
def test_the_command_exports_runs(real_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(real_runs / "first"), "--export", str(tmp_path / "site")]) == 0
    assert "1 run written" in capsys.readouterr().out
    rows = json.loads((tmp_path / "site" / "data" / "runs.json").read_text())["runs"]
    assert [row["name"] for row in rows] == ["first"]
    assert str(real_runs) not in (tmp_path / "site" / "data" / "settings.json").read_text()


def test_mistakes_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "there is no run and no folder" in capsys.readouterr().err
    assert main(["view", str(tmp_path), "--port", "99999"]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["rollout", "--mode", "math", "--model", "demo", "--data", "x", "--view", "--detach"]) == 2
    assert "--detach" in capsys.readouterr().err


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'starlette'\", name='starlette')"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "paragent", "view", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "[view]'" in done.stderr
