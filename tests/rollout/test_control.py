"""Control of live runs, over real processes: pause, cancel, retry, settings, stop, stale files and clients without the secret."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent.cli import main
from paragent.errors import AccessDenied, RunNotLive, UsageError
from paragent.rollout.control import ControlClient
from paragent.rollout.live_run import LiveRun, read_session_file
from paragent.store import Journal, RolloutResult
from paragent.testing import OpenAIServer, Script
from tests.waiting import wait_until

HELD = """
import asyncio
from pathlib import Path
from paragent import AgentBase, AgentResult, Environment

class Plain(Environment):
    name = "plain"
    metric = "contains"

class OnMachine(Plain):
    @property
    def needs_machine(self):
        return True

class Held(AgentBase):
    '''Waits until a file with the name of its task, or the file `go`, exists.'''
    async def run_episode(self, episode):
        (Path("started") / episode.question).touch()
        while not Path("go").exists() and not Path(f"go-{episode.question}").exists():
            await asyncio.sleep(0.02)
        return AgentResult("42")

class Asking(Held):
    async def run_episode(self, episode):
        episode.messages.append({"role": "user", "content": episode.question})
        await episode.complete()
        return await super().run_episode(episode)

class Deaf(Held):
    '''Ignores the first cancellation.'''
    async def run_episode(self, episode):
        try:
            return await super().run_episode(episode)
        except asyncio.CancelledError:
            raise ValueError("what was that?")
"""


class Controlled:
    """A run in a process of its own whose agents wait for files, and its client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "results" / "run"
        self.client = ControlClient(self.path)
        self.process: subprocess.Popen[str] | None = None
        (folder / "held.py").write_text(HELD)
        (folder / "started").mkdir()

    def arguments(self, *more: str, tasks: int = 4) -> list[str]:
        lines = (json.dumps({"id": f"t{n}", "question": f"t{n}", "answer": "42"}) for n in range(tasks))
        (self.folder / "tasks.jsonl").write_text("\n".join(lines))
        return [
            "rollout", "--env", "held:Plain", "--agent", "held:Held", "--data", "tasks.jsonl", "--model", "demo",
            "--run-name", "run", "--num-rollouts", "2", "--workers", "2", *more,
        ]  # fmt: skip

    def start(self, *more: str, tasks: int = 4, server: OpenAIServer | None = None) -> None:
        """Start the run and wait until its first rollouts are under way."""
        variables = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"} if server else {}
        self.process = self.popen(self.arguments(*more, tasks=tasks), **variables)
        wait_until(lambda: self.process.poll() is not None or len(self.started()) >= 2, 60)  # type: ignore[union-attr]
        assert self.process.poll() is None, self.process.communicate(timeout=60)

    def popen(self, arguments: list[str], **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "paragent", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str) -> tuple[int, str, str]:
        process = self.popen(list(arguments))
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def started(self) -> set[str]:
        return {path.name for path in (self.folder / "started").iterdir()}

    def go(self, task: str = "") -> None:
        """Let the rollouts of a task, or all rollouts, end."""
        (self.folder / (f"go-{task}" if task else "go")).touch()

    def wait(self, **expected: Any) -> LiveRun:
        """Wait until the status has these values, and return it."""

        found: list[LiveRun] = []

        def matches() -> bool:
            found[:] = [self.client.status()]
            return all(getattr(found[0], name) == value for name, value in expected.items())

        wait_until(matches, 30)
        return found[0]

    def finish(self) -> tuple[int, str, str]:
        assert self.process is not None
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def results(self, where: str = "final = 1") -> list[RolloutResult]:
        with Journal(self.path / "journal.sqlite", read_only=True) as journal:
            return list(journal.results(where))

    def statuses(self) -> dict[str, str]:
        results = self.results()
        assert len(results) == len({(one.task, one.attempt) for one in results}), "each rollout has one result"
        return {one.label: str(one.status) for one in results}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Controlled]:
    controlled = Controlled(tmp_path)
    yield controlled
    process = controlled.process
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


