"""The calls that users make: what they refuse, what they return, what they cost."""

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
    Progress,
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
from paragent.runners.prepare import IdSet
from paragent.testing.agents import echo, fail, nap, sleep_interval
from paragent.testing.programs import alive
from tests.waiting import wait_until

ONE = RunConfig(worker_num=1)


def test_one_task_or_many() -> None:
    assert Runners.sync_run_task(Task(1, echo, id="a"), ONE)["a"].answer == 1
    assert [r.answer for r in exec_tasks((Task(i, echo) for i in range(5)), ONE).values()] == list(range(5))
    assert Runners.sync_run("x", echo, ONE).answer == "x"


def test_the_async_calls_return_the_same() -> None:
    async def both() -> tuple[Any, Any]:
        many = await Runners.run_task([Task(i, echo, id=str(i)) for i in range(3)], ONE)
        one = await Runners.run("x", echo, ONE)
        return {key: response.answer for key, response in many.items()}, one.answer

    assert asyncio.run(both()) == ({"0": 0, "1": 1, "2": 2}, "x")


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


def test_a_task_may_run_tasks() -> None:
    assert Runners.sync_run("deep", Asks("outer"), ONE).answer == ["inner", "deep"]


def test_a_message_is_handed_over_as_it_is() -> None:
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
def test_what_cannot_be_run_is_refused_before_anything_starts(tasks: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runners.sync_run_task(tasks, ONE)


def test_what_a_generator_yields_must_be_tasks() -> None:
    with pytest.raises(UsageError, match="expected a Task, got 'just text'"):
        Runners.sync_run_task(iter(cast("list[Task]", ["just text"])), ONE)
    with pytest.raises(UsageError, match="expected a Task or tasks, got 5"):
        Runners.sync_run_task(cast("Task", 5), ONE)


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="RunConfig"):
        Runners.sync_run_task(Task(1, echo), {"worker_num": 2})  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"no engine called 'lokal'; there are: .*inline, local"):
        Runners.sync_run_task(Task(1, echo), RunConfig(engine_name="lokal"))
    with pytest.raises(ConfigError, match="subclass of RuntimeEngine"):
        Runners.sync_run_task(Task(1, echo), RunConfig(cls=int))


def test_an_engine_can_be_named_by_class_or_path() -> None:
    assert Runners.sync_run(1, echo, RunConfig(cls=LocalRuntime, worker_num=1)).success
    assert Runners.sync_run(1, echo, RunConfig(cls="paragent.engines.inline:InlineRuntime")).success


def test_an_engine_that_is_lent_keeps_its_workers_and_serves_one_run_at_a_time() -> None:
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
    """Its workers cannot start."""

    def worker_settings(self) -> WorkerSettings:
        good = super().worker_settings()
        return WorkerSettings(good.sync_limit, good.async_limit, good.shared_limit, good.slots, ("false",))


def test_workers_that_cannot_start_are_an_error_and_not_a_loop() -> None:
    with pytest.raises(EngineFailed, match="before they are ready"):
        Runners.sync_run_task(Task(1, echo), RunConfig(cls=BrokenWorkers))


class FailsLater(BrokenWorkers):
    """Its first worker starts and ends with its first task; no other can start."""

    started = 0

    def worker_settings(self) -> WorkerSettings:
        self.started += 1
        return LocalRuntime.worker_settings(self) if self.started == 1 else super().worker_settings()


def test_what_was_answered_before_an_engine_failed_is_not_lost() -> None:
    config = RunConfig(cls=FailsLater, worker_num=1, reuse_process=False)
    with pytest.raises(EngineFailed) as caught:
        Runners.sync_run_task([Task(i, echo, id=str(i)) for i in range(3)], config)
    assert {key: response.answer for key, response in caught.value.responses.items()} == {"0": 0}


def test_unwrap_gives_the_answer_or_raises_with_the_far_traceback() -> None:
    assert Runners.sync_run("x", echo, ONE).unwrap() == "x"
    with pytest.raises(TaskFailed, match=r"ValueError: boom") as caught:
        Runners.sync_run("boom", fail, ONE).unwrap()
    assert "in fail" in str(caught.value)


def test_progress_is_told_to_a_function() -> None:
    told: list[tuple[int, int | None]] = []

    def tell(progress: Progress) -> None:
        told.append((progress.done, progress.total))

    Runners.sync_run_task([Task(0.05, nap) for _ in range(10)], ONE.with_settings(progress=tell))
    assert told[-1] == (10, 10)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_progress_without_a_terminal_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Runners.sync_run_task([Task(1, fail), Task(1, echo)], ONE.with_settings(progress=True, job_name="lines"))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lines: 2 of 2 done, 0 running, 1 without success")


def test_a_stream_costs_no_memory() -> None:
    """The window is bounded, so ten times the tasks do not need more memory, in the driver or in the workers."""

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


def test_a_slow_generator_does_not_hold_back_answers() -> None:
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


def test_a_task_that_is_queued_behind_a_long_one_is_given_to_an_idle_worker(tmp_path: Path) -> None:
    """Short tasks make the engine feed ahead; a long one among them must not keep the rest to itself."""
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


def test_whoever_works_beside_a_task_that_kills_their_worker_is_not_charged(tmp_path: Path) -> None:
    path = str(tmp_path / "began")
    tasks = [Task(path, wait_beside, id="beside"), Task(path, kill_the_worker, id="killer")]
    responses = Runners.sync_run_task(tasks, RunConfig(worker_num=1, max_retries=0))
    assert (responses["killer"].status, responses["killer"].executions) == (TaskStatus.LOST, 1)
    assert (responses["beside"].answer, responses["beside"].executions) == ("fine", 1)


def leave_a_child(path: str) -> None:
    Path(path).write_text(str(subprocess.Popen(["sleep", "300"]).pid))
    os._exit(3)


def test_what_a_task_started_ends_with_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    response = Runners.sync_run(str(path), leave_a_child, ONE, max_retries=0)
    assert response.status is TaskStatus.LOST
    child = int(path.read_text())
    try:
        wait_until(lambda: not alive(child))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_statuses_are_words() -> None:
    assert [str(status) for status in TaskStatus] == ["succeeded", "failed", "timed out", "lost", "cancelled"]


@given(st.lists(st.text(min_size=1)))
def test_seen_ids_are_a_set(ids: list[str]) -> None:
    seen, reference = IdSet(), set[str]()
    for task_id in ids:
        assert seen.add(task_id) is (task_id not in reference)
        reference.add(task_id)
    assert len(seen) == len(reference)


def test_seen_ids_grow() -> None:
    seen = IdSet()
    assert all(seen.add(str(number)) for number in range(5000))
    assert not any(seen.add(str(number)) for number in range(5000))
