"""Faulty code of agents: it must not affect other agents of the server, and no caller may wait forever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paragent import LimitExceeded, ParagentError, RpcAgentServerLauncher
from paragent._internal.threads import fatal
from paragent.agents.proxy import link_of
from paragent.errors import InfrastructureError, ProtocolError
from paragent.remote.link import link_to
from paragent.remote.protocol import (
    CallMethod,
    CallResult,
    CancelCall,
    CreateAgent,
    DefineClass,
    ResultHeld,
    StopAgent,
    encode,
)
from paragent.remote.server.actors import CallInterrupted
from paragent.remote.server.dispatcher import MessageDispatcher
from paragent.remote.server.executor import ThreadPool
from paragent.remote.server.policy import Policy
from paragent.remote.server.service import AgentService
from paragent.remote.server.session import ClientSession
from paragent.remote.values import decode_error, encode_argument
from paragent.transport import Address, Limits
from tests.remote.agents import Worker
from tests.remote.faulty_agents import FaultyAgent, Nameless
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def place(server: RpcAgentServerLauncher) -> dict[str, Any]:
    return {"host": server.host, "port": server.port}


@pytest.fixture
def faulty(place: dict[str, Any]) -> Iterator[Any]:
    """A faulty agent; afterwards the fixture checks that the server still serves another agent."""
    other: Any = Worker("other", to_dist=place)
    waiting = other.nap(0.3)
    yield FaultyAgent(to_dist=place)  # type: ignore[call-arg]
    assert waiting.result(20) == "other", "a running call continues"
    assert other.nap(0).result(20) == "other", "async calls start"
    assert other.add(1).result(20) == 2, "sync calls start"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "error"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt)])
def test_system_exit_in_a_task_ends_only_its_call(faulty: Any, kind: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        faulty.gather(kind).result(20)
    assert faulty.leave_task(kind).result(20) == "True"
    assert faulty.callback(kind).result(20) == "called"
    assert faulty.nap(0.01).result(20) == "slept"


def test_an_agent_cannot_stop_the_event_loop(faulty: Any) -> None:
    assert faulty.stop_loop().result(20) == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("raises", [KeyError, SystemExit, KeyboardInterrupt, RecursionError])
def test_a_result_that_raises_at_every_access_becomes_an_error(faulty: Any, raises: type[BaseException]) -> None:
    for result in (faulty.answer(raises), faulty.answer_async(raises)):
        with pytest.raises((TypeError, raises)):
            result.result(20)


def test_an_error_that_raises_at_every_access_is_still_reported(faulty: Any) -> None:
    for result in (faulty.fail(), faulty.fail_async()):
        error = result.exception(20)
        assert "UnreadableError" in f"{type(error).__name__} {error.__dict__}"


def test_system_exit_in_a_property_is_raised_by_the_proxy(faulty: Any) -> None:
    for _ in range(3):
        with pytest.raises(SystemExit, match="trap"):
            _ = faulty.trap


def test_listing_agents_does_not_run_their_code(place: dict[str, Any]) -> None:
    nameless: Any = Nameless(to_dist=place)  # type: ignore[call-arg]
    assert nameless.add(1).result(20) == 2
    link = link_to(Address.of(place["host"], place["port"]), None)
    assert "Nameless" in [agent["class"] for agent in link.control("list").result(20)["list"]]
    assert nameless.add(1).result(20) == 2


def test_calls_wait_until_the_server_can_start_threads_again(
    own_server: RpcAgentServerLauncher, tmp_path: Path
) -> None:
    place = {"host": own_server.host, "port": own_server.port}
    agents: list[Any] = [FaultyAgent(to_dist=place) for _ in range(3)]  # type: ignore[call-arg]
    assert [agent.add(1).result(20) for agent in agents] == [2, 2, 2]
    assert agents[0].no_more_threads(str(tmp_path / "room")).result(20) == "none"
    refused = agents[1].nap(0)  # needs the thread of the event loop, which has not started yet
    with pytest.raises(LimitExceeded, match="thread"):
        refused.result(20)
    blocked = [agents[0].wait_for(str(tmp_path / "go")) for _ in range(50)]  # more than there are threads
    waiting = agents[2].add(1)
    with pytest.raises(TimeoutError):
        waiting.result(0.3)
    (tmp_path / "room").touch()
    assert waiting.result(20) == 2, "more threads have started although all were blocked"
    (tmp_path / "go").touch()
    assert [result.result(20) for result in blocked] == [str(tmp_path / "go")] * 50
    assert agents[1].nap(0).result(20) == "slept"


def test_threads_that_cannot_start_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        executed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def execute(_: Any) -> None:
            loop.call_soon_threadsafe(executed.set)

        pool = ThreadPool(execute, 4, loop, fatal)
        with monkeypatch.context() as patch:
            patch.setattr("threading.Thread.start", no_room)
            pool.submit(["work"])
            await asyncio.sleep(0.05)
            assert pool.threads == 0
        async with asyncio.timeout(20):
            await executed.wait()
        assert pool.threads == 1
        pool.close()

    def no_room(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    asyncio.run(program())


def test_a_broken_event_loop_ends_its_server_with_a_traceback() -> None:
    program = """
        from paragent import ServerLost
        from tests.remote.faulty_agents import FaultyAgent
        broken, other = (FaultyAgent(to_dist={"own_process": True}) for _ in range(2))
        waiting = broken.long_nap()
        broken.break_loop()
        assert isinstance(waiting.exception(30), ServerLost)
        assert other.nap(0).result(20) == "slept"
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "'paragent-agents' ended unexpectedly" in ended.stderr
    assert "Traceback" in ended.stderr


