"""`kill -9` of the command and a restart at once: every request that the endpoint answered is counted once."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent import Environment, RolloutConfig, run_parallel_rollout
from paragent.errors import StoreFailed
from paragent.rollout.results import result_of
from paragent.store import Journal, PendingRollout
from paragent.tasks import BenchmarkTask, TaskResponse, TaskStatus
from paragent.testing import OpenAIServer, Script
from tests import waiting
from tests.children import freeze

HERE = "tests.rollout.test_usage_after_kill"
TASKS = 12
ENVIRONMENT = '''
import asyncio
from pathlib import Path

from paragent import Environment, tool

class Waiting(Environment):
    """Its tool returns when the file `go` exists."""
    name = "waiting"
    metric = "contains"

    @tool
    async def wait(self) -> str:
        """Wait."""
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        return "waited"

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"
'''
REPLIES = [{"tool": "look"}, {"tool": "wait"}, "42"]
Started = Callable[..., subprocess.Popen[str]]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait as long as starting the command takes on a busy machine."""
    waiting.wait_until(condition, 120)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Script(default=REPLIES)) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path, server: OpenAIServer) -> Iterator[Started]:
    (tmp_path / "waiting.py").write_text(ENVIRONMENT)
    tasks = ({"id": f"t{number}", "question": "?", "answer": "42"} for number in range(TASKS))
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "paragent", "rollout", "--env", "waiting:Waiting", "--data", "tasks.jsonl"]
        command += [
            "--num-rollouts",
            str(TASKS),
            "--engine",
            "local",
            "--run-name",
            "run",
            "--model",
            "m",
            "--json",
            *more,
        ]
        environment = os.environ | {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "any"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, process_group=0, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def reported(tmp_path: Path, name: str = "active") -> int:
    """Return how many requests the status files of workers report."""
    total = 0
    for path in (tmp_path / "results/run/live").glob("*-[0-9]*.json"):
        with contextlib.suppress(OSError, ValueError):
            total += sum(one[5] for one in json.loads(path.read_text()).get(name, ()))
    return total


def recorded(tmp_path: Path) -> tuple[int, int]:
    """Return the requests and the tokens of all executions in the journal."""
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        query = "SELECT sum(requests), sum(prompt_tokens + completion_tokens) FROM results"
        [(requests, tokens)] = journal.rows(query)
    return requests or 0, tokens or 0


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the command, and return as soon as it has ended; its workers may end later."""
    process.kill()
    process.wait(20)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.slow  # starts the command two or three times
@pytest.mark.timeout(300)
def test_a_command_that_is_killed_and_restarted_at_once_counts_every_request(
    tmp_path: Path, server: OpenAIServer, start: Started
) -> None:
    kills = 2
    process = start()
    for number in range(1, kills + 1):
        wait_until(lambda number=number: server.seen.answered == 2 * TASKS * number)  # type: ignore[misc]
        wait_until(lambda: reported(tmp_path) == 2 * TASKS)
        kill(process)
        process = start()
    wait_until(lambda: server.seen.answered == 2 * TASKS * (kills + 1))
    (tmp_path / "go").touch()
    status, out, err = finish(process)
    assert status == 0, err
    assert server.seen.answered == 2 * TASKS * kills + 3 * TASKS
    requests, tokens = recorded(tmp_path)
    assert requests == server.seen.answered
    summary = json.loads(out)
    assert summary["prompt_tokens"] + summary["completion_tokens"] == tokens
    assert not list((tmp_path / "results/run/live").glob("*-[0-9]*.json"))


@pytest.mark.slow  # starts the command two or three times
@pytest.mark.timeout(300)
def test_a_budget_counts_the_rollouts_that_were_killed(tmp_path: Path, server: OpenAIServer, start: Started) -> None:
    process = start("--max-tokens", "1000000")
    wait_until(lambda: reported(tmp_path) == 2 * TASKS)
    kill(process)
    status, _, err = finish(start("--max-tokens", "1"))
    assert (status, server.seen.answered) == (1, 2 * TASKS), "no request after the budget was used up"
    requests, tokens = recorded(tmp_path)
    assert requests == 2 * TASKS
    assert f"tokens {tokens:,} of 1" in err


@pytest.mark.slow  # starts the command two or three times
@pytest.mark.timeout(300)
def test_results_that_were_not_recorded_are_counted(tmp_path: Path, server: OpenAIServer, start: Started) -> None:
    """The rollouts end while the command is stopped, so their results are lost when it is killed."""
    process = start()
    wait_until(lambda: reported(tmp_path) == 2 * TASKS)
    freeze(process.pid)
    (tmp_path / "go").touch()
    wait_until(lambda: server.seen.answered == 3 * TASKS)
    wait_until(lambda: reported(tmp_path) == 0)
    kill(process)
    status, _, err = finish(start())
    assert status == 0, err
    assert recorded(tmp_path)[0] == server.seen.answered == 6 * TASKS


@pytest.mark.slow  # starts the command
@pytest.mark.timeout(300)
def test_cancelled_rollouts_are_counted_once(tmp_path: Path, server: OpenAIServer, start: Started) -> None:
    process = start()
    wait_until(lambda: reported(tmp_path) == 2 * TASKS)
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130, err
    leftover = [path.name for path in (tmp_path / "results/run/live").glob("*-[0-9]*.json")]
    assert (recorded(tmp_path)[0], leftover) == (server.seen.answered, [])


@pytest.mark.parametrize("ended", [False, True])
def test_a_cancelled_execution_is_the_one_in_the_status_file(tmp_path: Path, ended: bool) -> None:
    rollout = PendingRollout(BenchmarkTask("a", "?", "42"), 1)
    leave_file(tmp_path, 3, worker=("here", 7), ended=ended)
    response = TaskResponse(
        id="1", status=TaskStatus.CANCELLED, worker="here:7", usage={"requests": 2, "started": 17.0}, time_cost=1.0
    )
    result = result_of(response, rollout, tmp_path / "run/live", cancelled=False)
    assert result is not None
    assert (result.started, result.requests) == (17.0, 2 if ended else 3)
    response = TaskResponse(
        id="2", status=TaskStatus.CANCELLED, worker="here:7", usage={"requests": 2, "started": 99.0}, time_cost=1.0
    )
    later = result_of(response, rollout, tmp_path / "run/live", cancelled=False)
    assert later is not None
    assert (later.started, later.requests) == (99.0, 2), "the file is of an earlier execution"


# --- status files that a killed session left ------------------------------------------------------------------------------


class Plain(Environment):
    """Has no tools."""

    name = "plain"
    metric = "contains"


def answer(_: str) -> str:
    return "42"


def execute(folder: Path) -> dict[str, Any]:
    """Execute a session of the run in this process, and return the recorded requests of each worker."""
    data = folder / "data.jsonl"
    data.write_text(json.dumps({"id": "a", "question": "Compute 6*7.", "answer": "42"}))
    chosen: dict[str, Any] = {"env": f"{HERE}:Plain", "agent": f"{HERE}:answer", "model": "demo", "engine": "inline"}
    run_parallel_rollout(RolloutConfig(data=data, output_dir=folder, run_name="run", **chosen))
    with Journal(folder / "run/journal.sqlite", read_only=True) as journal:
        return dict(journal.rows("SELECT worker, sum(requests) FROM results WHERE final = 0 GROUP BY worker"))


def leave_file(
    folder: Path,
    requests: int,
    *,
    worker: tuple[str, int],
    age: float = 0.0,
    executions: int = 1,
    ended: bool = False,
) -> Path:
    """Write the status file of a worker that was executing attempts at the task."""
    host, pid = worker
    live = folder / "run/live"
    live.mkdir(parents=True, exist_ok=True)
    path = live / f"{host}-{pid}.json"
    rows = [["a", number, 17.0, "", "", requests, 5, 6, None, None, 0, 0] for number in range(1, executions + 1)]
    content = {"at": time.time() - age, "worker": f"{host}:{pid}", "requests": [0, 1], "rollouts": []}
    path.write_text(json.dumps(content | {"active": [] if ended else rows, "ended": rows if ended else []}))
    return path


def dead() -> tuple[str, int]:
    process = subprocess.Popen(["true"])
    process.wait(20)
    return socket.gethostname(), process.pid


def test_an_execution_is_counted_once_however_often_its_status_file_is_read(tmp_path: Path) -> None:
    worker = dead()
    name = f"{worker[0]}:{worker[1]}"
    for requests, counted in ((3, 3), (3, 3), (5, 5), (4, 5)):
        path = leave_file(tmp_path, requests, worker=worker)
        assert execute(tmp_path) == {name: counted}
        assert not path.exists()


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text())
    path = leave_file(tmp_path, 3, worker=(socket.gethostname(), process.pid))
    assert execute(tmp_path) == {f"{socket.gethostname()}:{process.pid}": 3}
    assert not path.exists()
    process.wait(20)


def test_the_file_of_a_living_process_is_counted_and_kept(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    worker = (socket.gethostname(), process.pid)
    path = leave_file(tmp_path, 3, worker=worker, age=9.0)
    name = f"{worker[0]}:{worker[1]}"
    assert execute(tmp_path) == {name: 3}
    assert path.exists()
    leave_file(tmp_path, 4, worker=worker, age=9.0)
    process.communicate(b"\n", timeout=20)
    assert execute(tmp_path) == {name: 4}, "what it used after the session began"
    assert not path.exists()


def test_workers_on_other_hosts_that_share_the_directory_are_counted(tmp_path: Path) -> None:
    path = leave_file(tmp_path, 3, worker=("elsewhere", 7), age=9.0)
    assert execute(tmp_path) == {"elsewhere:7": 3}
    assert not path.exists()


def test_a_full_disk_loses_no_usage(tmp_path: Path) -> None:
    worker, executions = dead(), 1000
    execute(tmp_path)
    path = leave_file(tmp_path, 3, worker=worker, executions=executions)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(StoreFailed, match="usage of killed rollouts"):
            execute(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.exists()
    assert execute(tmp_path) == {f"{worker[0]}:{worker[1]}": 3 * executions}