# --- pause and resume -----------------------------------------------------------------------------------------------------


def test_a_pause_starts_nothing_until_the_run_is_resumed(run: Controlled) -> None:
    run.start()
    assert "2 rollouts under way will finish" in run.client.command("pause")
    assert run.client.status().state == "pausing"
    run.go("t0")
    live = run.wait(done=1)
    assert (live.state, live.active, live.pending) == ("pausing", 1, 2), "the free place is not filled"
    run.go("t1")
    run.wait(state="paused", done=2, active=0)
    assert run.started() == {"t0", "t1"}
    with pytest.raises(UsageError, match="paused already"):
        run.client.command("pause")
    assert run.client.command("resume") == "the run continues"
    wait_until(lambda: run.started() == {"t0", "t1", "t2", "t3"}, 30)
    with pytest.raises(UsageError, match="not paused"):
        run.client.command("resume")
    run.go()
    status, _, err = run.finish()
    assert status == 0, err
    assert "pausing" in err
    assert "paused" in err


@pytest.mark.slow
def test_ctrl_c_ends_a_paused_run(run: Controlled) -> None:
    run.start()
    run.client.command("pause")
    run.go()
    run.wait(state="paused")
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    status, _, err = run.finish()
    assert (status, "Stopped: 2 of 4 rollouts done" in err) == (130, True), err
    assert not (run.path / "live/control.json").exists()
    assert run.call(*run.arguments())[0] == 0


# --- cancel and retry -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    [
        "local",
        pytest.param("inline", marks=pytest.mark.slow),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]),
        pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]),
    ],
)
def test_cancel_ends_a_running_rollout_and_retry_executes_it_again(engine: str, run: Controlled) -> None:
    run.start("--engine", engine)
    assert run.client.command("cancel", "t0") == "t0 is being cancelled"
    run.wait(cancelled=1, done=1)
    assert (run.path / "live/cancelled.json").read_text() == "[]"
    with pytest.raises(UsageError, match=r"t0 has ended \(cancelled\)"):
        run.client.command("cancel", "t0")
    with pytest.raises(UsageError, match="t1 is running; cancel it first"):
        run.client.command("retry", "t1")
    assert run.client.command("retry", "t0") == "t0 (cancelled) will be executed again"
    with pytest.raises(UsageError, match="t0 is pending"):
        run.client.command("retry", "t0")
    run.go()
    status, _, err = run.finish()
    assert status == 0, err
    assert run.statuses() == dict.fromkeys(["t0", "t1", "t2", "t3"], "completed")
    [cancelled] = run.results("status = 'cancelled'")
    assert (cancelled.task, cancelled.final, cancelled.kind) == ("t0", False, "cancelled")


@pytest.mark.slow
def test_cancelling_a_pending_rollout_and_retrying_a_finished_one(run: Controlled) -> None:
    run.start("--attempts", "2")
    assert run.client.command("cancel", "t3#2") == "t3#2 was pending and is cancelled"
    run.go("t0")
    run.wait(done=2, cancelled=1)
    assert run.client.command("retry", "t0") == "t0 (completed) will be executed again"
    assert run.client.status().done == 1
    assert run.client.command("retry", "t3#2") == "t3#2 (cancelled) will be executed again"
    assert run.client.command("cancel", "t3#2") == "t3#2 was pending and is cancelled"
    run.go()
    status, out, err = run.finish()
    assert status == 1, "a cancelled rollout has no score"
    assert "1 rollout without a score: 1 cancelled" in err
    assert Counter(run.statuses().values()) == {"completed": 7, "cancelled": 1}
    assert len(run.results("task = 't0' AND attempt = 1")) == 2
    status, out, err = run.call(*run.arguments("--attempts", "2", "--retry-failed", "--json"))
    assert (status, json.loads(out)["statuses"]["completed"]) == (0, 8), err


