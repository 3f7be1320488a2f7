"""Attacks on restricted servers and on the code of their agents, by clients that know the token."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paragent import (
    AccessDenied,
    AgentStopped,
    ConfigError,
    LimitExceeded,
    ProtocolError,
    Result,
    RpcAgentServerLauncher,
)
from paragent._internal.threads import write_traceback
from paragent.errors import ParagentError, RemoteError
from paragent.remote.data import dump, load
from paragent.remote.placement import parse_trusted, trusted_here
from paragent.remote.protocol import (
    CallError,
    CallMethod,
    CallResult,
    CreateAgent,
    DefineClass,
    GrantCredit,
    PinResult,
    PushValue,
    QueryServer,
    ReadAttribute,
    RequestValue,
)
from paragent.remote.reliable_stream import ReliableStream
from paragent.remote.restricted import error_from
from paragent.remote.values import decode_error
from paragent.transport import Address, load_token
from paragent.transport.limits import Limits
from paragent.transport.loop import run
from paragent.transport.server import RpcServer
from tests.remote.agents import Spawner, Worker
from tests.remote.raw_client import Bomb, RawClient
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.transport.server import ServerStream


class EvilService:
    """An agent server that answers every call with a pickle."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.visits = 0

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        self.visits += 1
        welcome = {"instance": "evil", "resumed": False, "received": 0, "window": 1 << 20}
        return welcome | {"accepts_code": True, "peer_tls": False}, None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        frames = ReliableStream(1 << 30)
        while True:
            received = frames.receive(await stream.read())
            for item in received[1] if received is not None else ():
                if type(item) is CallMethod:
                    answer = CallResult(item.number, ("p", pickle.dumps(self._answer)))
                    for message in frames.next_frame([answer]):
                        await stream.write(message)


@pytest.fixture
def evil(mark: Path) -> Iterator[tuple[Address, EvilService]]:
    """A hostile agent server; any program with the token can start one."""
    service = EvilService(Bomb(mark))
    server = RpcServer(Address("localhost", 0), {"agents": service}, load_token())
    yield Address("localhost", run(server.start(), 10.0)), service
    run(server.stop(0), 10.0)


@pytest.fixture(scope="module")
def restricted() -> Iterator[RpcAgentServerLauncher]:
    """A restricted server in a new process."""
    launcher = RpcAgentServerLauncher(custom_agent_classes=[Spawner, Worker])
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


@pytest.fixture
def attacker(restricted: RpcAgentServerLauncher) -> Iterator[RawClient]:
    """A client with the token and a `Spawner`; afterwards the fixture checks that the server still works."""
    before = at(restricted).pid().result(60)
    client = RawClient(restricted.address, writes_data=True, agent=Spawner)
    yield client
    client.close()
    assert at(restricted).pid().result(60) == before, "the server still runs"


def at(server: RpcAgentServerLauncher, cls: Any = Worker, *args: Any, **kwargs: Any) -> Any:
    return cls(*args, **kwargs, to_dist={"host": server.host, "port": server.port})


def error_in(answer: Any) -> BaseException:
    assert type(answer) is CallError, answer
    return decode_error(answer.value)


def data(thing: Any) -> tuple[str, bytes]:
    return ("d", dump(thing))


# --- agents on other servers ---------------------------------------------------------------------------------------------

_WAYS = [
    "spawn_pairs",
    "spawn_async",
    "spawn_to_thread",
    "spawn_in_thread",
    "spawn_in_child",
    "spawn_in_own_child",
]


@pytest.mark.parametrize("way", _WAYS)
def test_agents_cannot_be_made_to_connect_to_an_address_of_a_client(
    attacker: RawClient, evil: tuple[Address, EvilService], mark: Path, way: str
) -> None:
    address, service = evil
    pairs = [("to_dist", [("host", address.host), ("port", address.port)])]
    elsewhere = data([(pairs[0][0], dict(pairs[0][1]))])
    refusal = error_in(attacker.ask(CallMethod, 1, 1, way, (elsewhere,)))
    assert isinstance(refusal, AccessDenied), refusal
    assert "trusted_servers" in str(refusal)
    assert service.visits == 0
    assert not mark.exists()


