"""`Runners`: rejected input, responses, progress, memory use."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent import (
    AgentBase,
    ConfigError,
    EngineFailed,
    LocalRuntime,
    Msg,
    RunConfig,
    Runners,
    Task,
    TaskFailed,
    TaskStatus,
    UnknownName,
    UsageError,
    exec_tasks,
)
from paragent.engines._worker_handle import WorkerSettings
from paragent.runners.calls import IdSet
from paragent.testing.agents import echo, fail, nap, sleep_interval
from paragent.testing.programs import alive
from tests.waiting import wait_until

ONE = RunConfig(worker_num=1)


def test_sync_run_task_accepts_one_task_or_many() -> None:
    assert Runners.sync_run_task(Task(1, echo, id="a"), ONE)["a"].answer == 1
    assert [r.answer for r in exec_tasks((Task(i, echo) for i in range(5)), ONE).values()] == list(range(5))
    assert Runners.sync_run("x", echo, ONE).answer == "x"


def test_async_calls_return_the_same_responses() -> None:
    async def both() -> tuple[Any, Any]:
        many = await Runners.run_task([Task(i, echo, id=str(i)) for i in range(3)], ONE)
        one = await Runners.run("x", echo, ONE)
        return {key: response.answer for key, response in many.items()}, one.answer

    assert asyncio.run(both()) == ({"0": 0, "1": 1, "2": 2}, "x")


@pytest.mark.slow
def test_the_event_loop_stays_free_while_tasks_run() -> None:
    async def tick() -> int:
        running = asyncio.create_task(Runners.run_task(Task(1.0, nap), ONE))
        ticks = 0
        while not running.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(tick()) > 5


def test_sync_calls_work_inside_a_running_event_loop() -> None:
    async def cell() -> Any:
        return Runners.sync_run("x", echo, ONE).answer

    assert asyncio.run(cell()) == "x"


class Asks(AgentBase):
    """Runs tasks of its own inside a task."""

    def reply(self, x: Any = None) -> Msg:
        inner = Runners.sync_run(input=x.content, agent=echo, run_conf=RunConfig(worker_num=1))
        return Msg(name=self.name, content=["inner", inner.answer])


@pytest.mark.slow
def test_a_task_may_run_tasks() -> None:
    assert Runners.sync_run("deep", Asks("outer"), ONE).answer == ["inner", "deep"]


def test_a_msg_input_is_passed_unchanged() -> None:
    class Whoami(AgentBase):
        def reply(self, x: Any = None) -> str:
            return f"{x.name}/{x.role}"

    agent = Whoami("w")
    assert Runners.sync_run(Msg(name="bob", role="system"), agent, ONE).answer == "bob/system"
    assert Runners.sync_run("text", agent, ONE).answer == "user/user"


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([Task("x", None, id="a")], "task 'a': agent must be"),
        ([Task("x", Asks, id="a")], "pass an instance"),
        (["just text"], "expected a Task"),
    ],
)
def test_invalid_tasks_are_rejected_before_anything_starts(tasks: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runners.sync_run_task(tasks, ONE)


def test_a_generator_must_yield_tasks() -> None:
    with pytest.raises(UsageError, match="expected a Task, got 'just text'"):
        Runners.sync_run_task(iter(cast("list[Task]", ["just text"])), ONE)
    with pytest.raises(UsageError, match="expected a Task or tasks, got 5"):
        Runners.sync_run_task(cast("Task", 5), ONE)


def test_invalid_configurations_are_rejected() -> None:
    with pytest.raises(ConfigError, match="RunConfig"):
        Runners.sync_run_task(Task(1, echo), {"worker_num": 2})  # type: ignore[arg-type]
    with pytest.raises(
        UnknownName, match=r"no engine called 'lokal', did you mean 'local'. There are: .*inline, local"
    ):
        Runners.sync_run_task(Task(1, echo), RunConfig(engine_name="lokal"))
    with pytest.raises(ConfigError, match="subclass of RuntimeEngine"):
        Runners.sync_run_task(Task(1, echo), RunConfig(cls=int))


def test_an_engine_can_be_given_as_class_or_path() -> None:
    assert Runners.sync_run(1, echo, RunConfig(cls=LocalRuntime, worker_num=1)).success
    assert Runners.sync_run(1, echo, RunConfig(cls="paragent.engines.inline:InlineRuntime")).success


@pytest.mark.slow
def test_a_lent_engine_keeps_its_workers_and_serves_one_run_at_a_time() -> None:
    with LocalRuntime(ONE) as engine:
        first = Runners.sync_run(0.0, sleep_interval, engine=engine).answer.pid
        responses = Runners.iter_tasks((Task(0.0, sleep_interval) for _ in range(100)), engine=engine)
        assert next(responses).answer.pid == first
        with pytest.raises(UsageError, match="busy"):
            Runners.sync_run(0.0, sleep_interval, engine=engine)
        responses.close()  # type: ignore[attr-defined]
        assert Runners.sync_run(0.0, sleep_interval, engine=engine).success
    with pytest.raises(EngineFailed, match="closed"):
        Runners.sync_run(0.0, sleep_interval, engine=engine)


class BrokenWorkers(LocalRuntime):
    """An engine whose workers cannot start."""

    def worker_settings(self) -> WorkerSettings:
        good = super().worker_settings()
        return WorkerSettings(good.sync_limit, good.async_limit, good.shared_limit, good.slots, ("false",))


def test_workers_that_cannot_start_raise_engine_failed() -> None:
    with pytest.raises(EngineFailed, match="before they are ready"):
        Runners.sync_run_task(Task(1, echo), RunConfig(cls=BrokenWorkers))


class FailsLater(BrokenWorkers):
    """An engine whose first worker ends with its first task; no other worker can start."""

    started = 0

    def worker_settings(self) -> WorkerSettings:
        self.started += 1
        return LocalRuntime.worker_settings(self) if self.started == 1 else super().worker_settings()


def test_responses_before_an_engine_failure_are_kept() -> None:
    config = RunConfig(cls=FailsLater, worker_num=1, reuse_process=False)
    with pytest.raises(EngineFailed) as caught:
        Runners.sync_run_task([Task(i, echo, id=str(i)) for i in range(3)], config)
    assert {key: response.answer for key, response in caught.value.responses.items()} == {"0": 0}


def test_unwrap_returns_the_answer_or_raises_with_the_worker_traceback() -> None:
    assert Runners.sync_run("x", echo, ONE).unwrap() == "x"
    with pytest.raises(TaskFailed, match=r"ValueError: boom") as caught:
        Runners.sync_run("boom", fail, ONE).unwrap()
    assert "in fail" in str(caught.value)


@pytest.mark.slow
def test_streaming_uses_constant_memory() -> None:
    """The window is bounded, so ten times the tasks need no more memory in the program or in the workers."""

    def grown(count: int, engine: LocalRuntime) -> tuple[int, int]:
        gc.collect()
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        before = sum(process.memory_info().rss for process in processes)
        tasks = (Task("x" * 1000, echo, id=f"{os.urandom(8).hex()}") for _ in range(count))
        done = sum(1 for response in Runners.iter_tasks(tasks, engine=engine) if response.success)
        return done, sum(process.memory_info().rss for process in processes) - before

    with LocalRuntime(RunConfig(worker_num=2)) as engine:
        grown(20_000, engine)
        done, growth = grown(60_000, engine)
    assert done == 60_000
    assert growth < 40 << 20  # what passed is three times that


def test_a_slow_generator_does_not_delay_responses() -> None:
    drawn = 0

    def slowly() -> Iterator[Task]:
        nonlocal drawn
        for number in range(100):
            time.sleep(0.2)
            drawn += 1
            yield Task(number, echo)

    first = next(iter(Runners.iter_tasks(slowly(), RunConfig(engine_name="inline"))))
    assert first.answer == 0
    assert drawn < 50


def stay_until(path: str) -> None:
    wait_until(Path(path).exists, 100)


def test_a_task_queued_behind_a_long_one_moves_to_an_idle_worker(tmp_path: Path) -> None:
    """The engine sends short tasks in advance; tasks behind a long one in the same worker must not wait for it."""
    end = tmp_path / "all others are done"
    short = [Task(0.0, sleep_interval, id=f"s{i}") for i in range(400)]
    tasks = [
        *short,
        Task(str(end), stay_until, id="long"),
        *(Task(0.0, sleep_interval, id=f"t{i}") for i in range(400)),
    ]
    finished = []
    for response in Runners.iter_tasks(tasks, RunConfig(worker_num=2)):
        assert response.success, response
        finished.append(response.id)
        if len(finished) == 800:
            end.touch()
    assert finished[-1] == "long"


def kill_the_worker(path: str) -> None:
    wait_until(Path(path).exists)
    os._exit(3)


async def wait_beside(path: str) -> str:
    Path(path).touch()
    await asyncio.sleep(0.5)
    return "fine"


@pytest.mark.slow
def test_a_task_is_not_charged_when_another_kills_their_worker(tmp_path: Path) -> None:
    path = str(tmp_path / "began")
    tasks = [Task(path, wait_beside, id="beside"), Task(path, kill_the_worker, id="killer")]
    responses = Runners.sync_run_task(tasks, RunConfig(worker_num=1, max_retries=0))
    assert (responses["killer"].status, responses["killer"].executions) == (TaskStatus.LOST, 1)
    assert (responses["beside"].answer, responses["beside"].executions) == ("fine", 1)


def leave_a_child(path: str) -> None:
    Path(path).write_text(str(subprocess.Popen(["sleep", "300"]).pid))
    os._exit(3)


def test_child_processes_of_a_task_end_with_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    response = Runners.sync_run(str(path), leave_a_child, ONE, max_retries=0)
    assert response.status is TaskStatus.LOST
    child = int(path.read_text())
    try:
        wait_until(lambda: not alive(child))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_statuses_are_strings() -> None:
    assert [str(status) for status in TaskStatus] == ["succeeded", "failed", "timed out", "lost", "cancelled"]


@given(st.lists(st.text(min_size=1)))
def test_id_set_behaves_like_a_set(ids: list[str]) -> None:
    seen, reference = IdSet(), set[str]()
    for task_id in ids:
        assert seen.add(task_id) is (task_id not in reference)
        reference.add(task_id)
    assert len(seen) == len(reference)


def test_id_set_grows() -> None:
    seen = IdSet()
    assert all(seen.add(str(number)) for number in range(5000))
    assert not any(seen.add(str(number)) for number in range(5000))