@pytest.mark.slow
def test_a_cancelled_rollout_releases_its_machine_and_counts_its_usage(run: Controlled) -> None:
    with OpenAIServer(Script(default="42")) as server:
        more = ("--env", "held:OnMachine", "--agent", "held:Asking", "--provider-name", "process", "--model", "m")
        run.start(*more, "--use-vm-pool", "--num-vms", "2", server=server)
        run.wait(active=2)
        assert run.client.command("cancel", "t0") == "t0 is being cancelled"
        wait_until(lambda: "t2" in run.started(), 30)  # on the machine that the cancelled rollout had
        run.wait(cancelled=1)
        wait_until(lambda: run.client.status().machine_states["leased"] == 2, 30)  # the status is a moment old
        live = run.client.status()
        assert {one.state for one in live.machines} <= {"leased", "resetting", "free", "booting"}
        machine = next(one for one in live.machines if one.state == "leased")
        assert "replaced" in run.client.command("retire", machine.name)
        with pytest.raises(UsageError, match="no live machine 'nope'"):
            run.client.command("retire", "nope")
        run.go()
        status, _, err = run.finish()
    assert status == 1, err
    [cancelled] = run.results("status = 'cancelled'")
    assert cancelled.requests == 1
    assert (cancelled.prompt_tokens or 0) > 0
    assert cancelled.trajectory is None or cancelled.turns == 1


@pytest.mark.slow
def test_code_that_turns_a_cancellation_into_an_error_is_cancelled(run: Controlled) -> None:
    run.start("--agent", "held:Deaf")
    run.client.command("cancel", "t0")
    run.wait(cancelled=1, failed=0)
    run.go()
    assert run.finish()[0] == 1
    assert run.statuses()["t0"] == "cancelled"


def test_what_does_not_exist_is_named(run: Controlled) -> None:
    run.start()
    wrong = {("cancel", "nope"): "no task", ("retry", "t0#2"): "1 attempt at", ("cancel", "t0#x"): "no task"}
    for arguments, message in (wrong | {("retire", "m"): "no machines", ("stop", "now"): "no argument"}).items():
        with pytest.raises(UsageError, match=message):
            run.client.command(*arguments)
    with pytest.raises(UsageError, match="there is no command 'explode'"):
        run.client.command("explode")


# --- settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_num_rollouts_can_be_raised_and_lowered(run: Controlled) -> None:
    with OpenAIServer(Script(default="42")) as server:
        run.start("--agent", "held:Asking", "--model", "m", "--workers", "1", tasks=12, server=server)
        run.wait(request_limit=2)
        assert run.client.command("set", "num-rollouts=5") == "up to 5 rollouts at a time"
        live = run.wait(active=5, num_rollouts=5)
        wait_until(lambda: len(run.started()) == 5, 30)
        assert run.wait(request_limit=5).pending == 7
        run.client.command("set", "num-rollouts=1")
        for task in ("t0", "t1", "t2", "t3"):
            run.go(task)
        live = run.wait(done=4)
        assert (live.active, len(run.started())) == (1, 5), "no new rollouts while more than one is under way"
        for wrong in ("num-rollouts=0", "num-rollouts=many", "num-rollouts", "timeout=3"):
            with pytest.raises(UsageError, match=r"integer of at least 1|only num-rollouts"):
                run.client.command("set", wrong)
        run.go()
        assert run.finish()[0] == 0


@pytest.mark.slow
def test_num_rollouts_is_limited_by_an_engine_with_a_process_for_each_rollout(run: Controlled) -> None:
    run.start("--isolate")
    said = run.client.command("set", "num-rollouts=40")
    assert "up to 2 rollouts at a time" in said
    assert "no room for 40" in said
    run.client.command("stop", "cancel")
    assert run.finish()[0] == 1