def test_agents_cannot_connect_to_an_address_in_keywords_state_or_results(
    attacker: RawClient, evil: tuple[Address, EvilService], mark: Path
) -> None:
    address, service = evil
    where = {"host": address.host, "port": address.port}
    refusal = error_in(attacker.ask(CallMethod, 1, 1, "spawn", (), {"to_dist": data(where)}, 0, None))
    assert isinstance(refusal, AccessDenied), refusal
    refusal = error_in(attacker.ask(CallMethod, 2, 1, "move", (address.host, address.port)))
    assert isinstance(refusal, AccessDenied), refusal
    attacker.say([PinResult(3), CallMethod(3, 1, "as_dict", (data([("to_dist", where)]),))])
    assert type(attacker.read(1)[0]) is CallResult
    own = ("r", None, None, 3, None, None)
    refusal = error_in(attacker.ask(CallMethod, 4, 1, "spawn_pairs", (own,)))
    assert isinstance(refusal, AccessDenied), refusal
    assert service.visits == 0
    assert not mark.exists()


def test_a_restricted_server_in_a_program_limits_only_its_agents(
    evil: tuple[Address, EvilService], server: RpcAgentServerLauncher, mark: Path
) -> None:
    address, service = evil
    where = [("to_dist", {"host": address.host, "port": address.port})]
    with RpcAgentServerLauncher(custom_agent_classes=[Spawner]) as launcher:
        client = RawClient(launcher.address, writes_data=True, agent=Spawner)
        for number, way in enumerate(("spawn_pairs", "spawn_async", "spawn_to_thread", "spawn_in_child")):
            refusal = error_in(client.ask(CallMethod, number + 1, 1, way, (data(where),)))
            assert isinstance(refusal, AccessDenied), (way, refusal)
        client.close()
        assert at(server).add(1).result(60) == 2, "the program itself is not limited"
    assert service.visits == 0
    assert not mark.exists()


def test_agents_may_use_trusted_servers(server: RpcAgentServerLauncher) -> None:
    trusted = [f"{server.host}:{server.port}"]
    launcher = RpcAgentServerLauncher(custom_agent_classes=[Spawner], trusted_servers=trusted)
    launcher.launch(in_subprocess=True)
    try:
        agent = at(launcher, Spawner)
        assert agent.move(server.host, server.port).result(20) == "1"
        assert isinstance(agent.move(launcher.host, launcher.port).exception(20), AccessDenied)
    finally:
        launcher.shutdown()


@pytest.mark.parametrize("given", ["localhost:1", ["localhost"], ["host:port"], [5], [":1"]])
def test_malformed_trusted_servers_are_rejected(given: Any) -> None:
    with pytest.raises(ConfigError):
        RpcAgentServerLauncher(trusted_servers=given)


def test_trusted_servers_may_be_ipv6_addresses() -> None:
    assert parse_trusted(["[::1]:12", "name:13"]) == {Address("::1", 12), Address("name", 13)}


# --- outcomes that cannot be encoded --------------------------------------------------------------------------------------


def test_an_integer_at_the_limit_does_not_end_the_server(restricted: RpcAgentServerLauncher) -> None:
    """A result that cannot be encoded affects only its client."""
    other = at(restricted)
    before = other.pid().result(60)
    client = RawClient(restricted.address, writes_data=True, data_only=True, agent=Spawner)
    for number, bits in enumerate((262_120, 262_128, 262_140, 262_143, 262_144, 262_150)):
        text = json.dumps([["i", f"{1 << bits:x}"], []]).encode()
        packed = ("d", len(text).to_bytes(8, "big") + text)
        outcome = client.ask(CallMethod, number + 1, 1, "square", (packed,))
        assert type(outcome) is CallError, bits
        if bits < 262_144:
            error = error_from(outcome.value)
            assert isinstance(error, RemoteError), bits
            assert error.error_type.endswith("Unserialisable"), bits
    assert client.ask(CallMethod, 100, 1, "square", (3,)) == CallResult(100, 9), "the session continues"
    client.close()
    assert other.pid().result(60) == before


# --- malformed frames and arguments -------------------------------------------------------------------------------------

_M = (1 << 61) - 1
_COLLIDING = [_M * number for number in range(1, 20_001)]


