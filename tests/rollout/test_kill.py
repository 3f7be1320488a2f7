"""SIGKILL of the driver, a worker and the endpoint during a run: no result is lost or duplicated."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paragent.testing.programs import alive
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # each test starts the command up to five times, which takes long on a busy machine
]
TASKS = int(os.environ.get("PARAGENT_KILL_TASKS", "100"))
ENGINE = os.environ.get("PARAGENT_KILL_ENGINE", "local")
SECONDS = max(60, TASKS)
"""Seconds for a part of the tasks on a slow machine and an engine that starts slowly."""
SCRIPT = {
    "default": [{"tool": "calculator", "arguments": {"expression": "6*7"}}, "The answer is \\boxed{42}."],
    "latency": 0.1,
}


class Endpoint:
    """The scripted endpoint as a process that can be killed and restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "script.json"
        self.script.write_text(json.dumps(SCRIPT))
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "paragent.testing.openai_server", "--script", str(self.script)]
        command += ["--port", str(self.port), "--die-with-parent"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2].partition("/")[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path)
    yield made
    made.kill()


TINY = '''
from typing import Annotated
from paragent import Environment, tool

class Tiny(Environment):
    """Has no start-up time."""
    name = "tiny"
    metric = "contains"

    @tool
    async def calculator(self, expression: Annotated[str, "what"]) -> str:
        """Compute."""
        return "42"
'''


def write_tasks(path: Path) -> None:
    (path.parent / "tiny.py").write_text(TINY)
    path.write_text(
        "".join(
            json.dumps({"id": f"t{i}", "question": f"6*7, for the {i}th time", "answer": "42"}) + "\n"
            for i in range(TASKS)
        )
    )


@pytest.fixture(autouse=True)
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Kill processes that a failed test left."""
    yield _started
    for process in _started:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=20)
    _started.clear()


_started: list[subprocess.Popen[str]] = []


def start(folder: Path, endpoint: Endpoint) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paragent", "rollout", "--env", "tiny:Tiny", "--data", "tasks.jsonl", "--json"]
    command += ["--num-rollouts", "10", "--engine", ENGINE, "--run-name", "run", "--model", "m", "--max-retries", "1"]
    environment = os.environ | {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "any"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    _started.append(process)
    return process


def recorded(folder: Path) -> int:
    """Return the number of durable results."""
    with contextlib.suppress(sqlite3.Error):
        db = sqlite3.connect(f"file:{folder}/results/run/journal.sqlite?mode=ro", uri=True)
        with contextlib.closing(db):
            return int(db.execute("SELECT count(*) FROM results WHERE final = 1").fetchone()[0])
    return 0


def active_workers(folder: Path) -> list[int]:
    """Return the worker processes, from their status files."""
    boards = (folder / "results/run/live").glob("*-*.json")
    return [pid for status_file in boards if alive(pid := int(status_file.stem.rpartition("-")[2]))]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SECONDS + 40)
    return process.returncode, out, err


def kill_coordinator(process: subprocess.Popen[str]) -> list[int]:
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.kill()
    process.communicate(timeout=20)
    return children


def check_whole(folder: Path, out: str) -> None:
    """Check that every task has one result and that the statistics match."""
    lines = [json.loads(line) for line in (folder / "results/run/results.jsonl").read_text().splitlines()]
    counts = Counter(line["task"] for line in lines)
    assert counts == Counter({f"t{i}": 1 for i in range(TASKS)})
    assert {line["status"] for line in lines} == {"completed"}
    summary = json.loads(out)
    assert (summary["done"], summary["pending"], summary["mean"]) == (TASKS, 0, 1.0)
    assert summary["completion_tokens"] >= sum(line["completion_tokens"] for line in lines)
    db = sqlite3.connect(folder / "results/run/journal.sqlite")
    with contextlib.closing(db):
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute(
            "SELECT count(*) FROM trajectories t JOIN results r ON r.number = t.result WHERE final = 1"
        ).fetchone() == (TASKS,)


def test_a_run_continues_after_its_driver_is_killed_repeatedly(tmp_path: Path, endpoint: Endpoint) -> None:
    write_tasks(tmp_path / "tasks.jsonl")
    moments = random.Random(7)
    orphans: list[int] = []
    for part in range(1, 4):
        process = start(tmp_path, endpoint)
        wait_until(lambda part=part: recorded(tmp_path) >= part * TASKS // 5, SECONDS)  # type: ignore[misc]
        time.sleep(moments.uniform(0.0, 0.2))
        orphans += kill_coordinator(process)
    before = recorded(tmp_path)
    assert before < TASKS
    status, out, err = finish(start(tmp_path, endpoint))
    assert status == 0, err
    assert f"{before:,} of {TASKS:,} rollouts done" in err
    check_whole(tmp_path, out)
    if ENGINE == "local":
        wait_until(lambda: not any(map(alive, orphans)))
    status, _, err = finish(start(tmp_path, endpoint))
    assert (status, "Nothing to do" in err) == (0, True)


def test_a_killed_worker_loses_no_result(tmp_path: Path, endpoint: Endpoint) -> None:
    write_tasks(tmp_path / "tasks.jsonl")
    process = start(tmp_path, endpoint)
    for part in (1, 2):
        wait_until(lambda part=part: recorded(tmp_path) >= part * TASKS // 5, SECONDS)  # type: ignore[misc]
        victim = wait_until(lambda: active_workers(tmp_path), SECONDS)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda victim=victim: not alive(victim))  # type: ignore[misc]
    status, out, err = finish(process)
    assert status == 0, err
    check_whole(tmp_path, out)


def test_an_endpoint_that_dies_leaves_rollouts_pending(tmp_path: Path, endpoint: Endpoint) -> None:
    write_tasks(tmp_path / "tasks.jsonl")
    process = start(tmp_path, endpoint)
    wait_until(lambda: recorded(tmp_path) >= TASKS // 5, SECONDS)
    endpoint.kill()
    status, out, err = finish(process)
    assert status == 1, err
    summary = json.loads(out)
    assert summary["pending"] > 0
    assert summary["mean_of_all"] < summary["mean"] == 1.0
    assert " without a result\nTo continue:" in err
    endpoint.start()
    status, out, err = finish(start(tmp_path, endpoint))
    assert status == 0, err
    check_whole(tmp_path, out)


def test_ctrl_c_stores_results_and_prints_the_command_to_continue(tmp_path: Path, endpoint: Endpoint) -> None:
    write_tasks(tmp_path / "tasks.jsonl")
    process = start(tmp_path, endpoint)
    wait_until(lambda: recorded(tmp_path) >= TASKS // 5, SECONDS)
    os.killpg(process.pid, signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130, err
    assert "To continue:" in err
    assert "paragent rollout --env tiny:Tiny" in err
    assert "Traceback" not in err
    status, out, err = finish(start(tmp_path, endpoint))
    assert status == 0, err
    check_whole(tmp_path, out)