# --- stop -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancel", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stop_ends_the_session_and_the_same_command_continues(cancel: bool, run: Controlled) -> None:
    run.start()
    status, out, err = run.call("ctl", "run", "stop", "--json", *(["--cancel"] if cancel else []))
    assert (status, json.loads(out)["command"]) == (0, "stop"), err
    if not cancel:
        live = run.client.status()
        assert (live.state, live.active, live.note) == ("stopping", 2, "stopped by a user")
        with pytest.raises(UsageError, match="stopping"):
            run.client.command("pause")
        run.go()
    status, out, err = run.finish()
    assert status == 1
    assert "stopped early: stopped by a user" in err
    assert "To continue:" in err
    assert not (run.path / "live/control.json").exists()
    assert run.statuses() == ({} if cancel else {"t0": "completed", "t1": "completed"})
    run.go()
    status, out, err = run.call(*run.arguments("--json"))
    assert status == 0, err
    assert run.statuses() == dict.fromkeys(["t0", "t1", "t2", "t3"], "completed")


# --- runs that are not live -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_session_leaves_a_file_that_is_recognised(run: Controlled) -> None:
    run.start()
    assert run.process is not None
    run.process.kill()
    run.process.communicate(timeout=60)
    assert (run.path / "live/control.json").exists()
    left = read_session_file(run.path / "live")
    assert left is not None
    assert left.state == "running"
    with pytest.raises(RunNotLive, match=f"process {run.process.pid} was killed"):
        run.client.command("pause")
    assert not run.client.is_live()
    status, out, _ = run.call("ctl", "run", "status", "--json")
    live = LiveRun.from_json(json.loads(out))
    assert (status, live.state, live.pending) == (0, "stopped", 4)
    assert "was killed" in live.note
    assert run.call("ctl", "results/run", "pause")[0] == 2
    run.go()
    assert run.call(*run.arguments())[0] == 0
    assert not (run.path / "live/control.json").exists()
    assert "complete" in run.call("ctl", "run", "status")[1]


@pytest.mark.slow
def test_the_process_id_of_a_killed_session_may_be_in_use_again(run: Controlled) -> None:
    run.go()
    assert run.call(*run.arguments())[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    content = {"address": f"127.0.0.1:{port}", "secret": "s" * 43, "pid": os.getpid(), "host": socket.gethostname()}
    path = run.path / "live/control.json"
    path.touch(0o600)
    path.write_text(json.dumps(content))
    with pytest.raises(RunNotLive, match="left its file behind"):
        run.client.status()
    path.write_text(json.dumps(content | {"host": "elsewhere"}))
    with pytest.raises(RunNotLive, match="runs on the host elsewhere"):
        run.client.status()
    path.write_text("{")
    with pytest.raises(RunNotLive, match="damaged"):
        run.client.status()


def test_a_run_that_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", str(tmp_path / "none"), "status"]) == 2
    assert "there is no run" in capsys.readouterr().err


# --- attacks --------------------------------------------------------------------------------------------------------------


def test_a_client_without_the_secret_is_rejected_and_the_file_is_private(run: Controlled, tmp_path: Path) -> None:
    run.start()
    path = run.path / "live/control.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    given = json.loads(path.read_text())
    assert given["address"].startswith("127.0.0.1:")
    for public in ("session.json", "cancelled.json"):
        text = (run.path / "live" / public).read_text() if (run.path / "live" / public).exists() else ""
        assert given["secret"] not in text
    forged = tmp_path / "forged" / "live"
    forged.mkdir(parents=True)
    (forged / "control.json").touch(0o600)
    (forged / "control.json").write_text(json.dumps(given | {"secret": "x" * 43}))
    with pytest.raises(AccessDenied, match="different token"):
        ControlClient(forged.parent).command("stop")
    host, _, port = given["address"].rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET /stop HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"\xff" * 1000)
    path.chmod(0o644)
    with pytest.raises(AccessDenied, match="chmod 600"):
        run.client.status()
    path.chmod(0o600)
    assert run.client.status().state == "running"
    run.go()
    assert run.finish()[0] == 0
