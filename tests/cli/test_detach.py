"""`paragent rollout --detach`: a run in the background, over real processes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent.rollout.control import ControlClient
from paragent.testing.programs import alive
from tests.rollout.test_control import Controlled
from tests.waiting import wait_until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Controlled]:
    controlled = Controlled(tmp_path)
    yield controlled
    if (controlled.path / "lock").exists() and (pid := int((controlled.path / "lock").read_text())) and alive(pid):
        os.killpg(pid, signal.SIGKILL)


def test_a_run_in_the_background_is_watched_and_stopped(run: Controlled) -> None:
    status, out, err = run.call(*run.arguments("--detach"))
    assert status == 0, err
    found = re.search(r"runs in the background as process (\d+)", out)
    assert found, out
    pid = int(found[1])
    for command in ("paragent ctl results/run status", "paragent view results/run", "tail -f results/run/session.log"):
        assert command in out
    assert os.getsid(pid) == pid, "the end of the terminal does not end it"
    live = ControlClient(run.path).status()
    assert (live.pid, live.state, live.active) == (pid, "running", 2)
    assert run.call("ctl", "run", "stop")[0] == 0
    run.go()
    wait_until(lambda: not alive(pid), 30)
    log = (run.path / "session.log").read_text()
    assert "stopped early: stopped by a user" in log
    assert "--detach" not in log.partition("To continue:")[2], "the command to continue has no internal flags"
    status, out, err = run.call(*run.arguments("--detach"))
    assert status == 0, err
    wait_until(lambda: run.statuses() == dict.fromkeys(["t0", "t1", "t2", "t3"], "completed"), 30)
    wait_until(lambda: not (run.path / "live/control.json").exists(), 30)
    assert (
        run.call(*run.arguments("--detach"))
        == (
            0,
            "",
            f"Nothing to do: results/run is complete (4 rollouts).\n{run.call('show', 'run')[1]}",
        )
        or "Nothing to do" in run.call(*run.arguments("--detach"))[2]
    )


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (["--data", "none.jsonl"], 2, "none.jsonl"),
        (["--max-cost", "1"], 2, "--max-cost needs the price of demo"),
        (["--env", "held:OnMachine", "--pool-address", "127.0.0.1:1"], 2, "paragent pool serve"),
    ],
)
def test_a_start_that_fails_is_reported(more: list[str], status: int, message: str, run: Controlled) -> None:
    returned, out, err = run.call(*run.arguments("--detach", *more))
    assert (returned, out) == (status, ""), err
    assert message in err
    assert not run.path.exists(), "a run that could not start leaves no directory"


def test_a_second_session_of_the_same_run_is_refused(run: Controlled) -> None:
    assert run.call(*run.arguments("--detach"))[0] == 0
    status, _, err = run.call(*run.arguments("--detach"))
    assert status == 2
    assert "is in use by process" in err
    run.go()
    wait_until(lambda: not (run.path / "live/control.json").exists(), 30)