@pytest.mark.parametrize(
    "item",
    [
        (CallMethod, 3, 1, "echo", range(10**13)),
        (CallMethod, 3, 1, "echo", [1]),
        (CallMethod, 3, 1, "echo", "text"),
        (CallMethod, 3, 1, "echo", ((),)),
        (CallMethod, 3, 1, "echo", ({1, 2},)),
        (CallMethod, 3, 1, ["echo"], ()),
        (CallMethod, 3, (1, 2, 3), "echo", ()),
        (CallMethod, _M, 1, "echo", ()),
        (CallMethod, -1, 1, "echo", ()),
        (CallMethod, 3, 1, "echo", (), {1: 2}, 0, None),
        (CallMethod, 3, 1, "echo", (), [("a", 1)], 0, None),
        (CallMethod, 3, 1, "echo", (), {"x": ()}, 0, None),
        (QueryServer, 3, "running", range(10**13)),
        (QueryServer, 3, "running", ["x"]),
        (QueryServer, 3, "running", list(range(1 << 17))),
        (QueryServer, 3, "list", {"limit": 1}),
        (CreateAgent, 2, 1, "init", range(10**13), None),
        (GrantCredit, 3, 10**30),
        (PinResult, "x"),
        (CallResult, 1, 2),
    ],
)
def test_messages_of_the_wrong_shape_end_only_their_session(attacker: RawClient, item: tuple[Any, ...]) -> None:
    kind, *fields = item
    attacker.say([kind(*fields)])
    with pytest.raises(ProtocolError):
        attacker.read(1)


@pytest.mark.parametrize(
    "batch",
    [("Unknown", [(1,)]), ("CancelCall", [(1, 2)]), ("CancelCall", (1,)), ("CancelCall", [1]), ("CancelCall", [])],
)
def test_malformed_batches_end_only_their_session(attacker: RawClient, batch: Any) -> None:
    run(attacker.stream.write(dump((2, 0, (), [batch]))), 20.0)
    with pytest.raises(ProtocolError):
        attacker.read(1)


def test_frames_with_sets_or_keys_that_are_not_text_are_rejected(attacker: RawClient) -> None:
    tree = ["t", 2, 0, ["t"], ["l", ["t", "CallMethod", ["l", ["t", 3, 1, "echo", ["t", ["s", *_COLLIDING]]]]]]]
    text = json.dumps([tree, []]).encode()
    run(attacker.stream.write(len(text).to_bytes(8, "big") + text), 20.0)
    with pytest.raises(ProtocolError):
        attacker.read(1)


def _packed(tree: Any) -> tuple[str, bytes]:
    text = json.dumps([tree, []]).encode()
    return ("d", len(text).to_bytes(8, "big") + text)


@pytest.mark.parametrize(
    "tree",
    [
        ["s", *_COLLIDING],
        ["z", *_COLLIDING],
        ["d", *(part for number in _COLLIDING for part in (number, 0))],
        ["C", *(part for number in _COLLIDING for part in (number, 0))],
        ["O", *(part for number in _COLLIDING for part in (number, 0))],
        ["E", "int", *(part for number in _COLLIDING for part in (number, 0))],
        ["s", *(["t", number] for number in _COLLIDING)],
    ],
    ids=["set", "frozenset", "dict", "Counter", "OrderedDict", "defaultdict", "tuples"],
)
def test_keys_with_equal_hashes_are_rejected(attacker: RawClient, tree: Any) -> None:
    assert isinstance(error_in(attacker.ask(CallMethod, 1, 1, "as_dict", (_packed(tree),))), LimitExceeded)


def test_large_sets_and_dicts_with_usual_keys_are_accepted() -> None:
    for thing in (
        set(range(-5000, 5000)),
        {(number, "x"): number for number in range(5000)},
        {0.5 * i for i in range(99)},
    ):
        assert load(dump(thing), 10) == thing


@pytest.mark.parametrize("part", ["[]", "{}", '{"":0}', "1"])
def test_values_with_too_many_parts_are_rejected_before_parsing(attacker: RawClient, part: str) -> None:
    text = ("[[" + f"{part}," * (1 << 22) + "0],[]]").encode()
    packed = len(text).to_bytes(8, "big") + text
    attacker.say([CallMethod(1, 1, "as_dict", (("D", 0),))], [packed])
    refusal = error_in(attacker.read(1)[0])
    assert isinstance(refusal, LimitExceeded), refusal
    assert "parts" in str(refusal)


