"""Event loops of a server keep the guarantees of asyncio although steps and timers are batched."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from paragent.remote.server.event_loop import BatchingLoop, TimerBatchingLoop, new_event_loop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=[BatchingLoop, TimerBatchingLoop])
def loop(request: pytest.FixtureRequest) -> Iterator[TimerBatchingLoop]:
    made: TimerBatchingLoop = request.param()
    yield made
    made.close()


def test_callbacks_run_in_the_order_in_which_they_were_scheduled(loop: TimerBatchingLoop) -> None:
    called: list[int] = []
    loop.call_soon(called.append, 1)
    loop.call_soon(called.append, 2)
    loop.call_soon_threadsafe(called.append, 3)
    loop.call_soon(called.append, 4)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert called == [1, 2, 3, 4]


def test_a_callback_scheduled_by_a_callback_runs_in_the_next_iteration(loop: TimerBatchingLoop) -> None:
    called: list[str] = []

    def first() -> None:
        called.append("first")
        loop.call_soon(called.append, "scheduled by the first")

    loop.call_soon(first)
    loop.call_soon(called.append, "second")
    loop.call_soon(loop.call_soon, loop.stop)
    loop.run_forever()
    assert called == ["first", "second", "scheduled by the first"]


def test_only_the_cancelled_callback_does_not_run(loop: TimerBatchingLoop) -> None:
    called: list[int] = []
    loop.call_soon(called.append, 1)
    handle = loop.call_soon(called.append, 2)
    loop.call_soon(called.append, 3)
    handle.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert called == [1, 3]
    assert handle.cancelled()


@pytest.mark.parametrize("when", ["soon", "later"])
def test_the_exception_handler_gets_an_error_and_the_next_callback_runs(loop: TimerBatchingLoop, when: str) -> None:
    reported: list[dict[str, Any]] = []
    called: list[int] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    at = loop.time() + 0.01
    ask: Any = loop.call_soon if when == "soon" else lambda *call: loop.call_at(at, *call)
    ask(int, "no number")
    ask(called.append, 1)
    ask(loop.stop)
    loop.run_forever()
    assert called == [1]
    assert isinstance(reported[0]["exception"], ValueError)


def test_tasks_sleep_time_out_and_are_cancelled(loop: TimerBatchingLoop) -> None:
    async def late() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    async def everything() -> list[Any]:
        return await asyncio.gather(*(asyncio.sleep(0.001 * n, n) for n in range(5)), late(), return_exceptions=True)

    *numbers, error = loop.run_until_complete(everything())
    assert numbers == list(range(5))
    assert isinstance(error, TimeoutError)


@pytest.mark.parametrize("delay", [math.inf, 1e300, 1.7e308, 1e10])
def test_a_delay_may_be_infinite(loop: TimerBatchingLoop, delay: float) -> None:
    async def program() -> str:
        infinite = loop.create_task(asyncio.sleep(delay))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(infinite), 0.01)
        infinite.cancel()
        return await asyncio.wait_for(asyncio.sleep(0.01, "slept"), delay)

    assert loop.run_until_complete(program()) == "slept"
    assert not loop.batched_timers, "a cancelled timer does not stay"


def test_a_negative_delay_is_due_now_and_nan_is_rejected(loop: TimerBatchingLoop) -> None:
    called: list[float] = []
    for delay in (-math.inf, -1e300, -1.0):
        loop.call_later(delay, called.append, delay)
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    assert called == [-math.inf, -1e300, -1.0]
    for call in (loop.call_later, loop.call_at):
        with pytest.raises(ValueError, match="NaN"):
            call(math.nan, called.append, 0.0)


def test_system_exit_in_a_callback_does_not_drop_other_callbacks() -> None:
    loop = BatchingLoop()
    called: list[int] = []
    reported: list[Any] = []

    def end(kind: type[BaseException]) -> None:
        raise kind

    loop.set_exception_handler(lambda _, context: reported.append(type(context["exception"])))
    for number, kind in enumerate((SystemExit, KeyboardInterrupt)):
        loop.call_soon(end, kind)
        loop.call_soon(called.append, number)
        loop.call_later(0.01, end, kind)
        loop.call_later(0.01, called.append, number + 2)
    loop.call_later(0.05, loop.stop)
    loop.run_forever()
    loop.close()
    assert called == [0, 1, 2, 3]
    assert reported == [SystemExit, KeyboardInterrupt] * 2


def test_steps_are_batched_where_asyncio_has_its_queue() -> None:
    made = new_event_loop()
    assert isinstance(made, BatchingLoop)
    made.close()


def test_agents_run_on_a_python_whose_event_loop_has_another_queue() -> None:
    """The program runs with an asyncio in which `_ready` has another name."""
    program = """
        import importlib.util, re, sys

        class Renamed:
            def find_spec(self, name, path=None, target=None):
                if name != "asyncio.base_events":
                    return None
                sys.meta_path.remove(self)
                spec = importlib.util.find_spec(name)
                source = re.sub(rb"\\b_ready\\b", b"_queue", spec.loader.get_data(spec.origin))
                spec.loader.get_code = lambda _: compile(source, spec.origin, "exec")
                return spec

        sys.meta_path.insert(0, Renamed())
        import asyncio
        from paragent.remote.server.event_loop import BatchingLoop, TimerBatchingLoop, new_event_loop

        assert hasattr(asyncio.SelectorEventLoop(), "_queue")
        assert type(new_event_loop()) is TimerBatchingLoop

        from paragent import RpcAgentServerLauncher
        from tests.remote.agents import Worker

        with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
            where = {"host": launcher.host, "port": launcher.port}
            agents = [Worker(str(number), to_dist=where) for number in range(20)]
            results = [agent.nap(0.01) for agent in agents]
            print(*{result.result(20) for result in results})
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