@pytest.mark.slow
def test_a_broken_server_inside_the_program_ends_without_the_program() -> None:
    program = """
        from paragent import RpcAgentServerLauncher, ServerLost
        from tests.remote.faulty_agents import FaultyAgent
        with RpcAgentServerLauncher(port=0) as launcher:
            agent = FaultyAgent(to_dist={"host": launcher.host, "port": launcher.port})
            waiting = agent.long_nap()
            agent.break_loop()
            assert isinstance(waiting.exception(30), ServerLost)
            try:
                launcher.wait_until_terminate()
            except ServerLost as error:
                print(error)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "paragent-agents" in ended.stdout
    assert "Traceback" in ended.stderr


class _Broken:
    """Cannot be encoded."""

    def __reduce__(self) -> Any:
        raise KeyError("broken")


def test_a_client_that_cannot_encode_a_frame_fails_pending_calls(own_server: RpcAgentServerLauncher) -> None:
    agent: Any = Worker("a", to_dist={"host": own_server.host, "port": own_server.port})
    assert agent.add(1).result(20) == 2
    waiting = agent.nap(60)
    link_of(agent).post(CancelCall(_Broken()))  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError):
        waiting.result(20)


def test_a_server_that_cannot_encode_a_frame_ends_only_that_session() -> None:
    program = """
        from paragent import InfrastructureError
        from paragent.remote.protocol import CallResult
        from paragent.remote.server.policy import Policy
        from paragent.remote.server.service import open_server
        from paragent.transport import Address, Limits, load_token
        from paragent.transport.loop import run
        from tests.remote.agents import Worker

        opening = open_server(
            Address.of("127.0.0.1", 0), Policy((), accept_code=True, nesting=100), load_token(),
            tls=None, limits=Limits(), lease=10.0, stop=lambda: None,
        )
        dispatcher, listener, port = run(opening, 20)
        place = {"host": "127.0.0.1", "port": port}
        agent = Worker("a", to_dist=place)
        assert agent.add(1).result(20) == 2
        waiting = agent.nap(60)
        quick = Worker("c", to_dist=place)
        (session,) = dispatcher.sessions.values()
        session.send_outcome(1000, CallResult, {lambda: 1})  # one outcome that cannot be encoded becomes an error
        assert quick.add(1).result(20) == 2
        session.frames.next_frame = lambda *_: 1 / 0
        quick.add(1)
        assert isinstance(waiting.exception(20), InfrastructureError)
        second = Worker("b", to_dist=place)
        assert second.add(1).result(20) == 2
        run(listener.stop(0), 20)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "so its session ends" in ended.stderr


def test_a_frame_that_cannot_be_handled_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        dispatcher = _dispatcher()
        service = AgentService(dispatcher, 10.0, 1 << 20)
        hello = {"session": "a" * 32, "received": 0, "reconnect": False}
        stream = _Stream()

        def fail(*_: Any) -> None:
            raise RuntimeError("unexpected")

        monkeypatch.setattr(dispatcher, "handle", fail)
        stream.incoming.put_nowait(encode(1, 0, [_class_definition()], [])[0])
        with pytest.raises(ProtocolError, match="RuntimeError"):
            await service.serve(stream, service.welcome(hello)[1])  # type: ignore[arg-type]
        assert not dispatcher.sessions

    asyncio.run(program())


class _Name(StrEnum):
    B = "b"


def test_subclasses_of_builtin_types_are_sent_as_builtin_values(place: dict[str, Any]) -> None:
    agent: Any = Worker("a", to_dist=place)
    assert agent.options(timeout=np.float64(20)).add(1, **{_Name.B: 2}).result(20) == 3
    assert list(agent.options(timeout=np.float64(20)).numbers(3)) == [0, 1, 2]


