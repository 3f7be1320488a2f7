"""Child processes with limits, and pools of them: replies, limits, and cleanup."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import psutil
import pytest

from paragent.errors import EnvironmentFailed
from paragent.execution import STARTING_HELPER, current_activity
from paragent.subprocesses import CallFailed, Child, ChildLost, ProcessLimits, SubprocessPool
from tests.children import BoundedPopen
from tests.waiting import wait_until_async


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_concurrent_calls_return_results_and_failures() -> None:
    async def scenario() -> list[Any]:
        async with SubprocessPool.running("math") as pool:
            calls = [pool.call("factorial", n, limit=10) for n in (3, -1, 5)]
            return list(await asyncio.gather(*calls, return_exceptions=True))

    first, failed, third = run(scenario())
    assert (first, third) == (6, 120)
    assert isinstance(failed, CallFailed)
    assert failed.kind == "ValueError"


class Waits:
    """Records the waits of a rollout."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.current = 0

    def doing(self, what: str, name: str = "") -> None: ...

    def pause(self, what: str, seconds: float | None) -> None:
        self.began.append(what)
        self.current += 1

    def resume(self) -> None:
        self.current -= 1


def test_starting_a_child_and_waiting_for_one_is_not_the_rollouts_work() -> None:
    async def scenario() -> None:
        waits = Waits()
        current_activity.set(waits)
        async with SubprocessPool.running("time", most=1) as pool:
            await pool.call("sleep", 0.1, limit=10)
            assert waits.began == [STARTING_HELPER], "it waited for the start"
            await pool.call("sleep", 0.1, limit=10)
            assert len(waits.began) == 1, "the call itself is work"
            await asyncio.gather(*(pool.call("sleep", 0.1, limit=10) for _ in range(3)))
        assert (len(waits.began), waits.current) == (3, 0), "two of them waited for the first"

    run(scenario())


def test_one_child_of_a_pool_starts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, started, most = 0, 0, 0
    start = Child.start

    async def counted(*arguments: Any, **settings: Any) -> Child:
        nonlocal starting, started, most
        starting += 1
        started += 1
        most = max(most, starting)
        child = await start(*arguments, **settings)
        await asyncio.sleep(0.05)
        starting -= 1
        return child

    async def scenario() -> None:
        async with SubprocessPool.running("time", most=3) as pool:
            await asyncio.gather(*(pool.call("sleep", 2, limit=10) for _ in range(3)))

    monkeypatch.setattr(Child, "start", counted)
    run(scenario())
    assert most == 1
    assert started > 1


def test_short_calls_share_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy child is free again before another one would have started."""
    started = 0
    start = Child.start

    async def counted(*arguments: Any, **settings: Any) -> Child:
        nonlocal started
        started += 1
        return await start(*arguments, **settings)

    async def scenario() -> list[Any]:
        async with SubprocessPool.running("math", most=3) as pool:
            return await asyncio.gather(*(pool.call("sqrt", number * number, limit=10) for number in range(20)))

    monkeypatch.setattr(Child, "start", counted)
    assert run(scenario()) == list(range(20))
    assert started == 1


def test_a_call_over_its_time_limit_is_killed_and_the_next_call_works() -> None:
    async def scenario() -> Any:
        async with SubprocessPool.running("time", most=1) as pool:
            with pytest.raises(CallFailed, match=r"stopped after 0\.3 s"):
                await pool.call("sleep", 60, limit=0.3)
            return await pool.call("sleep", 0, limit=10)

    assert run(scenario()) is None


def test_a_module_that_cannot_be_imported_is_reported() -> None:
    async def scenario() -> None:
        async with SubprocessPool.running("no_such_module") as pool:
            await pool.call("f", limit=1)

    with pytest.raises(EnvironmentFailed, match="no_such_module"):
        run(scenario())


def test_the_output_of_a_process_that_ended_before_the_request_is_reported() -> None:
    async def scenario() -> None:
        child = await Child.start(["sh", "-c", "echo last words; exit 3"], ProcessLimits())
        await wait_until_async(lambda: not child.alive)
        with pytest.raises(ChildLost, match="3") as lost:
            await child.request({"code": ""}, 10)
        assert lost.value.output == "last words\n"
        await child.close()

    run(scenario())


def test_a_child_does_not_inherit_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")

    async def scenario() -> str:
        child = await Child.start(["sh", "-c", "env; exit 3"], ProcessLimits())
        await wait_until_async(lambda: not child.alive)
        with pytest.raises(ChildLost) as lost:
            await child.request({"code": ""}, 10)
        await child.close()
        return lost.value.output

    seen = run(scenario())
    assert "PATH=" in seen
    assert "of-the-user" not in seen


def test_a_cancelled_call_ends_its_process() -> None:
    async def scenario() -> None:
        others = set(psutil.Process().children())
        async with SubprocessPool.running("time") as pool:
            await pool.call("sleep", 0, limit=10)
            assert set(psutil.Process().children()) > others
            task = asyncio.create_task(pool.call("sleep", 60, limit=60))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert set(psutil.Process().children()) <= others

    run(scenario())


WORKER = """
import asyncio
from paragent.subprocesses import SubprocessPool
async def scenario():
    async with SubprocessPool.running("time") as pool:
        await pool.call("sleep", 0, limit=10)
        print("ready", flush=True)
        await pool.call("sleep", 100, limit=100)
asyncio.run(scenario())
"""


@pytest.mark.slow
def test_children_end_when_their_parent_is_killed() -> None:
    with BoundedPopen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == "ready"
        family = psutil.Process(worker.pid).children(recursive=True)
        assert family
        worker.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
