"""What engines report about their workers: started, ready, lost, stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from paragent import RunConfig, Runners, RuntimeEngine, Task
from paragent.engines import WorkerChange, open_engine
from paragent.engines.base import describe_loss, lost_calls
from paragent.runners.run import Run, complete
from paragent.tasks import TaskResponse
from paragent.testing import agents
from paragent.testing.programs import wait_until
from tests.engines.thread_cluster import ThreadRuntime


def die_once(path: str) -> str:
    if Path(path).exists():
        return "alive"
    Path(path).touch()
    os._exit(7)


def changes_of(config: RunConfig, tasks: list[Task]) -> tuple[list[WorkerChange], dict[str, TaskResponse]]:
    engine = open_engine(config)
    responses: dict[str, TaskResponse] = {}
    run = Run(config, engine, tasks, lent=False)
    complete(run, responses)
    changes = run.worker_changes()
    assert run.worker_changes() == engine.worker_changes() == []
    return changes, responses


def events(changes: list[WorkerChange], worker: str) -> list[str]:
    return [change.event for change in changes if change.worker == worker]


ENGINES: list[dict[str, Any]] = [{"engine_name": "local"}, {"cls": ThreadRuntime}, {"engine_name": "inline"}]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ENGINES, ids=str)
def test_workers_start_and_stop(chosen: dict[str, Any]) -> None:
    began = time.time()
    tasks = [Task(0.1, agents.sleep, id=str(number)) for number in range(4)]
    changes, responses = changes_of(RunConfig(worker_num=2, concurrency=2, **chosen), tasks)
    assert {change.worker for change in changes} >= {response.worker for response in responses.values()}
    for worker in {response.worker for response in responses.values()}:
        assert events(changes, worker) == ["started", "ready", "stopped"]
    assert all(began <= change.at <= time.time() and not change.detail for change in changes)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ENGINES[:2], ids=str)
def test_a_worker_that_dies_is_lost_and_another_one_starts(chosen: dict[str, Any], tmp_path: Path) -> None:
    config = RunConfig(worker_num=1, concurrency=1, **chosen)
    changes, responses = changes_of(config, [Task(str(tmp_path / "died"), die_once, id="a", max_retries=1)])
    assert responses["a"].answer == "alive"
    second = responses["a"].worker
    [lost] = [change for change in changes if change.event == "lost"]
    assert events(changes, lost.worker) in (["started", "ready", "lost"], ["started", "lost"])
    assert events(changes, second) == ["started", "ready", "stopped"]
    assert lost.detail.endswith("; 1 call lost")
    assert lost_calls(lost.detail) == 1


def test_the_number_of_lost_calls_is_read_from_the_detail() -> None:
    for calls in (0, 1, 2, 12_345):
        assert lost_calls(describe_loss("killed; 3 calls lost earlier", calls)) == calls


@pytest.mark.slow
def test_workers_for_one_task_each_are_stopped_and_not_lost() -> None:
    tasks = [Task(0.0, agents.sleep, id=str(number)) for number in range(3)]
    changes, responses = changes_of(RunConfig(worker_num=1, reuse_process=False), tasks)
    workers = {response.worker for response in responses.values()}
    assert len(workers) == 3
    assert all(events(changes, worker) == ["started", "ready", "stopped"] for worker in workers)


def test_an_engine_need_not_report_its_workers() -> None:
    class Silent(RuntimeEngine):
        def submit(self, calls: Any) -> None: ...
        def wait(self, timeout: float) -> list[Any]:
            return []

        def cancel(self, grace: float) -> None: ...
        def close(self) -> None: ...

    assert Silent(RunConfig()).worker_changes() == []


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ENGINES[:2], ids=str)
def test_a_worker_that_is_killed_because_of_a_time_limit_is_stopped_and_not_lost(
    chosen: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig(worker_num=1, concurrency=1, **chosen)
    tasks = [Task(str(tmp_path / "pid"), agents.hang_in_python, id="a", timeout=0.5), Task(1, agents.echo, id="b")]
    changes, responses = changes_of(config, tasks)
    assert {name: str(response.status) for name, response in responses.items()} == {"a": "timed out", "b": "succeeded"}
    assert events(changes, responses["a"].worker)[-1] == "stopped"
    assert not [record for record in caplog.records if "lost" in record.getMessage()]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ENGINES[:2], ids=str)
def test_a_worker_that_dies_without_a_call_is_logged(chosen: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    config = RunConfig(worker_num=1, **chosen)
    with open_engine(config) as engine:

        def pid() -> int:
            return int(Runners.sync_run(0.0, agents.sleep_interval, config, engine=engine).unwrap().pid)

        killed = pid()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pid() != killed)
    [record] = [one for one in caplog.records if one.name == "paragent"]
    assert "SIGKILL" in record.getMessage()
