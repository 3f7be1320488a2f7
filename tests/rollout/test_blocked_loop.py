"""Rollouts whose code blocks the event loop of their worker: their time limit holds, and the others are not blamed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paragent import BenchmarkTask, Environment, RolloutConfig, run_parallel_rollout, tool
from paragent._internal.threads import start_thread
from paragent.execution import Ending
from paragent.scorers import Score, Scorer
from paragent.store import Journal, RolloutResult, RolloutStatus
from paragent.testing import OpenAIServer, Script
from paragent.training import Groups, RolloutService
from paragent.worker import call_times, loop_watch
from paragent.worker.call_times import CallTimes
from tests.training import policy

HERE = "tests.rollout.test_blocked_loop"


def hold_the_interpreter_lock() -> None:
    """Match an expression that takes years, in C code that does not release the interpreter lock."""
    re.match(r"(a+)+$", 60 * "a" + "b")


def block_in_python() -> None:
    """Block as code does that polls."""
    end = time.monotonic() + 600.0
    while time.monotonic() < end:
        time.sleep(0.01)


def block_once(where: str) -> None:
    """Block in the first call for this place."""
    marker = Path(f"blocked-{where}")
    if not marker.exists():
        marker.touch()
        block_in_python()


class Plain(Environment):
    """Blocks the event loop in the place that the task names, once."""

    name = "plain"
    metric = "contains"

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        if task.question == "open":
            block_once("open")
        return await super().open(task, machine)

    @tool
    async def look(self) -> str:
        """Block."""
        block_once("tool")
        return ""


class BlockingScorer(Scorer):
    """Blocks for the answer `score`, once."""

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        if answer == "score":
            block_once("score")
        return Score(1.0)


class Agent:
    """Does what its task says."""

    async def run_episode(self, episode: Any) -> str:
        what = episode.question
        if what == "sleep":
            await asyncio.wait_for(self.sleep(), 600.0)  # in a task of its own
        elif what == "poll":
            block_in_python()
        elif what == "lock":
            hold_the_interpreter_lock()
        elif what == "pause":
            time.sleep(1.0)
        elif what == "tool":
            await episode.answer_calls([{"id": "1", "function": {"name": "look", "arguments": "{}"}}])
        elif what == "other":
            for _ in range(3):
                await asyncio.sleep(0.1)
        return str(what)

    async def sleep(self) -> None:
        time.sleep(600.0)


class Trained(Agent):
    """Samples a turn first."""

    async def run_episode(self, episode: Any) -> str:
        await episode.complete()
        return await super().run_episode(episode)


def lock_in_a_thread(question: str) -> str:
    """Do what the task says, as a synchronous agent."""
    if question == "lock":
        hold_the_interpreter_lock()
    time.sleep(0.3)
    return question


def execute(tmp_path: Path, *tasks: str, **settings: Any) -> list[RolloutResult]:
    """Execute rollouts of these tasks in one worker; return all results, in the order of the tasks."""
    data = tmp_path / "tasks.jsonl"
    entries = ({"id": str(n), "question": what, "answer": what} for n, what in enumerate(tasks))
    data.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    chosen: dict[str, Any] = {"env": f"{HERE}:Plain", "model": "demo", "agent": f"{HERE}:Agent", "workers": 1}
    chosen |= {"num_rollouts": len(tasks), "output_dir": tmp_path / "results", "run_name": "run", "timeout": 1.5}
    run_parallel_rollout(RolloutConfig(data=data, **chosen | settings))
    with Journal(tmp_path / "results" / "run" / "journal.sqlite", read_only=True) as journal:
        return sorted(journal.results("1"), key=lambda result: int(result.task))


def check_completed(results: list[RolloutResult]) -> None:
    assert [(one.status, one.score, one.final) for one in results] == len(results) * [("completed", 1.0, True)]


@pytest.mark.slow
def test_a_rollout_that_blocks_the_event_loop_times_out_alone(tmp_path: Path) -> None:
    blocking, *others = execute(tmp_path, "sleep", "other", "other")
    assert (blocking.status, blocking.kind) == (RolloutStatus.TIMED_OUT, "time limit")
    message, _, stack = blocking.error.partition("\n")
    assert all(words in message for words in ("time limit of 1.5 s", "event loop", "asyncio.to_thread")), message
    assert "time.sleep(600.0)" in stack
    assert 1.5 <= blocking.seconds < 60.0
    assert blocking.activity
    check_completed(others)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["Agent", "lock_in_a_thread"])
def test_code_that_holds_the_interpreter_lock_is_ended_from_outside(tmp_path: Path, agent: str) -> None:
    before, holding, after = execute(tmp_path, "other", "lock", "other", agent=f"{HERE}:{agent}", timeout=2.5)
    assert (holding.status, holding.kind) == (RolloutStatus.TIMED_OUT, "time limit")
    assert "interpreter lock" in holding.error
    check_completed([before, after])


@pytest.mark.slow
def test_time_in_which_another_rollout_blocks_the_event_loop_does_not_count(tmp_path: Path) -> None:
    results = execute(tmp_path, "pause", "other", "pause", "other", "pause", timeout=1.4)
    check_completed(results)
    assert sum(one.waited for one in results) > 3.0, "they waited for each other"


def test_a_rollout_that_blocks_the_inline_engine_times_out(tmp_path: Path) -> None:
    blocking, other = execute(tmp_path, "poll", "other", engine="inline", timeout=0.8)
    assert (blocking.status, blocking.kind) == (RolloutStatus.TIMED_OUT, "time limit")
    check_completed([other])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("tool", (RolloutStatus.INFRASTRUCTURE, "environment")),
        ("open", (RolloutStatus.INFRASTRUCTURE, "environment")),
        ("score", (RolloutStatus.UNSCORED, "scoring")),
    ],
)
def test_an_environment_or_scorer_that_blocks_is_not_the_agents_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(call_times, "BLOCKED_LIMIT", 0.6)
    monkeypatch.chdir(tmp_path)
    first, *_ = execute(tmp_path, where, engine="inline", metric=f"{HERE}:BlockingScorer")
    assert (first.status, first.kind) == expected
    assert "event loop" in first.error
    assert "in block_in_python" in first.error
    assert first.score is None


def test_a_worker_that_cannot_watch_its_event_loop_is_an_infrastructure_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, calls = start_thread, 0

    def refuse_once(*arguments: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("can't start new thread")
        return start(*arguments, **settings)

    monkeypatch.setattr(loop_watch, "start_thread", refuse_once)
    first, second = execute(tmp_path, "other", engine="inline")
    assert (first.status, first.kind, first.final) == (RolloutStatus.INFRASTRUCTURE, "environment", False)
    assert "can't start new thread" in first.error
    check_completed([second])


@pytest.mark.slow
def test_in_training_a_blocking_rollout_is_a_sample_that_timed_out(tmp_path: Path) -> None:
    with OpenAIServer(Script(default=[policy.LOOK, "42"])) as server:
        settings = policy.config(tmp_path, agent=f"{HERE}:Trained", timeout=5.0)
        with RolloutService(settings, server.url, Groups(n=1)) as service:
            service.add([policy.task("a", "sleep")])
            [group] = service.groups(timeout=100)
    assert [sample.status for sample in group.samples] == ["timed out"]
    assert group.rewards == [0.0]
    assert not group.failures
    assert all(sample.turns for sample in group.samples), "what it sampled before is kept"


# --- what is not the agent's work -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def slow_helper() -> AsyncIterator[str]:
    await asyncio.sleep(0.6)
    yield "helper"


class Slow(Environment):
    """Is slow to open, or needs a helper that is slow to start."""

    name = "slow"
    metric = "contains"

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        await asyncio.sleep(0.6 if task.question == "other" else 0.0)
        return await super().open(task, machine)

    @tool
    async def look(self) -> str:
        """Use the helper."""
        return await self.shared.get("helper", slow_helper)


def test_opening_the_environment_and_starting_its_helpers_does_not_count_against_the_limit(tmp_path: Path) -> None:
    check_completed(execute(tmp_path, "tool", "tool", "other", env=f"{HERE}:Slow", engine="inline", timeout=0.5))


# --- what the owner of a worker sees ----------------------------------------------------------------------------------


def times_of(
    *deadlines: float, blocking: int | None = None, since: float = 0.0, sign_of_life: float = 0.0
) -> CallTimes:
    times = CallTimes.of_memory(memoryview(bytearray(8 * CallTimes.cells(len(deadlines)))).cast("d"))
    for number, deadline in enumerate(deadlines):
        times.starts[number], times.deadlines[number] = 1.0, deadline
    times.loop[0], times.loop[1], times.loop[2] = 0 if blocking is None else blocking + 1, since, sign_of_life
    return times


def test_the_owner_ends_the_call_that_blocks_the_event_loop() -> None:
    times = times_of(10.0, 10.0, blocking=1, since=5.0, sign_of_life=5.0)
    assert times.overdue([0, 1], 11.0) is None, "the worker can end it by itself"
    overdue = times.overdue([0, 1], 13.0)
    assert overdue is not None
    assert overdue.endings == {1: Ending.TIMED_OUT}
    scoring = times_of(math.inf, -1.0, blocking=1, since=5.0, sign_of_life=5.0)
    assert scoring.overdue([0, 1], 60.0) is None
    late = scoring.overdue([0, 1], 68.0)
    assert late is not None
    assert late.endings == {1: Ending.LOST}, "the agent is not to blame"


def test_unknown_code_that_blocks_the_event_loop_is_found_by_executing_smaller_groups() -> None:
    times = times_of(10.0, 20.0, sign_of_life=5.0)
    assert times.overdue([0, 1], 11.0) is None
    overdue = times.overdue([0, 1], 13.0)
    assert overdue is not None
    assert overdue.endings == {0: Ending.LOST, 1: Ending.LOST}
    alone = times.overdue([0], 13.0)
    assert alone is not None
    assert alone.endings == {0: Ending.TIMED_OUT}
    waiting = times_of(math.inf, -1.0, sign_of_life=5.0)
    assert waiting.overdue([0, 1], 30.0) is None
    assert waiting.overdue([0, 1], 70.0) is not None, "no event loop is blocked for a minute"


def test_code_that_ignores_its_cancellation_is_ended_while_others_go_on() -> None:
    times = times_of(10.0, 100.0, 0.0, sign_of_life=39.8)
    assert times.overdue([0, 1, 2], 39.9) is None, "it may clean up"
    times.loop[2] = 41.0
    overdue = times.overdue([0, 1, 2], 41.0)
    assert overdue is not None
    assert overdue.endings == {0: Ending.TIMED_OUT}
    assert times_of(0.0, 0.0).overdue([0, 1], 1e6) is None, "calls that the engine limits"
