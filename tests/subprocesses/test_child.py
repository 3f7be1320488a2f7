"""Processes with hard limits: they answer, they are stopped, they leave nothing behind."""

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
from paragent.subprocesses import CallFailed, Child, ChildLost, ProcessLimits, SubprocessPool


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_calls_are_answered_at_the_same_time_as_failures_are_told() -> None:
    async def play() -> list[Any]:
        async with SubprocessPool.running("math") as helpers:
            calls = [helpers.call("factorial", n, limit=10) for n in (3, -1, 5)]
            return list(await asyncio.gather(*calls, return_exceptions=True))

    first, failed, third = run(play())
    assert (first, third) == (6, 120)
    assert isinstance(failed, CallFailed)
    assert failed.kind == "ValueError"


def test_a_call_that_takes_too_long_is_killed_and_the_next_works() -> None:
    async def play() -> Any:
        async with SubprocessPool.running("time", most=1) as helpers:
            with pytest.raises(CallFailed, match=r"stopped after 0\.3 s"):
                await helpers.call("sleep", 60, limit=0.3)
            return await helpers.call("sleep", 0, limit=10)

    assert run(play()) is None


def test_a_helper_that_cannot_import_is_a_failure_with_the_reason() -> None:
    async def play() -> None:
        async with SubprocessPool.running("no_such_module") as helpers:
            await helpers.call("f", limit=1)

    with pytest.raises(EnvironmentFailed, match="no_such_module"):
        run(play())


def test_the_last_words_of_a_process_that_ends_before_it_is_asked_are_told() -> None:
    async def play() -> None:
        partner = await Child.start(["sh", "-c", "echo last words; exit 3"], ProcessLimits())
        await asyncio.to_thread(partner._process.wait, 10)
        with pytest.raises(ChildLost, match="3") as lost:
            await partner.request({"code": ""}, 10)
        assert lost.value.output == "last words\n"
        await partner.close()

    run(play())


def test_a_partner_does_not_see_the_users_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")

    async def play() -> str:
        partner = await Child.start(["sh", "-c", "env; exit 3"], ProcessLimits())
        await asyncio.to_thread(partner._process.wait, 10)
        with pytest.raises(ChildLost) as lost:
            await partner.request({"code": ""}, 10)
        await partner.close()
        return lost.value.output

    seen = run(play())
    assert "PATH=" in seen
    assert "of-the-user" not in seen


def test_a_cancelled_call_ends_its_process() -> None:
    async def play() -> None:
        others = set(psutil.Process().children())
        async with SubprocessPool.running("time") as helpers:
            await helpers.call("sleep", 0, limit=10)
            assert set(psutil.Process().children()) > others
            task = asyncio.create_task(helpers.call("sleep", 60, limit=60))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert set(psutil.Process().children()) <= others

    run(play())


WORKER = """
import asyncio
from paragent.subprocesses import SubprocessPool
async def play():
    async with SubprocessPool.running("time") as helpers:
        await helpers.call("sleep", 0, limit=10)
        print("ready", flush=True)
        await helpers.call("sleep", 100, limit=100)
asyncio.run(play())
"""


def test_helpers_die_with_a_worker_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == "ready"
        family = psutil.Process(worker.pid).children(recursive=True)
        assert family
        worker.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
