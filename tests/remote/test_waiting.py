"""Waiting for results as with `concurrent.futures`: `wait`, `as_completed`, callbacks, typed access."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from paragent import (
    AgentBase,
    CallCancelled,
    RemoteStream,
    Result,
    RpcAgentServerLauncher,
    UsageError,
    as_completed,
    concurrent,
    wait,
)
from paragent.errors import AgentError
from paragent.remote.result import call_of

LONG = 30.0


class Opener(AgentBase):
    """Waits for files, several at a time."""

    def __init__(self, name: str = "opener", *, to_dist: Any = None) -> None:
        super().__init__(name)
        self.options = {"mode": "fast"}  # type: ignore[method-assign, assignment]  # also the name of a method of proxies

    @concurrent
    async def after(self, path: str, value: Any = None) -> Any:
        while not Path(path).exists():
            await asyncio.sleep(0.005)
        if isinstance(value, Exception):
            raise value
        return value

    def fail_with(self, error: Exception) -> None:
        raise error

    def echo(self, value: Any) -> Any:
        return value

    async def make_nested(self, other: Opener, size: int) -> Any:
        return {"made": [[other.make(size)], {"later": [other.wait_shortly(size)]}]}

    async def prompt_nested(self, other: Opener) -> Any:
        return [[other.wait_shortly(1)]]

    async def stream_nested(self, other: Opener) -> AsyncIterator[Any]:
        yield [[other.wait_shortly(1)]]

    async def wait_for_cancelled(self) -> None:
        call = Result.of(Opener(to_dist=True).after("never"))
        call.cancel()
        await call

    async def wait_shortly(self, value: Any) -> Any:
        await asyncio.sleep(0.01)
        return [value]

    def create_later(self, place: dict[str, Any]) -> str:
        created: Queue[Any] = Queue()

        def create(_: Result[Any]) -> None:
            try:
                created.put(Opener(to_dist=place))
            except Exception as error:  # noqa: BLE001 - the test expects it
                created.put(error)

        Result.of(Opener(to_dist=True).make(1)).add_done_callback(create)
        return type(created.get(timeout=LONG)).__name__

    def make(self, size: int) -> bytes:
        return b"x" * size

    def count(self, number: int) -> Iterator[int]:
        yield from range(number)

    async def count_async(self, number: int) -> AsyncIterator[int]:
        for one in range(number):
            yield one


@pytest.fixture
def opener() -> Opener:
    return Opener(to_dist=True)


@pytest.fixture
def calls(opener: Opener, tmp_path: Path) -> Callable[..., tuple[Result[Any], Path]]:
    """Start a call that ends when a file exists; return its result and the path of the file."""

    def start(name: str, value: Any = None) -> tuple[Result[Any], Path]:
        return Result.of(opener.after(str(tmp_path / name), value)), tmp_path / name

    return start


def test_results_are_yielded_in_the_order_in_which_calls_end(calls: Any) -> None:
    started = [calls(name, name) for name in "abc"]
    arriving = as_completed([result for result, _ in started] * 2, timeout=LONG)
    for index in (2, 0, 1):
        started[index][1].touch()
        assert next(arriving).result() == "abc"[index]
    assert next(arriving, None) is None


def test_as_completed_yields_ended_calls_first_and_raises_after_its_timeout(calls: Any) -> None:
    (pending, _), (quick, path) = calls("pending"), calls("quick", 1)
    path.touch()
    assert quick.result(LONG) == 1
    arriving = as_completed([pending, quick], timeout=0.05)
    assert next(arriving) is quick
    with pytest.raises(TimeoutError, match="1 of 2 calls have not ended"):
        next(arriving)
    assert pending.cancel()
    assert list(as_completed([])) == []


def test_wait_can_return_after_the_first_call(calls: Any) -> None:
    (slow, _), (quick, path) = calls("slow"), calls("quick")
    path.touch()
    done, pending = wait([slow, quick], timeout=LONG, return_when=FIRST_COMPLETED)
    assert done[0] is quick
    assert pending[0] is slow
    assert len(done) == len(pending) == 1


def test_wait_returns_each_result_once(calls: Any) -> None:
    (pending, _), (quick, path) = calls("pending"), calls("quick")
    path.touch()
    done, waiting = wait([quick, pending, quick, pending], timeout=LONG, return_when=FIRST_COMPLETED)
    assert [id(result) for result in done] == [id(quick)]
    assert [id(result) for result in waiting] == [id(pending)]


def test_wait_can_return_after_the_first_failure(calls: Any) -> None:
    (slow, _), (cancelled, _), (good, good_path), (bad, bad_path) = (
        calls("slow"),
        calls("cancelled"),
        calls("good"),
        calls("bad", ValueError("no")),
    )
    assert cancelled.cancel()
    good_path.touch()
    assert good.result(LONG) is None
    threading.Timer(0.05, bad_path.touch).start()
    done, pending = wait([slow, cancelled, good, bad], timeout=LONG, return_when=FIRST_EXCEPTION)
    assert [id(result) for result in done] == [id(cancelled), id(good), id(bad)]
    assert pending[0] is slow
    assert isinstance(bad.exception(), ValueError)


def test_wait_returns_a_call_that_ends_while_it_looks(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = calls("a")
    answers = iter([False, False, True])  # asked before it waits, and after its timeout
    monkeypatch.setattr(Result, "done", lambda _: next(answers))
    done, pending = wait([result], timeout=0)
    assert len(done) + len(pending) == 1


def test_waiting_again_and_again_leaves_nothing_behind(calls: Any) -> None:
    (pending, _), (quick, path) = calls("pending"), calls("quick")
    path.touch()
    assert quick.result(LONG) is None
    for _ in range(20):
        wait([pending], timeout=0)
        next(as_completed([pending, quick]))
        with pytest.raises(TimeoutError):
            pending.result(timeout=0)
    assert not call_of(pending).watchers


class _Met:
    """Two threads meet while they decode the same value."""

    threads: threading.Barrier | None = None

    def __reduce__(self) -> Any:
        return _meet, ()


def _meet() -> _Met:
    if _Met.threads is not None:
        _Met.threads.wait(LONG)
    return _Met()


@pytest.mark.parametrize("outcome", ["value", "error"])
def test_threads_that_use_a_result_at_the_same_time_get_the_same_object(
    outcome: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: Any = opener.echo(_Met()) if outcome == "value" else opener.fail_with(ValueError(_Met()))  # type: ignore[func-returns-value]
    result: Result[Any] = Result.of(started)
    wait([result], timeout=LONG)
    monkeypatch.setattr(_Met, "threads", threading.Barrier(2))
    with ThreadPoolExecutor(2) as threads:
        use = result.result if outcome == "value" else result.exception
        first, second = [future.result(LONG) for future in [threads.submit(use, LONG) for _ in range(2)]]
    assert first is second
    assert isinstance(first, _Met | ValueError)


def test_results_inside_arguments_and_results_do_not_block_a_server_in_this_process() -> None:
    """Waiting for them takes no lock that their own calls need."""
    with RpcAgentServerLauncher() as launcher:
        first, second = (Opener(to_dist={"host": launcher.host, "port": launcher.port}) for _ in range(2))
        slow = Result.of(second.echo([[1]]))
        assert Result.of(first.echo([slow, {"key": second.echo({2: [3]})}])).result(LONG) == [[[1]], {"key": {2: [3]}}]
        assert Result.of(first.make_nested(second, 2)).result(LONG) == {"made": [[b"xx"], {"later": [[2]]}]}
        assert Result.of(first.prompt_nested(second)).result(LONG) == [[[1]]]
        assert list(RemoteStream.of(first.stream_nested(second))) == [[[[1]]]]


def test_the_error_of_a_result_inside_an_argument_is_the_error_of_the_call(opener: Opener) -> None:
    failing: Any = opener.fail_with(KeyError("its own"))  # type: ignore[func-returns-value]
    with pytest.raises(KeyError, match="its own"):
        Result.of(opener.echo([1, failing])).result(LONG)


def test_a_callback_of_a_restricted_server_may_use_trusted_servers_only() -> None:
    with RpcAgentServerLauncher() as other, RpcAgentServerLauncher(custom_agent_classes=[Opener]) as launcher:
        agent = Opener(to_dist={"host": launcher.host, "port": launcher.port})
        options = [("host", other.host), ("port", other.port)]
        assert Result.of(agent.create_later(dict(options))).result(LONG) == "AccessDenied"


def test_wrong_arguments_are_rejected(calls: Any) -> None:
    result, _ = calls("a")
    with pytest.raises(UsageError, match="FIRST_COMPLETED"):
        wait([result], return_when="FIRST")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"as_completed takes what calls to remote agents return, not 1"):
        as_completed([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        as_completed([result], timeout=float("nan"))


def test_callbacks_run_when_calls_end_and_may_use_results(calls: Any, opener: Opener) -> None:
    called: Queue[Any] = Queue()

    def note(result: Result[Any]) -> None:
        large = Result.of(opener.make(2 << 20))  # stays on the server: using it needs the I/O thread
        called.put((result.result(LONG), len(large.result(LONG)), threading.current_thread().name))

    result, path = calls("a", "value")
    result.add_done_callback(note)
    assert called.empty()
    path.touch()
    assert called.get(timeout=LONG) == ("value", 2 << 20, "paragent-callbacks")
    result.add_done_callback(note)  # it has ended: called at once
    assert called.get_nowait()[0] == "value"


def test_a_callback_that_raises_is_logged_and_does_not_disturb_others(
    calls: Any, caplog: pytest.LogCaptureFixture
) -> None:
    called: Queue[Any] = Queue()

    def fail(_: Result[Any]) -> None:
        raise KeyError("a wrong callback")

    def leave(_: Result[Any]) -> None:
        raise SystemExit

    result, path = calls("a")
    for callback in (fail, leave, called.put):
        result.add_done_callback(callback)
    path.touch()
    assert called.get(timeout=LONG) is result
    assert "a wrong callback" in caplog.text


def test_a_callback_sees_that_its_call_was_cancelled(calls: Any) -> None:
    called: Queue[Any] = Queue()
    result, _ = calls("a")
    result.add_done_callback(lambda ended: called.put(ended.exception()))
    result.cancel()
    assert isinstance(called.get(timeout=LONG), CallCancelled)


def test_a_cancelled_call_raises_cancelled_error(calls: Any) -> None:
    result, _ = calls("a")
    assert result.cancel()
    with pytest.raises(CancelledError) as caught:
        result.result(LONG)
    assert isinstance(caught.value, AgentError)
    assert not isinstance(caught.value, asyncio.CancelledError)


def test_a_result_says_whether_it_is_running_or_cancelled(calls: Any, opener: Opener) -> None:
    (cancelled, _), (succeeded, path) = calls("a"), calls("b")
    failed: Result[Any] = Result.of(opener.after(3))  # type: ignore[arg-type]
    late = Result.of(opener.options(timeout=0.01).after(str(path) + ".other"))
    assert (cancelled.running(), cancelled.cancelled(), cancelled.done()) == (True, False, False)
    assert cancelled.cancel()
    path.touch()
    for result in (succeeded, failed, late):
        result.exception(LONG)
    assert [result.running() for result in (cancelled, succeeded, failed, late)] == [False] * 4
    assert [result.cancelled() for result in (cancelled, succeeded, failed, late)] == [True, False, False, False]


def test_a_call_that_ends_because_another_was_cancelled_is_cancelled(opener: Opener) -> None:
    result = Result.of(opener.wait_for_cancelled())
    wait([result], LONG)
    assert result.cancelled()
    assert isinstance(result.exception(), CallCancelled)


def test_typed_access_returns_the_same_object(opener: Opener, calls: Any) -> None:
    result, path = calls("a", 3)
    assert Result.of(result) is result
    assert result.as_argument() is result
    stream = opener.count(3)
    assert RemoteStream.of(stream) is stream
    assert list(stream) == [0, 1, 2]
    assert list(RemoteStream.of(opener.count_async(2))) == [0, 1]
    path.touch()
    assert list(opener.count(result.as_argument())) == [0, 1, 2]


def test_typed_access_rejects_what_a_local_agent_returns() -> None:
    local = Opener()
    with pytest.raises(UsageError, match=r"Result\.of takes what calls to remote agents return.*to_dist="):
        Result.of(local.make(1))
    with pytest.raises(UsageError, match=r"Result\.of"):
        Result.of(local.after("x"))  # the coroutine is closed, and nothing warns about it
    with pytest.raises(UsageError, match=r"RemoteStream\.of"):
        RemoteStream.of(local.count(1))


def test_methods_of_proxies_are_rejected_by_local_agents() -> None:
    class Plain(AgentBase):
        pass

    with pytest.raises(UsageError, match=r"options\(\) is for remote agents.*Plain\(\.\.\., to_dist=True\)"):
        Plain("p").options(timeout=3)
    with pytest.raises(UsageError, match=r"stop\(\)"):
        Plain("p").stop()


def test_an_attribute_named_as_a_method_of_proxies_can_be_moved_to_a_restricted_server() -> None:
    with RpcAgentServerLauncher(custom_agent_classes=[Opener]) as launcher:
        moved = Opener().to_dist(launcher.host, launcher.port)
        assert Result.of(moved.make(2)).result(LONG) == b"xx"


def test_the_representation_of_a_launcher_shows_its_address_and_state() -> None:
    launcher = RpcAgentServerLauncher("localhost")
    assert repr(launcher) == "<RpcAgentServerLauncher localhost:0: not launched>"
    with launcher:
        assert repr(launcher) == f"<RpcAgentServerLauncher localhost:{launcher.port}: serves in this process>"
    assert repr(launcher).endswith(": stopped>")


def test_asyncio_wait_is_rejected_and_works_with_tasks(worker: Any) -> None:
    """It would add a callback that must run on its loop, and wait for ever."""

    async def wait_for(results: Any) -> Any:
        return await asyncio.wait(results, timeout=30.0)

    with pytest.raises(UsageError, match=r"asyncio\.ensure_future"):
        asyncio.run(wait_for([worker.add(1)]))

    async def wait_for_tasks() -> Any:
        done, _ = await wait_for([asyncio.ensure_future(worker.add(1))])
        return [task.result() for task in done]

    assert asyncio.run(wait_for_tasks()) == [2]
