"""The control channel by itself: commands before, during and after the session's loop, and many clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paragent.errors import ConfigError, RunNotLive, StoreFailed, UsageError
from paragent.rollout.control import ControlClient, RunControl
from paragent.rollout.live_run import LiveRun, RunState
from tests.waiting import wait_until


def status() -> LiveRun:
    return LiveRun(run="run", state=RunState.STARTING, at=time.time(), pid=os.getpid(), host="h")


@pytest.fixture
def control(tmp_path: Path) -> Iterator[RunControl]:
    (tmp_path / "live").mkdir()
    with RunControl(tmp_path / "live", status) as made:
        yield made


def test_while_the_run_starts_only_status_and_stop_are_answered(control: RunControl, tmp_path: Path) -> None:
    client = ControlClient(tmp_path)
    assert client.status().state is RunState.STARTING
    with pytest.raises(UsageError, match="the run is starting"):
        client.command("pause")
    assert client.command("stop") == "the run stops as soon as it has started; no rollout starts"
    executed: list[tuple[str, str]] = []

    def execute(name: str, argument: str) -> str:
        executed.append((name, argument))
        return "done"

    control.accept()
    control.execute(execute)
    assert executed == [("stop", "")]
    control.refuse("the run is finishing")
    with pytest.raises(UsageError, match="finishing"):
        client.command("stop")


def test_commands_of_many_clients_are_executed_one_after_the_other(control: RunControl, tmp_path: Path) -> None:
    executed: list[str] = []
    threads: set[int] = set()

    def execute(name: str, argument: str) -> str:
        threads.add(threading.get_ident())
        executed.append(argument)
        if argument == "3":
            raise ConfigError("three is wrong")
        return f"did {argument}"

    control.accept()
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(ControlClient(tmp_path).command, "cancel", str(number)) for number in range(8)]

        def all_answered() -> bool:
            control.wait(0.05)
            control.execute(execute)
            return all(answer.done() for answer in answers)

        wait_until(all_answered, 30)
    assert sorted(executed) == [str(number) for number in range(8)]
    assert threads == {threading.get_ident()}, "the session's own thread executes commands"
    with pytest.raises(ConfigError, match="three is wrong"):
        answers[3].result()
    assert answers[5].result() == "did 5"


def test_commands_that_wait_when_the_session_ends_are_answered(control: RunControl, tmp_path: Path) -> None:
    control.accept()
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(ControlClient(tmp_path).command, "pause")
        control.wait(30)
        control.refuse("the run is finishing")
        with pytest.raises(UsageError, match="finishing"):
            answer.result(30)


@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_disconnects_before_the_answer_does_not_end_the_session(
    control: RunControl, tmp_path: Path, ends: bool
) -> None:
    control.accept()
    client = (
        f"from pathlib import Path\nfrom paragent.rollout.control import ControlClient\n"
        f"ControlClient(Path({str(tmp_path)!r})).command('pause')"
    )
    process = subprocess.Popen([sys.executable, "-c", client])
    control.wait(30)
    process.kill()
    process.wait(60)
    for _ in range(20):  # each is a round trip through the server, which notices the end of the connection meanwhile
        assert ControlClient(tmp_path).status().run == "run"
    if ends:
        control.refuse("the run is finishing")
        return
    control.execute(lambda name, _: f"did {name}")
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(ControlClient(tmp_path).command, "resume")
        control.wait(30)
        control.execute(lambda name, _: f"did {name}")
        assert answer.result(30) == "did resume"


def test_a_control_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "live").write_text("not a folder")
    with pytest.raises(StoreFailed, match=r"control\.json"), RunControl(tmp_path / "live", status):
        pass


def test_a_control_file_cannot_name_another_host(control: RunControl, tmp_path: Path) -> None:
    path = tmp_path / "live/control.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "address": "192.0.2.1:80"}))
    with pytest.raises(RunNotLive, match="does not listen on 192"):
        ControlClient(tmp_path).status()


def test_the_file_is_removed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with RunControl(tmp_path / "live", status):
        assert ControlClient(tmp_path).is_live()
    assert not (tmp_path / "live/control.json").exists()
    with pytest.raises(RunNotLive, match="no session of"):
        ControlClient(tmp_path).status()
