"""Code of agents that would end the threads of its server: others must not notice, and nobody may wait for ever."""

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
from paragent.remote.client.link import link_to
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
from paragent.remote.server.actors import Interruption
from paragent.remote.server.dispatcher import Host
from paragent.remote.server.policy import Policy
from paragent.remote.server.scheduler import Lanes
from paragent.remote.server.service import AgentService
from paragent.remote.server.session import Session
from paragent.remote.values import decode_error, encode_argument
from paragent.transport import Address, Limits
from tests.remote.agents import Worker
from tests.remote.faulty_agents import FaultyAgent, Nameless

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def place(server: RpcAgentServerLauncher) -> dict[str, Any]:
    return {"host": server.host, "port": server.port}


@pytest.fixture
def faulty(place: dict[str, Any]) -> Iterator[Any]:
    """A harmful agent, between two looks at whether the server still serves others."""
    other: Any = Worker("other", to_dist=place)
    waiting = other.nap(0.3)
    yield FaultyAgent(to_dist=place)  # type: ignore[call-arg]
    assert waiting.result(20) == "other", "what was under way goes on"
    assert other.nap(0).result(20) == "other", "async calls begin"
    assert other.add(1).result(20) == 2, "sync calls too"


@pytest.mark.parametrize(("kind", "error"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt)])
def test_a_task_that_ends_the_program_ends_its_own_call_only(
    faulty: Any, kind: str, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        faulty.gather(kind).result(20)
    assert faulty.leave_task(kind).result(20) == "True"
    assert faulty.callback(kind).result(20) == "called"
    assert faulty.nap(0.01).result(20) == "slept"


def test_an_agent_that_stops_the_event_loop(faulty: Any) -> None:
    assert faulty.stop_loop().result(20) == "stopped"


@pytest.mark.parametrize("raises", [KeyError, SystemExit, KeyboardInterrupt, RecursionError])
def test_an_answer_that_fails_at_every_look_is_an_error(faulty: Any, raises: type[BaseException]) -> None:
    for result in (faulty.answer(raises), faulty.answer_async(raises)):
        with pytest.raises((TypeError, raises)):
            result.result(20)


def test_an_error_that_fails_at_every_look_is_still_told(faulty: Any) -> None:
    for result in (faulty.fail(), faulty.fail_async()):
        error = result.exception(20)
        assert "UnreadableError" in f"{type(error).__name__} {error.__dict__}"


def test_a_property_that_ends_the_program(faulty: Any) -> None:
    for _ in range(3):
        with pytest.raises(SystemExit, match="trap"):
            _ = faulty.trap


def test_a_list_of_agents_runs_no_code_of_theirs(place: dict[str, Any]) -> None:
    nameless: Any = Nameless(to_dist=place)  # type: ignore[call-arg]
    assert nameless.add(1).result(20) == 2
    link = link_to(Address.of(place["host"], place["port"]), None)
    assert "Nameless" in [agent["class"] for agent in link.control("list").result(20)["list"]]
    assert nameless.add(1).result(20) == 2


def test_a_server_that_cannot_start_threads_goes_on_when_it_can(
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
        performed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def perform(_: Any) -> None:
            loop.call_soon_threadsafe(performed.set)

        lanes = Lanes(perform, 4, loop, fatal)
        with monkeypatch.context() as patch:
            patch.setattr("threading.Thread.start", no_room)
            lanes.submit(["work"])
            await asyncio.sleep(0.05)
            assert lanes.threads == 0
        async with asyncio.timeout(20):
            await performed.wait()
        assert lanes.threads == 1
        lanes.close()

    def no_room(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    asyncio.run(program())


def test_an_event_loop_that_breaks_ends_its_server_visibly() -> None:
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


def test_a_server_inside_the_program_that_breaks_is_ended_alone() -> None:
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
    """Cannot be put into a frame, where only builtin values should ever be."""

    def __reduce__(self) -> Any:
        raise KeyError("broken")


def test_a_client_that_cannot_write_fails_what_waits(own_server: RpcAgentServerLauncher) -> None:
    agent: Any = Worker("a", to_dist={"host": own_server.host, "port": own_server.port})
    assert agent.add(1).result(20) == 2
    waiting = agent.nap(60)
    link_of(agent).post(CancelCall(_Broken()))  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError):
        waiting.result(20)


def test_a_server_that_cannot_write_to_a_client_ends_its_session_alone() -> None:
    program = """
        from paragent import InfrastructureError, RpcAgentServerLauncher
        from paragent.remote.protocol import CallResult
        from tests.remote.agents import Worker
        with RpcAgentServerLauncher(port=0) as launcher:
            agent = Worker("a", to_dist={"host": launcher.host, "port": launcher.port})
            assert agent.add(1).result(20) == 2
            waiting = agent.nap(60)
            quick = Worker("c", to_dist={"host": launcher.host, "port": launcher.port})
            session = next(iter(launcher._server[0].sessions.values()))
            session.tell(1000, CallResult, {lambda: 1})  # one outcome that cannot be encoded becomes an error
            assert quick.add(1).result(20) == 2
            session._frames.next_frame = lambda *_: 1 / 0
            quick.add(1)
            assert isinstance(waiting.exception(20), InfrastructureError)
            second = Worker("b", to_dist={"host": launcher.host, "port": launcher.port})
            assert second.add(1).result(20) == 2
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "so its session ends" in ended.stderr


def test_a_frame_that_cannot_be_handled_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        host = _host()
        service = AgentService(host, 10.0, 1 << 20)
        hello = {"session": "a" * 32, "received": 0, "reconnect": False}
        stream = _Stream()

        def fail(*_: Any) -> None:
            raise RuntimeError("unexpected")

        monkeypatch.setattr(host, "handle", fail)
        stream.incoming.put_nowait(encode(1, 0, [_introduction()], [])[0])
        with pytest.raises(ProtocolError, match="RuntimeError"):
            await service.serve(stream, service.welcome(hello)[1])  # type: ignore[arg-type]
        assert not host.sessions

    asyncio.run(program())


class _Name(StrEnum):
    B = "b"


def test_a_frame_holds_builtin_values_alone(place: dict[str, Any]) -> None:
    """Whatever subclass of them a caller uses."""
    agent: Any = Worker("a", to_dist=place)
    assert agent.options(timeout=np.float64(20)).add(1, **{_Name.B: 2}).result(20) == 3
    assert list(agent.options(timeout=np.float64(20)).numbers(3)) == [0, 1, 2]


def test_a_program_whose_connections_break_for_good_fails_what_waits_and_goes_on() -> None:
    program = """
        from paragent import ServerLost
        from paragent.transport.loop import io_loop
        from tests.remote.faulty_agents import FaultyAgent
        shared, own = FaultyAgent(to_dist=True), FaultyAgent(to_dist={"own_process": True})
        assert shared.add(1).result(20) == 2 and own.add(1).result(20) == 2
        waiting = shared.nap(60), own.nap(60)
        io_loop().call_soon_threadsafe(io_loop()._selector.close)
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
    """A connection that delivers what it is given, when it is given it."""

    peer = "test"

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.outgoing: list[bytes] = []

    async def read(self) -> bytes:
        return await self.incoming.get()

    async def write(self, message: bytes) -> None:
        self.outgoing.append(message)


def _host(accept_code: bool = True) -> Host:
    limits = Limits()
    policy = Policy((), accept_code=accept_code, nesting=limits.nesting)
    return Host(policy, limits, asyncio.get_running_loop(), lambda: None)


def _introduction() -> DefineClass:
    return DefineClass(1, Worker.__module__, Worker.__qualname__, encode_argument(Worker, "the class")[0])


def test_late_bytes_of_a_stale_connection_do_not_feed_the_new_one() -> None:
    """A connection stalls inside an attachment; its rest comes after the client has connected again."""

    async def program() -> None:
        service = AgentService(_host(), 10.0, 1 << 20)
        new = CreateAgent(1, 1, "init", ("agent",), None)
        large = ("b", 0)
        call = CallMethod(1, 1, "size", (large,))
        payload = encode_argument(bytes(range(256)) * 2048, "it")[0][1]
        messages = encode(1, 0, [_introduction(), new, call], [payload])
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
            while not second.outgoing:
                await asyncio.sleep(0.001)
        assert first.outgoing == []
        assert serving[1].cancel()

    asyncio.run(program())


def test_stopping_an_agent_does_not_look_at_the_calls_of_others() -> None:
    class Unscanned(dict[int, Any]):
        def values(self) -> Any:
            raise AssertionError("all calls were looked at")

    async def program() -> None:
        host = _host()
        session, _ = host.open_session("a" * 32)
        agents = range(1, 51)
        host.handle(session, [_introduction(), *[CreateAgent(n, 1, "init", (), None) for n in agents]], [])
        host.handle(session, [CallMethod(n, n, "nap", (60,)) for n in agents], [])
        host.handle(session, [CallMethod(100, 7, "together", (60,))], [])
        while any(agent.methods is None for agent in session.agents.values()):
            await asyncio.sleep(0.01)
        session.active = Unscanned(session.active)
        host.handle(session, [StopAgent(101, 7)], [])
        told: list[Any] = []
        async with asyncio.timeout(20):
            while {message.number for message in told} != {7, 100, 101}:
                await asyncio.sleep(0.01)
                told += session._take()[0]
        assert len(session.active) == len(agents) - 1
        host.close()

    asyncio.run(program())


def test_calls_whose_tasks_are_cancelled_by_somebody_else_are_answered() -> None:
    async def program() -> None:
        host = _host()
        session, _ = host.open_session("a" * 32)
        introduction = DefineClass(
            1, FaultyAgent.__module__, FaultyAgent.__qualname__, encode_argument(FaultyAgent, "the class")[0]
        )
        agents = range(1, 21)
        host.handle(session, [introduction, *[CreateAgent(n, 1, "init", (), None) for n in agents]], [])
        while any(agent.methods is None for agent in session.agents.values()):
            await asyncio.sleep(0.01)
        host.handle(
            session, [CallMethod(n, n, "cancel_everything" if n < 3 else "nap", (60,)[: n > 2]) for n in agents], []
        )
        told: list[Any] = []
        async with asyncio.timeout(20):
            while len(told) < len(agents):
                await asyncio.sleep(0.01)
                told += session._take()[0]
        host.close()

    asyncio.run(program())


def test_a_time_limit_that_is_no_number_is_refused(place: dict[str, Any]) -> None:
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
    tell = Session.tell

    def interrupted(self: Session, call: Any, kind: Any, value: Any) -> None:
        tell(self, call, kind, value)
        if kind is CallResult and call.name == method:
            raise Interruption

    monkeypatch.setattr(Session, "tell", interrupted)

    async def program() -> None:
        host = _host()
        session, _ = host.open_session("a" * 32)
        host.handle(session, [_introduction(), CreateAgent(1, 1, "init", (), None)], [])
        host.handle(session, [CallMethod(2, 1, method, (argument,)), CallMethod(3, 1, "size", ("x",))], [])
        told: list[Any] = []
        async with asyncio.timeout(20):
            while not any(message.number == 3 for message in told):
                await asyncio.sleep(0.01)
                told += session._take()[0]
        [outcome] = [message for message in told if message.number == 2]
        assert type(outcome) is (ResultHeld if method == "make" else CallResult)
        session.release(2)
        assert session.kept._bytes == 0
        assert session.load == 0
        host.close()

    asyncio.run(program())


def test_async_calls_are_refused_while_there_are_no_file_descriptors_for_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that waits behind a sync one is given to the event loop by the thread that carried out the sync one."""

    def no_descriptors() -> None:
        raise OSError(24, "Too many open files")

    async def program() -> None:
        host = _host()
        session, _ = host.open_session("a" * 32)
        host.handle(session, [_introduction(), CreateAgent(1, 1, "init", (), None)], [])
        told: list[Any] = []
        async with asyncio.timeout(20):
            with monkeypatch.context() as patch:
                patch.setattr("paragent.remote.server.executor.new_event_loop", no_descriptors)
                host.handle(session, [CallMethod(2, 1, "sleep", (0.05,)), CallMethod(3, 1, "nap", (0,))], [])
                while not any(message.number == 3 for message in told):
                    await asyncio.sleep(0.01)
                    told += session._take()[0]
            [refused] = [message for message in told if message.number == 3]
            assert isinstance(decode_error(refused.value), LimitExceeded)
            host.handle(session, [CallMethod(4, 1, "nap", (0,))], [])
            while not any(type(message) is CallResult and message.number == 4 for message in told):
                await asyncio.sleep(0.01)
                told += session._take()[0]
        host.close()

    asyncio.run(program())