def test_text_with_many_commas_and_brackets_is_accepted() -> None:
    for text in ("[,{" * (1 << 21), '\\"[,' * (1 << 21), "a,b" * 10, "\ud800é" * (1 << 16)):
        assert load(dump([text, {"key": text}]), 10) == [text, {"key": text}]


def test_the_json_text_of_a_value_is_limited(attacker: RawClient) -> None:
    text = b'["' + b" " * (64 << 20) + b'",[]]'
    attacker.say([CallMethod(1, 1, "as_dict", (("D", 0),))], [len(text).to_bytes(8, "big") + text])
    assert isinstance(error_in(attacker.read(1)[0]), LimitExceeded)


def test_heads_of_frames_and_empty_messages_are_limited(restricted: RpcAgentServerLauncher) -> None:
    client = RawClient(restricted.address, writes_data=True)
    run(client.stream.write(dump((2, 0, (64 << 20) + 1, None))), 20.0)
    with pytest.raises(ParagentError, match="frame of"):
        client.read(1)
    client = RawClient(restricted.address, writes_data=True)
    run(client.stream.write(dump((2, 0, (10,), []))), 20.0)
    run(client.stream.write(b""), 20.0)
    with pytest.raises(ProtocolError, match="empty part"):
        client.read(1)


# --- references to other servers -----------------------------------------------------------------------------------------


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.slow
def test_connections_to_addresses_of_a_client_are_limited(restricted: RpcAgentServerLauncher) -> None:
    pid = at(restricted).pid().result(60)
    before = _descriptors(pid)
    with contextlib.ExitStack() as silent:
        ports = []
        for _ in range(150):  # they accept connections and send nothing
            listener = silent.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(listener.getsockname()[1])
        client = RawClient(restricted.address, writes_data=True)
        client.say(
            [
                CallMethod(number, 1, "echo", (("r", ("127.0.0.1", port, ""), "0" * 32, 1, None, number),))
                for number, port in enumerate(ports, start=1)
            ]
        )
        other = at(restricted)
        most = 0
        for _ in range(20):  # the server may connect to them within two seconds
            other.nap(0.05).result(60)
            most = max(most, _descriptors(pid))
        assert most - before < 8 * 16, "gRPC needs five or six descriptors for each link"
        requested = client.read(16)
        assert {type(message) for message in requested} == {RequestValue}
        client.say([PushValue(message.number, False, 7) for message in requested])
        answers = client.read(150)
        assert answers.count(CallResult(requested[0].number, 7)) == 1
        errors = [error_in(answer) for answer in answers if type(answer) is CallError]
        assert [type(error) for error in errors] == [LimitExceeded] * (150 - 16)
        client.close()


@pytest.mark.slow
def test_a_client_learns_nothing_about_an_address(attacker: RawClient, tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="paragent-", dir=tmp_path))
    folder.chmod(0o755)
    with (
        socket.create_server(("127.0.0.1", 0)) as closed,
        socket.socket(socket.AF_UNIX) as foreign,
        socket.socket(socket.AF_UNIX) as open_folder,
    ):
        foreign.bind(str(tmp_path / "1"))
        foreign.listen()
        open_folder.bind(str(folder / "1"))
        open_folder.listen()
        port = closed.getsockname()[1]
        closed.close()
        addresses = [
            ("127.0.0.1", port, ""),
            ("no-such-host.invalid", 1, ""),
            ("", 0, str(tmp_path / "1")),
            ("", 0, str(folder / "1")),
            ("", 0, "/nowhere/paragent-x/1"),
            ("", 0, "x\0y"),
            ("", 0, "/paragent-\0/1"),
        ]
        for number, address in enumerate(addresses, start=1):
            reference = ("r", address, "0" * 32, 1, None, 100 + number)
            assert attacker.ask(CallMethod, number, 1, "as_dict", (reference,)) == RequestValue(100 + number, None)
        for listener in (foreign, open_folder):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


# --- agents that are moved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        {"name": "n", "_root": "/etc"},
        {"root": "x"},
        {"unknown": 1},
        {"allowed": []},
        ({"name": "n"}, {"_root": "/etc"}),
        [1],
        None,
    ],
)
def test_moved_agents_with_private_state_are_rejected(attacker: RawClient, state: Any) -> None:
    attacker.say([CreateAgent(2, 1, "state", (data(state),), None)])
    assert isinstance(error_in(attacker.ask(CallMethod, 1, 2, "root", ())), AccessDenied)