def test_a_broken_io_loop_fails_pending_calls_and_the_program_continues() -> None:
    program = """
        import asyncio, selectors
        from paragent import ServerLost
        selector = selectors.DefaultSelector()
        loops = [asyncio.SelectorEventLoop(selector), asyncio.new_event_loop()]
        asyncio.new_event_loop = lambda: loops.pop(0)
        from paragent.transport.loop import io_loop
        from tests.remote.faulty_agents import FaultyAgent
        shared, own = FaultyAgent(to_dist=True), FaultyAgent(to_dist={"own_process": True})
        assert shared.add(1).result(20) == 2 and own.add(1).result(20) == 2
        waiting = shared.nap(60), own.nap(60)
        io_loop().call_soon_threadsafe(selector.close)
        for result in waiting:
            assert isinstance(result.exception(20), ServerLost)
        assert isinstance(own.nap(0).exception(20), ServerLost)
        assert FaultyAgent(to_dist=True).add(1).result(20) == 2
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "'paragent-io' ended unexpectedly" in ended.stderr


# --- without a network ----------------------------------------------------------------------------------------------------


class _Stream:
    """A connection in memory."""

    peer = "test"

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.outgoing: list[bytes] = []

    async def read(self) -> bytes:
        return await self.incoming.get()

    async def write(self, message: bytes) -> None:
        self.outgoing.append(message)


def _dispatcher(accept_code: bool = True) -> MessageDispatcher:
    limits = Limits()
    policy = Policy((), accept_code=accept_code, nesting=limits.nesting)
    return MessageDispatcher(policy, limits, asyncio.get_running_loop(), lambda: None)


def _class_definition() -> DefineClass:
    return DefineClass(1, Worker.__module__, Worker.__qualname__, encode_argument(Worker, "the class")[0])


def test_late_bytes_of_an_old_connection_are_ignored_after_a_reconnect() -> None:
    """A connection stalls inside an attachment; the rest arrives after the client has reconnected."""

    async def program() -> None:
        service = AgentService(_dispatcher(), 10.0, 1 << 20)
        new = CreateAgent(1, 1, "init", ("agent",), None)
        large = ("b", 0)
        call = CallMethod(1, 1, "size", (large,))
        payload = encode_argument(bytes(range(256)) * 2048, "it")[0][1]
        messages = encode(1, 0, [_class_definition(), new, call], [payload])
        assert len(messages) == 2
        half = len(messages[1]) // 2
        hello = {"session": "a" * 32, "received": 0, "reconnect": False}
        first, second = _Stream(), _Stream()
        serving = [asyncio.create_task(service.serve(first, service.welcome(hello)[1]))]  # type: ignore[arg-type]
        for message in (messages[0], messages[1][:half]):
            first.incoming.put_nowait(message)
        while not first.incoming.empty():
            await asyncio.sleep(0)
        welcome, admitted = service.welcome({**hello, "reconnect": True})
        assert welcome["resumed"]
        serving.append(asyncio.create_task(service.serve(second, admitted)))  # type: ignore[arg-type]
        second.incoming.put_nowait(messages[0])
        while not second.incoming.empty():
            await asyncio.sleep(0)
        first.incoming.put_nowait(messages[1][half:])
        await asyncio.wait([serving[0]], timeout=20)
        assert serving[0].exception() is None
        second.incoming.put_nowait(messages[1])
        async with asyncio.timeout(20):
            await wait_until_async(lambda: second.outgoing, interval=0.001)
        assert first.outgoing == []
        assert serving[1].cancel()

    asyncio.run(program())


def test_stopping_an_agent_does_not_scan_the_calls_of_other_agents() -> None:
    class Unscanned(dict[int, Any]):
        def values(self) -> Any:
            raise AssertionError("all calls were scanned")

    async def program() -> None:
        dispatcher = _dispatcher()
        session, _ = dispatcher.open_session("a" * 32)
        agents = range(1, 51)
        dispatcher.handle(session, [_class_definition(), *[CreateAgent(n, 1, "init", (), None) for n in agents]], [])
        dispatcher.handle(session, [CallMethod(n, n, "nap", (60,)) for n in agents], [])
        dispatcher.handle(session, [CallMethod(100, 7, "together", (60,))], [])
        await wait_until_async(lambda: all(agent.methods is not None for agent in session.agents.values()))
        session.active = Unscanned(session.active)
        dispatcher.handle(session, [StopAgent(101, 7)], [])
        outcomes: list[Any] = []
        async with asyncio.timeout(20):
            while {message.number for message in outcomes} != {7, 100, 101}:
                await asyncio.sleep(0.01)
                outcomes += session.take_frame()[0]
        assert len(session.active) == len(agents) - 1
        dispatcher.close()

    asyncio.run(program())


def test_calls_whose_tasks_are_cancelled_by_user_code_are_answered() -> None:
    async def program() -> None:
        dispatcher = _dispatcher()
        session, _ = dispatcher.open_session("a" * 32)
        definition = DefineClass(
            1, FaultyAgent.__module__, FaultyAgent.__qualname__, encode_argument(FaultyAgent, "the class")[0]
        )
        agents = range(1, 21)
        dispatcher.handle(session, [definition, *[CreateAgent(n, 1, "init", (), None) for n in agents]], [])
        await wait_until_async(lambda: all(agent.methods is not None for agent in session.agents.values()))
        dispatcher.handle(
            session, [CallMethod(n, n, "cancel_everything" if n < 3 else "nap", (60,)[: n > 2]) for n in agents], []
        )
        outcomes: list[Any] = []
        async with asyncio.timeout(20):
            while len(outcomes) < len(agents):
                await asyncio.sleep(0.01)
                outcomes += session.take_frame()[0]
        dispatcher.close()

    asyncio.run(program())


def test_a_time_limit_that_is_not_a_positive_number_is_rejected(place: dict[str, Any]) -> None:
    agent: Any = Worker("a", to_dist=place)
    for timeout in (float("nan"), float("inf"), -1.0, 0):
        with pytest.raises(ParagentError, match="timeout"):
            agent.options(timeout=timeout)
    assert agent.add(1).result(float("inf")) == 2
    with pytest.raises(ValueError, match="NaN"):
        agent.nap(0.2).result(float("nan"))


@pytest.mark.parametrize(("method", "argument"), [("make", 2 << 20), ("add", 1)], ids=["held", "small"])
def test_a_call_that_is_interrupted_after_its_result_has_one_outcome(
    method: str, argument: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_outcome = ClientSession.send_outcome

    def interrupted(self: ClientSession, call: Any, kind: Any, value: Any) -> None:
        send_outcome(self, call, kind, value)
        if kind is CallResult and call.name == method:
            raise CallInterrupted

    monkeypatch.setattr(ClientSession, "send_outcome", interrupted)

    async def program() -> None:
        dispatcher = _dispatcher()
        session, _ = dispatcher.open_session("a" * 32)
        dispatcher.handle(session, [_class_definition(), CreateAgent(1, 1, "init", (), None)], [])
        dispatcher.handle(session, [CallMethod(2, 1, method, (argument,)), CallMethod(3, 1, "size", ("x",))], [])
        outcomes: list[Any] = []
        async with asyncio.timeout(20):
            while not any(message.number == 3 for message in outcomes):
                await asyncio.sleep(0.01)
                outcomes += session.take_frame()[0]
        [outcome] = [message for message in outcomes if message.number == 2]
        assert type(outcome) is (ResultHeld if method == "make" else CallResult)
        session.release(2)
        assert session.results.total_bytes == 0
        assert session.load == 0
        dispatcher.close()

    asyncio.run(program())


def test_async_calls_fail_while_there_is_no_file_descriptor_for_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that is queued behind a sync call is passed to the event loop by the thread of the sync call."""

    def no_descriptors() -> None:
        raise OSError(24, "Too many open files")

    async def program() -> None:
        dispatcher = _dispatcher()
        session, _ = dispatcher.open_session("a" * 32)
        dispatcher.handle(session, [_class_definition(), CreateAgent(1, 1, "init", (), None)], [])
        outcomes: list[Any] = []
        async with asyncio.timeout(20):
            with monkeypatch.context() as patch:
                patch.setattr("paragent.remote.server.executor.new_event_loop", no_descriptors)
                dispatcher.handle(session, [CallMethod(2, 1, "sleep", (0.05,)), CallMethod(3, 1, "nap", (0,))], [])
                while not any(message.number == 3 for message in outcomes):
                    await asyncio.sleep(0.01)
                    outcomes += session.take_frame()[0]
            [refused] = [message for message in outcomes if message.number == 3]
            assert isinstance(decode_error(refused.value), LimitExceeded)
            dispatcher.handle(session, [CallMethod(4, 1, "nap", (0,))], [])
            while not any(type(message) is CallResult and message.number == 4 for message in outcomes):
                await asyncio.sleep(0.01)
                outcomes += session.take_frame()[0]
        dispatcher.close()

    asyncio.run(program())
