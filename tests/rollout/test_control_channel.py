"""The control channel by itself: commands before, during and after the session's loop, and many clients."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paragent.errors import ConfigError, RunNotLive, UsageError
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


def test_the_file_is_removed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with RunControl(tmp_path / "live", status):
        assert ControlClient(tmp_path).is_live()
    assert not (tmp_path / "live/control.json").exists()
    with pytest.raises(RunNotLive, match="no session of"):
        ControlClient(tmp_path).status()
