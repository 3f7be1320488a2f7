"""Calls of remote agents: proxies, lazy results, errors."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import pickle
import urllib.error
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest

import paragent
from paragent import (
    AgentBase,
    AgentStopped,
    ConfigError,
    DistConf,
    Msg,
    RemoteError,
    RemoteStream,
    Result,
    RpcAgent,
    RpcAgentServerLauncher,
    ServerLost,
    Unserialisable,
)
from paragent.remote.pending_calls import Outbox, PendingCalls
from paragent.remote.protocol import CallMethod
from paragent.remote.result import RemoteCall
from paragent.remote.values import decode_error, encode_error
from tests.remote.agents import Failing, Holder, OwnError, Slow, Worker


def remote(cls: Any, *args: Any, **settings: Any) -> Any:
    return cls(*args, to_dist=settings or True)


@pytest.mark.slow
def test_constructors_run_concurrently_and_only_on_the_server(tmp_path: Path) -> None:
    agents = [remote(Slow, str(tmp_path), 6) for _ in range(6)]
    (tmp_path / "go").touch()  # creating a proxy does not wait for the constructor
    assert os.getpid() not in {agent.where().result(60) for agent in agents}


def test_to_dist_copies_the_state_without_running_the_constructor() -> None:
    agent = Worker("mover", start=5)
    agent.note("before")
    agent.extra = {"set": "later"}  # type: ignore[attr-defined]
    proxy = agent.to_dist()
    assert proxy.notes() == ["before"]
    assert proxy.note("after") == 7
    assert agent.log == ["before"]


def test_a_class_defined_in_a_function_is_sent_by_value() -> None:
    class Local(AgentBase):
        factor = 3

        def times(self, x: int) -> int:
            return x * self.factor

    assert remote(Local, "local").times(4) == 12
    assert Local("moved").to_dist().times(5) == 15


def test_the_error_names_the_part_that_cannot_be_pickled() -> None:
    with pytest.raises(Unserialisable, match=r"^the Holder .* because of `agent\.parts.*lock"):
        Holder().to_dist()
    with pytest.raises(Unserialisable, match=r"^argument 1 of Worker\.echo .* because of `argument\['generator'\]`"):
        remote(Worker).echo({"generator": (n for n in "ab")})
    with pytest.raises(Unserialisable, match=r"^the argument x of Worker\.reply .* because of `x\.content\[0\]`"):
        remote(Worker).reply(x=Msg("user", [(n for n in "ab")]))
    with pytest.raises(Unserialisable, match="lock"):
        remote(Worker).unserialisable().result(60)


def test_a_stream_may_be_finalized_while_its_thread_sends_a_call() -> None:
    """The garbage collector runs finalizers at any time, also while the lock of the pending calls is held."""
    outbox = Outbox(lambda: None)

    def may_wait() -> bool:
        pending.forget(1)
        return False

    pending = PendingCalls(outbox, may_wait, lambda _: None)
    pending.set_window(1)
    for number in (1, 2):
        call = RemoteCall(number=number)
        pending.send(call, CallMethod(number, 1, "reply", ()), 10)
    assert pending.numbers() == [2]


def test_a_lazy_result_stands_for_its_value(worker: Any) -> None:
    assert worker.reply(Msg("user", "hello")).content == "hello"
    assert worker.reply("x")["content"] == "x"
    assert worker.add(2, b=3) == 5
    assert worker.add(2) != 4
    assert worker.add(1) < worker.add(2)
    assert len(worker.echo([1, 2, 3])) == 3
    assert not worker.echo([])
    assert str(worker.echo(1.5)) == f"{worker.echo(1.5)}" == "1.5"
    assert list(worker.echo((1, 2))) == [1, 2]
    assert 2 in worker.echo({1, 2})
    assert float(worker.echo(2)) == 2.0
    result = worker.echo("x")
    assert result.result(timeout=10) == "x"
    assert result.done()
    assert repr(result) == "<Result of Worker.echo: done, 'x'>"
    assert pickle.loads(pickle.dumps(worker.echo([4]))) == [4]


def test_falsy_results_are_returned(worker: Any) -> None:
    values: list[Any] = [None, 0, "", False, [], {}, 0.0]
    for value in values:
        assert worker.echo(value).result(60) == value


def test_objects_of_many_types_can_be_sent(worker: Any) -> None:
    for value in ({"a": [1, (2, 3)]}, Msg("a", {"b": 1}, metadata={"c": 2}), {1, 2}, b"bytes", "x" * 300_000, ("m", 1)):
        assert worker.echo(value).result(60) == value
    array = np.arange(50_000.0)
    assert np.array_equal(worker.echo(array).result(60), array)


def test_arguments_are_copied_at_the_call(worker: Any) -> None:
    given = [1]
    result = worker.echo(given)
    given.append(2)
    assert result == [1]


@pytest.mark.slow
def test_wait_returns_done_and_pending_results(worker: Any) -> None:
    quick, slow = worker.echo(1), remote(Worker).sleep(5)
    assert paragent.wait([quick, slow], timeout=1.0) == ([quick], [slow])
    assert paragent.wait([quick]) == ([quick], [])
    with pytest.raises(TimeoutError):
        slow.result(timeout=0.01)
    assert slow.cancel()
    with pytest.raises(paragent.UsageError, match="remote agents"):
        paragent.wait([1])  # type: ignore[arg-type]


def test_results_can_be_awaited_and_gathered(worker: Any) -> None:
    async def program() -> None:
        assert await worker.add(1, 2) == 3
        assert await asyncio.gather(*(worker.echo(n) for n in range(200))) == list(range(200))
        with pytest.raises(ValueError, match="a value error"):
            await worker.fail("value")
        async with asyncio.timeout(5):
            assert (await worker.nap(0.01)) == "worker"

    asyncio.run(program())


def test_errors_keep_their_type_and_attributes(worker: Any) -> None:
    with pytest.raises(ValueError, match="a value error") as caught:
        worker.fail("value").result(60)
    assert "in fail" in str(caught.value.__cause__)
    assert "agents.py" in str(caught.value.__cause__)
    with pytest.raises(KeyError):
        _ = worker.fail("key").content
    with pytest.raises(OwnError, match=r"^7: because$") as odd:
        worker.fail("own").result(60)
    assert odd.value.code == 7
    with pytest.raises(SystemExit):
        worker.fail("exit").result(60)
    with pytest.raises(Exception, match="not importable"):
        worker.local_error().result(60)
    assert isinstance(worker.fail("value").exception(60), ValueError)
    assert worker.add(1).exception(60) is None


def check_errors(worker: Any) -> BaseException:
    """Check that every library error keeps its type and attributes; return one of them."""
    with pytest.raises(httpx.HTTPStatusError, match="429"):
        worker.refuse("httpx").result(60)
    with pytest.raises(urllib.error.HTTPError) as not_found:
        worker.refuse("urllib").result(60)
    assert (not_found.value.code, not_found.value.filename) == (404, "http://host")
    with pytest.raises(OwnError) as own:
        worker.refuse("own").result(60)
    assert own.value.code == 7
    with pytest.raises(openai.RateLimitError, match="slow down") as limited:
        worker.refuse("openai").result(60)
    assert (limited.value.status_code, limited.value.body) == (429, {"code": "limit"})
    traceback = limited.value.__cause__
    assert "in refuse" in str(traceback)
    assert traceback is not None
    assert repr(traceback.__cause__) == "LookupError('root')", "the error from which it was raised"
    return limited.value


def test_errors_of_libraries_keep_their_type_and_attributes(worker: Any) -> None:
    error: Any = check_errors(worker)
    assert error.response.json() == {"error": "slow"}


def test_a_server_that_accepts_no_code_sends_no_objects_with_its_errors() -> None:
    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
        agent = Worker("a", to_dist={"host": launcher.host, "port": launcher.port})
        error = check_errors(agent)
    assert not hasattr(error, "request"), "its headers contain the server's API key"
    assert "request (httpx.Request)" in error.__notes__[0]


def test_an_error_whose_class_cannot_be_imported_becomes_a_remote_error() -> None:
    value = encode_error(OwnError(7, why="because"))
    kind, message, text, body, code = pickle.loads(value[1])
    body = body.replace(b"tests.remote.agents", b"tests.remote.none")
    error = decode_error(("p", pickle.dumps((kind, message, text, body, code))))
    assert isinstance(error, RemoteError)
    assert (error.error_type, error.message) == ("tests.remote.agents.OwnError", "7: because")
    for broken in (b"", b"\x80", pickle.dumps(1), pickle.dumps((1, 2, 3, 4, 5))):
        assert isinstance(decode_error(("p", broken)), RemoteError)


def test_the_error_of_a_constructor_is_raised_on_first_use() -> None:
    agent = remote(Failing)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such model"):
            agent.reply(1).result(60)


def test_an_unknown_name_raises_attribute_error_at_once(worker: Any) -> None:
    for name in ("repyl", "coutn", "_log", "__len__"):
        with pytest.raises(AttributeError, match=name):
            getattr(worker, name)
    with pytest.raises(TypeError, match="unexpected"):
        worker.add(1, c=2).result(60)


def test_attributes_are_read_from_the_server(worker: Any) -> None:
    worker.note("x")
    assert (worker.name, worker.count, worker.double) == ("worker", 1, 2)
    with pytest.raises(AttributeError, match="cannot be set"):
        worker.count = 3


def test_the_proxy_has_the_interface_of_the_agent(worker: Any) -> None:
    assert isinstance(worker, RpcAgent)
    assert isinstance(worker, Worker)
    assert not isinstance(worker, Slow)
    assert str(inspect.signature(worker.add)) == "(a: 'int', b: 'int' = 1) -> 'int'"
    assert "ask" in dir(worker)
    assert {"add", "count", "stop"} <= set(dir(worker))
    assert isinstance(worker.add(1), Result)


def test_proxies_can_be_passed_and_pickled(worker: Any) -> None:
    other = remote(Worker, "other")
    assert other.ask(worker, "through") == "through"
    assert other.ask_sync(worker, "through") == "through"
    copy = pickle.loads(pickle.dumps(worker))
    copy.note("by the copy")
    assert worker.notes() == ["by the copy"]


def test_dropping_a_proxy_frees_its_agent_after_its_pending_calls(mark: Any, eventually: Any) -> None:
    owner = remote(Worker, own_process=True)
    agent = remote(Worker, own_process=False)
    result = agent.note(1)
    pickled = pickle.dumps(agent)
    del agent
    assert result == 1

    def is_freed() -> bool:
        try:
            getattr(pickle.loads(pickled), "count")  # noqa: B009 - reading it asks the server
        except AgentStopped:
            return True
        return False

    eventually(is_freed)
    del owner


def test_stop_frees_the_agent_at_once() -> None:
    agent, other = remote(Worker), remote(Worker)
    running, waiting = agent.nap(30), agent.note(1)
    assert agent.stop().result(5)
    for result in (running, waiting, agent.note(2)):
        with pytest.raises(AgentStopped):
            result.result(5)
    assert other.note(1) == 1


def test_own_process_runs_an_agent_in_its_own_process(eventually: Any) -> None:
    alone = remote(Worker, own_process=True)
    pid = alone.pid().result(60)
    assert pid not in {remote(Worker).pid().result(60) for _ in range(4)}
    last = alone.make(2 << 20)
    del alone
    assert len(last.result(60)) == 2 << 20, "pending calls end first, and a result is kept while its `Result` lives"
    del last
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_stop_of_a_proxy_with_options_ends_the_agent_and_its_process(eventually: Any) -> None:
    agent = remote(Worker, own_process=True)
    pid = agent.pid().result(60)
    assert agent.options(timeout=20).stop().result(60)
    with pytest.raises((AgentStopped, ServerLost)):
        agent.note(1).result(60)
    eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("stop", [True, False])
def test_agents_that_ended_with_their_own_process_leave_no_open_files(stop: bool, eventually: Any) -> None:
    def run() -> None:
        agent = remote(Worker, own_process=True)
        assert agent.note(1).result(60) == 1
        if stop:
            agent.stop().result(60)

    run()  # opens what all agents share
    process = psutil.Process()
    files = process.num_fds()
    for _ in range(3):
        run()
    eventually(lambda: process.num_fds() <= files)


def test_many_agents_share_a_few_processes() -> None:
    agents = [remote(Worker) for _ in range(20)]
    assert len({agent.pid().result(60) for agent in agents}) == len(os.sched_getaffinity(0))


def test_an_error_that_nothing_has_used_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("paragent.remote.unused_errors._EVERY", 0.0)
    agent, other = remote(Worker), remote(Worker)
    agent.fail("key").exception(60)
    with pytest.raises(KeyError):
        other.echo(agent.fail("key")).result(60)
    assert agent.add(1).result(60) == 2
    assert not caplog.records
    agent.fail("value")  # dropped before it has failed
    eventually(lambda: "ValueError: a value error" in caplog.text)
    failed = agent.fail("own")
    paragent.wait([failed])
    assert repr(failed) == "<Result of Worker.fail: failed>"
    del failed
    assert "OwnError: 7: because" in caplog.text
    assert len(caplog.records) == 2


def test_representations_do_not_wait(mark: Path) -> None:
    agent = Worker("w", to_dist=True)
    assert repr(agent).startswith("<RpcAgent Worker 'w' at ")
    assert repr(Worker(name="k").to_dist()).startswith("<RpcAgent Worker 'k' at ")
    blocked: Any = agent.block_until(str(mark))
    result = agent.echo([1])
    assert repr(result) == "<Result of Worker.echo: pending>"
    mark.touch()
    paragent.wait([blocked, result])
    assert repr(result) == "<Result of Worker.echo: done>"
    assert result == [1]
    assert repr(result) == "<Result of Worker.echo: done, [1]>"
    assert repr(blocked) == f"<Result of Worker.block_until: done, {str(mark)!r}>"  # a plain value needs no decoding
    failing: Result[None] = Result.of(agent.fail("value"))  # type: ignore[func-returns-value]
    failing.exception(60)
    assert repr(failing) == "<Result of Worker.fail: failed, ValueError('a value error')>"
    assert len(repr(Result.of(agent.echo("x" * 1000)))) < 300
    napping: Any = agent.nap(60)
    napping.cancel()
    assert repr(napping) == "<Result of Worker.nap: cancelled>"
    stream = RemoteStream.of(agent.numbers(1))
    assert repr(stream) == "<RemoteStream of Worker.numbers: open>"
    assert list(stream) == [0]
    assert repr(stream) == "<RemoteStream of Worker.numbers: ended>"


def test_invalid_to_dist_settings_are_rejected() -> None:
    for wrong in ({"host": "localhost"}, {"port": 1}, {"hots": "x"}, {"host": "h", "port": "x"}, 3, {"timeout": 0}):
        with pytest.raises(ConfigError):
            Worker(to_dist=wrong)
    with pytest.raises(ConfigError, match=r"write to_dist=\{'host': 'localhost', 'port': 123\}"):
        Worker(to_dist="localhost:123")
    for url in ("http://localhost", "http://localhost:123/"):
        with pytest.raises(ConfigError, match="write 'localhost' instead of 'http://"):
            Worker(to_dist={"host": url, "port": 123})
    misspelt: Any = Worker()
    with pytest.raises(TypeError, match="'prot', did you mean 'port'"):
        misspelt.to_dist(prot=12)
    with pytest.raises(TypeError, match="'timout', did you mean 'timeout'"):
        remote(Worker).options(timout=3)
    with pytest.raises(ConfigError, match="own_process"):
        DistConf(host="h", port=1, own_process=True)
    rejected: list[dict[str, Any]] = [{"tls": {"ca": "ca.pem"}}, {"reconnect_timeout": 0}, {"reconnect_timeout": "1"}]
    for settings in rejected:
        with pytest.raises(ConfigError, match=next(iter(settings))):
            DistConf(host="h", port=1, **settings)
    with pytest.raises(ConfigError, match="for agent servers"):
        DistConf(reconnect_timeout=60.0)
    with pytest.raises(ConfigError, match="already"):
        remote(Worker).to_dist()
    assert type(Worker(to_dist=False)) is Worker


def test_classes_without_a_constructor_accept_to_dist() -> None:
    class Plain(AgentBase):
        def reply(self, x: Any = None) -> str:
            return f"{self.name} {x}"

    assert Plain("here", to_dist=False).reply(1) == "here 1"
    assert Plain("there", to_dist=True).reply(2) == "there 2"
    assert Plain("there", to_dist={"timeout": 60}).reply(3) == "there 3"


def test_init_may_be_called_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAGENT_NAME", "")
    monkeypatch.setattr(logging.getLogger("paragent"), "level", logging.NOTSET)  # undoes what `init` sets
    paragent.init()
    paragent.init(name="monday", logging="WARNING")
    assert os.environ["PARAGENT_NAME"] == "monday"
    with pytest.raises(ConfigError, match="16"):
        paragent.init(token="short")
