"""Execution order of calls, concurrent methods, cancellation and deadlines."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from paragent import AgentStopped, CallCancelled, CallTimedOut, RpcAgentServerLauncher
from paragent.agents.proxy import link_of
from tests.remote.agents import Worker


def remote(**settings: Any) -> Any:
    return Worker("actor", to_dist=settings or True)


@pytest.mark.slow
def test_calls_of_one_caller_keep_their_order(worker: Any) -> None:
    results = [worker.note(n) if n % 3 else worker.slow_note(n) for n in range(90)]
    for result in results:
        result.result(60)
    assert worker.notes() == list(range(90))


def test_each_of_many_callers_keeps_its_order(worker: Any) -> None:
    def call(caller: int) -> None:
        for n in range(300):
            worker.note((caller, n))

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    notes = worker.notes().result(60)
    assert len(notes) == 1200
    for caller in range(4):
        assert [n for who, n in notes if who == caller] == list(range(300))


def test_an_agent_executes_one_call_at_a_time(worker: Any) -> None:
    started = time.perf_counter()
    results = [worker.nap(0.1) for _ in range(3)]
    for result in results:
        result.result(60)
    assert time.perf_counter() - started >= 0.3


def test_concurrent_calls_overlap(worker: Any) -> None:
    assert [result.result(60) for result in [worker.together(0.3) for _ in range(5)]] == [5] * 5
    assert [result.result(60) for result in [worker.together_sync(10) for _ in range(5)]] == [10] * 5


def test_blocking_agents_do_not_block_others(mark: Path) -> None:
    """Many more agents block than there are processes, and other agents still answer."""
    blocked = [remote() for _ in range(60)]
    results = [agent.block_until(str(mark)) for agent in blocked]
    others = [remote() for _ in range(10)]
    assert [agent.add(1).result(60) for agent in others] == [2] * 10
    assert [agent.nap(0.01).result(60) for agent in others] == ["actor"] * 10
    assert not any(result.done() for result in results)
    mark.touch()
    assert [result.result(60) for result in results] == [str(mark)] * 60


def test_cancelling_a_call_cancels_async_code(worker: Any, mark: Path, eventually: Any) -> None:
    result = worker.nap(60, str(mark))
    waiting = worker.note("never")
    assert worker.together(0.0).result(60) == 1, "both calls have reached the server"
    assert waiting.cancel()
    assert result.cancel()
    assert not result.cancel()
    with pytest.raises(CallCancelled):
        result.result(5)
    eventually(mark.exists)
    assert worker.notes() == []


def test_cancelling_a_call_interrupts_sync_code(worker: Any, mark: Path, eventually: Any) -> None:
    result = worker.spin(str(mark))
    eventually(Path(f"{mark}.started").exists)
    assert result.cancel()
    eventually(mark.exists)
    assert worker.add(1).result(5) == 2, "the agent still works"


@pytest.mark.parametrize("how", ["str", "wait", "as_completed"])
def test_cancelling_a_call_interrupts_code_that_waits_for_another_agent(
    how: str, worker: Any, mark: Path, eventually: Any
) -> None:
    result = worker.wait_for_nap(remote(), how, str(mark))
    eventually(Path(f"{mark}.started").exists)
    assert result.cancel()
    eventually(mark.exists, 20)
    assert worker.add(1).result(20) == 2, "the agent still works"


def test_cancelling_the_waiting_task_cancels_the_call(worker: Any, mark: Path, eventually: Any) -> None:
    async def program() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.nap(60, str(mark)), 0.2)

    asyncio.run(program())
    eventually(mark.exists)


@pytest.mark.slow
def test_a_deadline_ends_the_call(mark: Path, eventually: Any) -> None:
    agent = remote(timeout=0.2)
    started = time.perf_counter()
    with pytest.raises(CallTimedOut, match=r"^\w+\.nap: no answer within 0\.2 s$"):
        agent.nap(60, str(mark)).result(60)
    assert time.perf_counter() - started > 0.15
    eventually(mark.exists)
    with pytest.raises(TimeoutError):
        agent.sleep(1.0).result(60)
    assert agent.options(timeout=10).nap(0.4).result(60) == "actor"

    async def program() -> None:
        with pytest.raises(CallTimedOut):
            await agent.nap(60)

    asyncio.run(program())


def test_async_methods_run_in_real_tasks(worker: Any) -> None:
    assert worker.current_task_is_real() == True  # noqa: E712 - a lazy result, not a bool


def test_sleeps_on_the_server_take_the_right_time(worker: Any) -> None:
    started = time.perf_counter()
    results = [worker.together(0.05 * n) for n in range(5)]
    for n, result in enumerate(results):
        result.result(60)
        assert time.perf_counter() - started >= 0.05 * n


def test_running_calls_continue_while_many_calls_start(worker: Any) -> None:
    assert worker.add(1) == 2, "the agent exists, so calls start in the order in which they are sent"
    results = [worker.together(0) for _ in range(8_000)]
    begun_meanwhile = [result.result(60) - begun for begun, result in enumerate(results, start=1)]
    assert max(begun_meanwhile) <= 1_024, "few calls start during one turn of the loop"


@pytest.mark.slow
def test_a_call_that_is_cancelled_before_its_first_step_is_answered(
    server: RpcAgentServerLauncher, mark: Path, eventually: Any
) -> None:
    """While the event loop of the server is blocked, a call arrives and its agent is stopped: both are handled in one turn."""
    where = {"host": server.host, "port": server.port}
    agent, other = remote(**where), remote(**where)
    assert agent.add(1) == other.add(1) == 2
    other.hog(1.5, str(mark))
    eventually(mark.exists)
    waiting = agent.nap(60)
    eventually(lambda: link_of(agent).control("info").result(60)["calls_under_way"] >= 2)
    assert agent.stop().result(20)
    assert isinstance(waiting.exception(20), AgentStopped)