def test_accept_state_decides_about_moved_agents() -> None:
    for accept, moved in ((None, True), (True, True), (False, False)):
        with RpcAgentServerLauncher(custom_agent_classes=[Worker], accept_state=accept) as launcher:
            moved_agent = Worker("w", start=3).to_dist(launcher.host, launcher.port)
            error = Result.of(moved_agent.note(1)).exception(60)
            assert (error is None) is moved, accept
            assert error is None or isinstance(error, AccessDenied)
    with RpcAgentServerLauncher(custom_agent_classes=[Spawner], accept_state=True) as launcher:
        client = RawClient(launcher.address, writes_data=True, agent=Spawner)
        client.say([CreateAgent(2, 1, "state", (data({"name": "n", "_root": "/other"}),), None)])
        assert client.ask(CallMethod, 1, 2, "root", ()) == CallResult(1, "/other")
        client.close()


# --- other ---------------------------------------------------------------------------------------------------------------


def test_attributes_that_contain_the_agent_are_not_sent(attacker: RawClient) -> None:
    """A partial of a method would contain the private attributes of its agent."""
    assert isinstance(error_in(attacker.ask(ReadAttribute, 1, 1, "show")), AccessDenied)
    assert attacker.ask(ReadAttribute, 2, 1, "name") == CallResult(2, "raw")


def test_kept_results_classes_and_expected_agents_are_limited(
    monkeypatch: pytest.MonkeyPatch, server: RpcAgentServerLauncher
) -> None:
    monkeypatch.setattr("paragent.remote.server.flow_control._MAX_RESULTS", 10)
    monkeypatch.setattr("paragent.remote.server.dispatcher._MAX_CLASSES", 10)
    monkeypatch.setattr("paragent.remote.server.references._MAX_EXPECTED", 10)
    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
        for items in (
            [PinResult(number) for number in range(100, 120)],
            [DefineClass(number, "m", "n", None) for number in range(100, 120)],
        ):
            client = RawClient(launcher.address, writes_data=True)
            client.say(items)
            with pytest.raises(ProtocolError, match="more than 10"):
                client.read(1)
        client = RawClient(launcher.address, writes_data=True)
        client.say([CallMethod(number, ("0" * 32, number), "echo", ()) for number in range(1, 40)])
        answers = client.read(29)
        assert all(isinstance(error_in(answer), AgentStopped) for answer in answers)
        client.close()


def test_log_lines_contain_no_control_characters(
    restricted: RpcAgentServerLauncher, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
        client = RawClient(launcher.address, writes_data=True)
        run(client.stream.write(dump((2, 0, (), [("\x9b2J\x1b]0;title\x07", [(1,)])]))), 20.0)
        with pytest.raises(ProtocolError):
            client.read(1)
    write_traceback("what", ValueError("\x1b]52;c;aGk=\x07 \x9d"))
    for text in (caplog.text, capfd.readouterr().err):
        assert text
        assert not set(text) & {"\x1b", "\x9b", "\x9d", "\x07"}


def test_a_process_that_only_serves_is_limited_while_it_serves() -> None:
    launcher = RpcAgentServerLauncher(custom_agent_classes=[Worker], trusted_servers=["localhost:5"])
    launcher.launch(in_subprocess=False)
    assert trusted_here() is None
    waiting = threading.Thread(target=launcher.wait_until_terminate)
    waiting.start()
    wait_until(lambda: trusted_here() is not None, 20)
    assert trusted_here() == frozenset({Address("localhost", 5)})
    with pytest.raises(AccessDenied):
        Worker(to_dist={"host": "localhost", "port": 6})
    launcher.shutdown()
    waiting.join(20)
    assert trusted_here() is None


def test_results_of_other_servers_count_in_the_window(server: RpcAgentServerLauncher) -> None:
    source = at(server)
    with RpcAgentServerLauncher(custom_agent_classes=[Worker], limits=Limits(window_bytes=1 << 20)) as launcher:
        target = at(launcher)
        assert target.size(source.make(1 << 20)).result(20) == 1 << 20
        assert isinstance(target.size(source.make(3 << 20)).exception(20), LimitExceeded)
        assert target.size(source.make(1 << 20)).result(20) == 1 << 20, "the first result does not count any more"
        wait_until(lambda: launcher.info()["calls_under_way_bytes"] == 0)
