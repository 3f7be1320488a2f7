"""Restricted servers, which run only their own classes and accept no code, and hostile clients that know the token."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import pickle
import random
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from paragent import (
    AccessDenied,
    AgentBase,
    LimitExceeded,
    Msg,
    ProtocolError,
    RpcAgentServerLauncher,
    ServerLost,
    TlsConf,
)
from paragent.errors import ParagentError, RemoteError
from paragent.messages import ActionModel
from paragent.remote.data import TAGS, dump, load
from paragent.remote.placement import parse_trusted
from paragent.remote.protocol import (
    CallError,
    CallMethod,
    CallResult,
    CreateAgent,
    DefineClass,
    FetchResult,
    ReadAttribute,
    RequestValue,
    ResultHeld,
    encode,
)
from paragent.remote.reliable_stream import ReliableStream
from paragent.remote.restricted import error_from
from paragent.remote.server.policy import Policy
from paragent.remote.values import decode_error
from paragent.transport import Address, load_token
from paragent.transport.loop import io_loop, run
from paragent.transport.server import RpcServer
from tests.remote.agents import Moderator, OwnError, Team, Worker
from tests.remote.raw_client import Bomb, RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paragent.transport.server import ServerStream


class EvilService:
    """A hostile agent server that answers a fetch with given messages, as pickles or as data."""

    def __init__(self, answer: Callable[[int], list[Any]], *, writes_data: bool) -> None:
        self.answer, self._writes_data = answer, writes_data
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
                if type(item) is not FetchResult:
                    continue
                answer = self.answer(item.number)
                for part in encode(1, 0, answer, (), as_data=self._writes_data):
                    await stream.write(part)


@pytest.fixture
def evil() -> Iterator[Callable[..., tuple[Address, EvilService]]]:
    """Starts hostile agent servers; any program with the token can do that."""
    servers = []

    def start(answer: Callable[[int], list[Any]], *, writes_data: bool = False) -> tuple[Address, EvilService]:
        service = EvilService(answer, writes_data=writes_data)
        server = RpcServer(Address("localhost", 0), {"agents": service}, load_token())
        servers.append(server)
        return Address("localhost", run(server.start(), 10.0)), service

    yield start
    for server in servers:
        run(server.stop(0), 10.0)


@pytest.fixture(scope="module")
def restricted() -> Iterator[RpcAgentServerLauncher]:
    """A restricted server with two classes in a new process."""
    launcher = RpcAgentServerLauncher(custom_agent_classes=[Worker, Team])
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


@pytest.fixture
def attacker(restricted: RpcAgentServerLauncher) -> Iterator[RawClient]:
    """A client with the token and an agent; afterwards the fixture checks that the server still works."""
    before = at(restricted).pid().result(60)
    client = RawClient(restricted.address, writes_data=True)
    yield client
    client.close()
    assert at(restricted).pid().result(60) == before, "the server still runs"


def at(server: RpcAgentServerLauncher, cls: Any = Worker, *args: Any, **kwargs: Any) -> Any:
    return cls(*args, **kwargs, to_dist={"host": server.host, "port": server.port})


def error_in(answer: Any) -> BaseException:
    assert type(answer) is CallError
    return decode_error(answer.value)


# --- agents in other processes -----------------------------------------------------------------------------------------


def test_a_constructor_cannot_create_a_proxy_inside_the_server(
    attacker: RawClient, evil: Any, mark: Path, tmp_path: Path
) -> None:
    address, service = evil(lambda number: [CallResult(number, ("p", pickle.dumps(Bomb(mark))))])
    elsewhere = {"host": address.host, "port": address.port}
    attacker.say([DefineClass(2, Team.__module__, "Team", None)])
    attempts = [
        CreateAgent(2, 1, "init", (), {"to_dist": ("d", dump(elsewhere))}),
        CreateAgent(3, 1, "init", (), {"to_dist": True}),
        CreateAgent(4, 2, "init", (("d", dump([{"to_dist": elsewhere}])),), None),
        CreateAgent(5, 2, "init", (("d", dump([OrderedDict(to_dist=elsewhere)])),), None),
    ]
    for attempt in attempts:
        attacker.say([attempt])
        refusal = error_in(attacker.ask(CallMethod, attempt.agent, attempt.agent, "echo", (1,)))
        assert isinstance(refusal, AccessDenied), refusal
        assert "to_dist" in str(refusal)
    assert service.visits == 0
    assert not mark.exists()


def test_servers_that_accept_code_also_create_agents_only_in_their_process(server: RpcAgentServerLauncher) -> None:
    client = RawClient(server.address)
    client.say([CreateAgent(2, 1, "init", (), {"to_dist": True})])
    assert isinstance(error_in(client.ask(CallMethod, 1, 2, "echo", (1,))), AccessDenied)
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("writes_data", [False, True])
@pytest.mark.parametrize("kind", ["pickle", "message", "error", "described", "kept", "deep", "with code"])
def test_results_from_an_address_of_a_client_are_not_unpickled(
    attacker: RawClient, evil: Any, mark: Path, kind: str, writes_data: bool
) -> None:
    bomb = pickle.dumps(Bomb(mark))
    deep: Any = ()
    for _ in range(8 if writes_data else 100_000):
        deep = (deep,)
    answers: dict[str, Callable[[int], Any]] = {
        "pickle": lambda number: CallResult(number, ("p", bomb)),
        "message": lambda number: CallResult(number, ("M", bomb)),
        "error": lambda number: CallError(number, ("p", bomb)),
        "described": lambda number: CallError(number, ("x", "SystemExit", "bye", "")),
        "kept": lambda number: ResultHeld(number, 1),
        "deep": lambda number: CallResult(number, {deep: 1}),
        "with code": lambda number: CallResult(number, ("p", bomb, {"digest": bomb})),
    }
    if kind == "deep" and not writes_data:
        head = b"\x80\x04(K\x01K\x00)]}" + b")" + b"\x85" * 3_000_000 + b"K\x01satu."
        address, service = evil(lambda number: [])
        service.answer = lambda number: []
        service.serve = _saying(head)
    else:
        address, service = evil(lambda number: [answers[kind](number)], writes_data=writes_data)
    reference = ("r", tuple(address), "0" * 32, 1, None, 9)
    answer = attacker.ask(CallMethod, 1, 1, "echo", (reference,))
    assert answer == RequestValue(9, None) or isinstance(error_in(answer), ParagentError)
    assert service.visits == 1, "the result was requested"
    assert not mark.exists(), "the answer was not unpickled"


def _saying(head: bytes) -> Any:
    """Return a `serve` that sends the head of a frame in pieces of the allowed size."""

    async def serve(stream: ServerStream, admitted: Any) -> None:
        await stream.read()
        await stream.write(pickle.dumps((1, 0, len(head), None)))
        for start in range(0, len(head), 1 << 20):
            await stream.write(head[start : start + (1 << 20)])
        await asyncio.sleep(3600)

    return serve


@pytest.mark.parametrize(
    "reference",
    [
        ("r", ("localhost",), "0" * 32, 1, None, 9),
        ("r", ("localhost", "x", ""), "0" * 32, 1, None, 9),
        ("r", ("localhost", 1, ""), 5, 1, None, 9),
        ("r", ("localhost", 1, ""), "0" * 32, 1, (1, 2, 3, 4), 9),
        ("r", ("localhost", 1, ""), "0" * 32, "1", None, 9),
        ("r", None, "0" * 32, 1, None, None),
        ("r", ("localhost", 1, ""), "0" * 32, 1, None, "9"),
        ("r", 1),
    ],
)
def test_malformed_references_are_rejected(attacker: RawClient, reference: Any) -> None:
    attacker.say([CallMethod(1, 1, "echo", (reference,))])
    with pytest.raises(ProtocolError):
        attacker.read(1)


@pytest.mark.parametrize(("credit", "seconds"), [(0, float("nan")), (0, -1.0), ((), None), ("x", None), (None, 1.0)])
def test_calls_with_an_invalid_deadline_or_credit_end_only_their_session(
    attacker: RawClient, credit: Any, seconds: Any
) -> None:
    attacker.say([CallMethod(1, 1, "nap", (60,), None, credit, seconds)])
    with pytest.raises(ProtocolError):
        attacker.read(1)


def test_errors_of_a_client_are_not_passed_on_as_pickles(attacker: RawClient, mark: Path) -> None:
    bomb = ("p", pickle.dumps((Bomb(mark), "")))
    attacker.say([CreateAgent(2, 1, "init", (("f", bomb),), None)])
    for number, item in enumerate((CallMethod(1, 2, "echo", (1,)), CallMethod(2, 1, "echo", (("f", bomb),)))):
        attacker.say([item])
        assert isinstance(error_in(attacker.read(1)[0]), ProtocolError), number
    described = ("f", ("x", "ValueError", "no number", "a traceback"))
    error = error_in(attacker.ask(CallMethod, 3, 1, "echo", (described,)))
    assert (type(error), str(error)) == (ValueError, "no number")
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["SystemExit", "KeyboardInterrupt", "StopIteration", "print", "UnicodeDecodeError", "x.Y"]
)
def test_errors_received_as_text_are_remote_errors(name: str) -> None:
    error = error_from(("x", name, "why", "text"))
    assert isinstance(error, RemoteError)
    assert (error.error_type, error.message, error.traceback) == (name, "why", "text")


# --- names of the proxy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepts_code", [False, True])
def test_to_dist_is_not_a_method_of_an_agent(
    restricted: RpcAgentServerLauncher, server: RpcAgentServerLauncher, evil: Any, accepts_code: bool
) -> None:
    address, service = evil(lambda number: [])
    client = RawClient((server if accepts_code else restricted).address, writes_data=not accepts_code)
    for number, item in enumerate(
        (
            CallMethod(1, 1, "to_dist", (address.host, address.port)),
            CallMethod(2, 1, "to_dist", (address.host, address.port), seconds=9.0),
            ReadAttribute(3, 1, "to_dist"),
        )
    ):
        client.say([item])
        refusal = error_in(client.read(1)[0])
        assert isinstance(refusal, AttributeError), (number, refusal)
    assert service.visits == 0
    client.close()


def test_methods_cannot_be_read_as_attributes(attacker: RawClient) -> None:
    """A bound method would contain the whole state of its agent."""
    assert attacker.ask(ReadAttribute, 1, 1, "count") == CallResult(1, 0)
    assert isinstance(error_in(attacker.ask(ReadAttribute, 2, 1, "reply")), AttributeError)


def test_a_proxy_cannot_move_its_agent(restricted: RpcAgentServerLauncher) -> None:
    with pytest.raises(ParagentError, match="already"):
        at(restricted).to_dist()


# --- data only -----------------------------------------------------------------------------------------------------------


def test_pickles_are_not_loaded(attacker: RawClient, mark: Path) -> None:
    """Not even pickles of harmless types: BUILD sets attributes of classes, and numpy's state turns bytes into pointers."""
    vandal = b"\x80\x04\x8c\x11tests.remote.agents\x8c\x06Worker\x93}\x8c\x04name\x8c\x06stolensb."
    for number, data in enumerate((pickle.dumps(Bomb(mark)), vandal, pickle.dumps([1]), b"")):
        for tag in ("p", "M", "b", "q"):
            refusal = error_in(attacker.ask(CallMethod, 10 * number + ord(tag) * 100, 1, "echo", ((tag, data),)))
            assert isinstance(refusal, AccessDenied | ProtocolError), refusal
    assert attacker.ask(ReadAttribute, 7, 1, "name") == CallResult(7, "raw")
    assert not mark.exists()


def test_frames_are_not_unpickled(restricted: RpcAgentServerLauncher, mark: Path) -> None:
    """Hashing a key of nested tuples overflows the stack, whatever classes the unpickler allows."""
    before = at(restricted).pid().result(60)
    deep = b")" + b"\x85" * 900_000
    heads = [
        pickle.dumps((1, 0, (), [("c", 1)])),
        b"\x80\x04(K\x01K\x00)](}" + deep + b"K\x01setat.",
        b"\x80\x04r\xff\xff\xff\x1f.",
        b"\x00" * 7 + b"\xff" + b"[" * 255,
        dump((1, 0, (), [("c", 1, 1, "echo", ({"a": [[[[[[[[[[]]]]]]]]]]},))])),
    ]
    for head in heads:
        client = RawClient(restricted.address, writes_data=True)
        run(client.stream.write(head), 10.0)
        with pytest.raises(ParagentError):
            client.read(1)
        client.close()
    assert at(restricted).pid().result(60) == before
    assert not mark.exists()


def tree(*node: Any, buffers: tuple[bytes, ...] = ()) -> bytes:
    """Return bytes that the encoder would not write."""
    import json

    text = json.dumps([node[0] if len(node) == 1 else list(node), [len(part) for part in buffers]]).encode()
    return len(text).to_bytes(8, "big") + text + b"".join(buffers)


HOSTILE = [
    tree("n", "|O", 1, buffers=(b"A" * 8,)),
    tree("n", "O8", 1, buffers=(b"A" * 8,)),
    tree("n", "V8", 1, buffers=(b"A" * 8,)),
    tree("n", "<f8", 2, buffers=(b"A" * 8,)),
    tree("n", "<f8", -1, buffers=(b"A" * 8,)),
    tree("n", "<f8", 0, 1 << 70, buffers=(b"",)),
    tree("n", "<f8", *[0] * 100, buffers=(b"",)),
    tree("n", "<U1", 1, buffers=(b"\xff\xff\xff\x7f",)),
    tree("n", ">U1", 1, buffers=(b"\x7f\xff\xff\xff",)),
    tree("n", "|b1", 1, buffers=(b"\x07",)),
    tree("N", "|O", buffers=(b"A" * 8,)),
    tree("n", [["f", "O"]], 1, buffers=(b"A" * 8,)),
    tree(["f"], buffers=(b"1234567",)),
    tree(["j"]),
    tree("D", "1e100000000"),
    tree("D", "1" * 20_000),
    tree("D", [0, [1], 10**17]),
    tree("F", "1e100000000", 1),
    tree("F", 1, 0),
    tree("F", ["i", "f" * 60_000], ["i", "e" * 60_000]),
    tree("i", "f" * 100_000),
    tree("T", "2020-01-01" * 100),
    tree("T", 5),
    tree("g", 10**300, 0, 0),
    tree(["b"]),
    tree(["l", ["b"], ["b"]], buffers=(b"once",)),
    tree("d", 1),
    tree("d", ["l"], 1),
    tree("s", ["l"]),
    tree("M", "a", 1),
    tree("M", ["l"], 1, "user", {}, "id", 0.0),
    tree("A", *range(9)),
    tree("E", "print"),
    tree("q", -5),
    tree("u", "zz"),
    tree("unknown", 1),
    tree([]),
    tree([[1]]),
    tree([1]),
    tree(None)[:-1],
    tree(None) + b"x",
    b"",
    b"\xff" * 8,
    (8).to_bytes(8, "big") + b"[[[[[[[[",
    (200_000).to_bytes(8, "big") + b"[" * 200_000,
    (9).to_bytes(8, "big") + b"[1,[-3]]\n",
    (5000).to_bytes(8, "big") + b"1" * 5000,
]


def test_malformed_values_are_rejected(attacker: RawClient) -> None:
    attacker.say([CallMethod(number, 1, "size", (("d", data),)) for number, data in enumerate(HOSTILE, 1)])
    for answer in attacker.read(len(HOSTILE)):
        assert type(answer) is CallError, HOSTILE[answer.number - 1][:80]
        assert isinstance(decode_error(answer.value), ProtocolError | LimitExceeded | AccessDenied), HOSTILE[
            answer.number - 1
        ][:80]


def test_nesting_is_limited_while_reading(attacker: RawClient) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = (deep,)
    for number, value in enumerate((deep, {deep: 1}, {"a": deep}, {deep}, Msg("a", deep))):
        error = error_in(attacker.ask(CallMethod, number + 1, 1, "echo", (("d", dump(value)),)))
        assert isinstance(error, LimitExceeded), error
    assert load(dump([[[]]]), 3) == [[[]]]
    with pytest.raises(LimitExceeded):
        load(dump([[[]]]), 2)
    assert load(dump({"a": ["]" * 200, '["\\' * 200, {"b": [b"x"]}]}), 4)["a"][2] == {"b": [b"x"]}
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(LimitExceeded):
        dump(loop)


def test_nesting_does_not_overflow_the_stack_with_a_raised_recursion_limit() -> None:
    program = r"""
import sys
from paragent.errors import LimitExceeded
from paragent.remote.data import dump, load
sys.setrecursionlimit(10**7)
value = {"a": ["]" * 200, '["\\' * 200, {"b": [b"x"]}]}
assert load(dump(value), 4) == value
for text in (b"[" * 3_000_000, b'{"[":' * 3_000_000, b'["\\\\",' * 3_000_000):
    try:
        load(len(text).to_bytes(8, "big") + text, 100)
    except LimitExceeded:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.returncode) == (["refused"] * 3, 0), done.stderr


keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.dates(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2),
    max_leaves=4,
)
data: st.SearchStrategy[Any] = st.recursive(
    keys
    | st.text(st.characters(), max_size=5)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.from_regex(r'["\\\[{]{1,9}')
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.builds(bytearray, st.binary(max_size=5))
    | st.builds(range, st.integers(), st.integers())
    | st.lists(st.floats(allow_nan=False), min_size=30, max_size=40)
    | st.lists(st.integers(-(2**63), 2**63), min_size=30, max_size=40)
    | st.integers(min_value=-(2**200), max_value=2**200),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5))
        | st.builds(OrderedDict, st.dictionaries(keys, inner, max_size=2))
        | st.builds(lambda parts: defaultdict(list, parts), st.dictionaries(keys, inner, max_size=2))
        | st.builds(Counter, st.dictionaries(keys, st.integers(), max_size=2))
        | st.builds(lambda name, content: Msg(name, content, id="1", timestamp=2.0), st.text(max_size=3), inner)
        | st.builds(ActionModel, st.text(max_size=3), policy_info=inner)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data)
def test_data_survives_encoding_and_decoding(thing: Any) -> None:
    read = load(dump(thing), 100)
    assert read == thing
    assert type(read) is type(thing)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st_np.arrays(
        st_np.boolean_dtypes()
        | st_np.integer_dtypes()
        | st_np.floating_dtypes()
        | st_np.unicode_string_dtypes(max_len=4),
        st_np.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    )
)
def test_arrays_survive_encoding_and_decoding(array: np.ndarray[Any, Any]) -> None:
    read = load(dump({"array": array}), 100)["array"]
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()
    assert read.flags.writeable


def mutated(value: bytes, chance: random.Random) -> bytes:
    """Return bytes with some changed, left out or repeated."""
    said = bytearray(value)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(said)) if said else 0
        match chance.randrange(4):
            case 0 if said:
                said[place] = chance.randrange(256)
            case 1:
                del said[place : place + chance.randint(1, 4)]
            case 2:
                said[place:place] = said[place : place + chance.randint(1, 30)]
            case _:
                said[place:place] = chance.choice(b'[]{},"0123456789-.eEntfsuDFMbiNI').to_bytes()
    # Most are readable only with a length that fits.
    return bytes(said) if chance.random() < 0.2 else max(0, len(said) - 8).to_bytes(8, "big") + bytes(said[8:])


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data | st.builds(np.arange, st.integers(0, 4)), st.integers())
def test_modified_bytes_are_data_or_rejected(thing: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        try:
            load(mutated(dump(thing), chance), 20)
        except (ProtocolError, LimitExceeded, AccessDenied):
            continue


leaves: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(
        ["<f8", "<U2", "|b1", "|O", "<M8[D]", "|S3", ">c16", "<m8", "2020-01-01", "1e9", "ff", "list", "to_dist"]
    )
)
nodes: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.sampled_from(sorted(TAGS)), st.lists(inner, max_size=6)).map(lambda node: [node[0], *node[1]])
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)
MODULES = {"builtins", "collections", "datetime", "decimal", "fractions", "uuid", "numpy", "paragent"}


@pytest.mark.slow
@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nodes, st.lists(st.binary(max_size=33), max_size=3))
def test_json_of_any_shape_is_data_or_rejected(node: Any, buffers: list[bytes]) -> None:
    """Valid JSON with arbitrary tags and parts."""
    try:
        thing = load(tree(node, buffers=tuple(buffers)), 20, "to_dist")
    except (ProtocolError, LimitExceeded, AccessDenied):
        return
    assert type(thing).__module__.partition(".")[0] in MODULES
    repr(thing)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=100), st.booleans())
def test_random_bytes_are_data_or_rejected(noise: bytes, framed: bool) -> None:
    try:
        load(len(noise).to_bytes(8, "big") + noise if framed else noise, 20)
    except (ProtocolError, LimitExceeded, AccessDenied):
        return


def test_modified_values_and_frames_do_not_harm_a_server(restricted: RpcAgentServerLauncher) -> None:
    chance = random.Random(11)  # a fixed seed makes failures reproducible
    before = at(restricted).pid().result(60)
    value = {
        "a": [1, 2.5, b"x", ("t",)],
        3: np.arange(3),
        "m": Msg("u", [Decimal("1.5"), Fraction(1, 3)]),
        "d": dt.date.max,
    }
    client = RawClient(restricted.address, writes_data=True)
    count = 500
    client.say([CallMethod(n, 1, "echo", (("d", mutated(dump(value), chance)),)) for n in range(1, count + 1)])
    assert len(client.read(count)) == count
    client.close()
    for _ in range(40):
        broken = RawClient(restricted.address, writes_data=True)
        messages = [CallMethod(1, 1, "echo", (("d", dump(value)),)), ReadAttribute(2, 1, "name")]
        (frame,) = encode(2, 0, messages, (), as_data=True)
        run(broken.stream.write(mutated(frame, chance)), 10.0)
        run(broken.stream.close(), 10.0)
    assert at(restricted).pid().result(60) == before


# --- honest clients ------------------------------------------------------------------------------------------------------


def test_data_of_all_kinds_reaches_a_restricted_server(restricted: RpcAgentServerLauncher) -> None:
    things = [
        {"deep": [1, (2, {3})]},
        Msg("user", {"a": b"bytes"}, metadata={"x": 1}),
        Msg("user", "plain"),
        ActionModel("tool", params={"x": [1]}),
        dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
        Decimal("1.50"),
        UUID(int=5),
        2**100,
        "x" * (3 << 20),
        "\ud800 lone",
        b"y" * 100_000,
        {1: {2: 3}},
    ]
    fresh, known = at(restricted), at(restricted)
    early = [fresh.echo(thing) for thing in things]  # perhaps before the link knows that the server is restricted
    known.add(1).result(60)
    assert [result.result(20) for result in early] == things
    assert [known.echo(thing).result(20) for thing in things] == things
    array = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(known.echo(array).result(60), array)
    assert known.add(a=np.int64(3), b=2).result(60) == 5
    moved = Worker("moved", start=4).to_dist(host=restricted.host, port=restricted.port)
    assert moved.note({"a": (1, 2)}) == 5


def test_objects_that_are_not_data_are_rejected_before_and_after_the_welcome(
    restricted: RpcAgentServerLauncher,
) -> None:
    agent = at(restricted)
    for thing in (print, Worker, object(), [lambda: 1], Worker("an agent"), np.array([object()]), 1 << 300_000):
        for _ in range(2):
            assert isinstance(agent.echo(thing).exception(60), AccessDenied | LimitExceeded), thing
    with pytest.raises(AccessDenied, match="no code"):
        at(restricted, Worker, name=print).add(1).result(60)


def test_results_inside_containers_are_awaited(restricted: RpcAgentServerLauncher) -> None:
    child: Any = Worker("child", to_dist=True)
    fresh = at(restricted)
    assert fresh.echo([child.nap(0.1), {"b": child.add(1)}]).result(60) == ["child", {"b": 2}]
    assert fresh.echo([child.nap(0.1), {"b": fresh.add(1)}]).result(60) == ["child", {"b": 2}]
    with pytest.raises(ValueError, match="a value error"):
        fresh.echo([child.fail("value")]).result(60)


def test_errors_of_results_inside_containers_keep_their_type(restricted: RpcAgentServerLauncher) -> None:
    source, target = at(restricted), at(restricted)
    assert target.echo(1) == 1
    for argument in (lambda failing: [failing], lambda failing: {"a": failing}):
        error = target.echo(argument(source.fail("own"))).exception(60)
        assert isinstance(error, OwnError)
        assert error.code == 7
        with pytest.raises(OwnError):
            list(target.chunks(argument(source.fail("own")), 1))
    assert target.echo(2) == 2, "the agent still works"


def test_results_are_passed_to_and_from_restricted_servers(
    restricted: RpcAgentServerLauncher, server: RpcAgentServerLauncher
) -> None:
    child: Any = Worker("child", to_dist=True)
    other = at(server, Worker, "other")
    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as second_server:
        first, second = at(restricted, Worker, "first"), at(second_server, Worker, "second")
        for source in (child, other, second, first):
            assert first.echo(source.nap(0.1)).result(60) == source.name
            assert first.echo(source.echo({"a": [1]})).result(60) == {"a": [1]}
            assert first.size(source.make(3 << 20)).result(60) == 3 << 20
            done = source.reply(Msg("user", [1]))
            done.result(60)
            assert first.echo(done).result(60).content == [1]
            with pytest.raises(ValueError, match="a value error"):
                first.echo(source.fail("value")).result(60)
            with pytest.raises(Exception, match="not importable"):
                first.echo(source.local_error()).result(60)
        for target in (child, other, second):
            assert target.echo(first.echo({"a": [1]})).result(60) == {"a": [1]}
        with pytest.raises(AccessDenied, match="no code"):
            first.echo(child.echo(object())).result(60)


def test_values_reach_a_restricted_server_through_the_caller(
    restricted: RpcAgentServerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    child: Any = Worker("child", to_dist=True)
    far = at(restricted)
    far.add(1).result(60)
    monkeypatch.setattr(Address, "is_local", property(lambda address: address.port != restricted.port))
    assert far.echo(child.nap(0.1)).result(60) == "child"
    assert far.echo(child.echo([1, (2,)])).result(60) == [1, (2,)]
    with pytest.raises(ValueError, match="a value error"):
        far.echo(child.fail("value")).result(60)


def test_another_server_at_the_same_port_is_a_new_server() -> None:
    first = RpcAgentServerLauncher(custom_agent_classes=[Worker])
    first.launch(in_subprocess=True)
    old = at(first)
    assert old.add(1) == 2
    lasting = old.nap(60)
    first.shutdown()
    with RpcAgentServerLauncher(port=first.port) as second:
        # The link is looking for the server at this moment; what is asked of the new one must not share its fate.
        assert at(second).echo(1).result(60) == 1
        assert isinstance(lasting.exception(60), ServerLost)
        assert isinstance(old.add(1).exception(60), ServerLost)


# --- proxies of agents on trusted servers --------------------------------------------------------------------------------


def _host_and_port(server: RpcAgentServerLauncher) -> str:
    return f"{server.host}:{server.port}"


@pytest.mark.parametrize("classes", [[Moderator, Worker], [Moderator]], ids=["known class", "unknown class"])
def test_agents_call_agents_of_trusted_servers(classes: list[type]) -> None:
    with (
        RpcAgentServerLauncher(custom_agent_classes=[Worker]) as first,
        RpcAgentServerLauncher(custom_agent_classes=classes, trusted_servers=[_host_and_port(first)]) as second,
    ):
        members = [at(first, Worker, f"w{number}") for number in range(2)]
        moderator = at(second, Moderator, members)  # sent before the program knows that the server is restricted
        assert moderator.ask_all("x").result(60) == ["x", "x"]
        assert moderator.ask(members[0], 7).result(60) == 7
        assert moderator.ask_last(members, 9).result(60).content == 9
        assert isinstance(moderator.fail(members[0]).exception(60), ValueError)
        if Worker in classes:
            assert moderator.names().result(60) == ["w0", "w1"]
            assert moderator.count(members[0], 3).result(60) == [0, 1, 2]


def test_proxies_in_attributes_are_not_sent_to_clients() -> None:
    """They name the session of the server at the other server: a client could take its place there."""

    class Keeper(AgentBase):
        def __init__(self, member: Any) -> None:
            super().__init__("keeper")
            self.members = {"first": member}

    with RpcAgentServerLauncher(custom_agent_classes=[Keeper, Worker]) as launcher:
        keeper = at(launcher, Keeper, at(launcher))
        with pytest.raises(AccessDenied, match="proxy of an agent cannot be read"):
            _ = keeper.members


def test_agents_of_one_restricted_server_call_each_other() -> None:
    with RpcAgentServerLauncher(custom_agent_classes=[Moderator, Worker]) as launcher:
        member = at(launcher)
        moderator = at(launcher, Moderator, [member])
        assert moderator.ask_all(1).result(60) == [1]


def test_a_proxy_of_another_address_is_rejected_before_a_connection_is_made(evil: Any) -> None:
    address, service = evil(lambda number: [])
    forged = ["P", address.host, address.port, "0" * 32, 1, False, "Worker"]
    with RpcAgentServerLauncher(custom_agent_classes=[Moderator], trusted_servers=["localhost:1"]) as launcher:
        client = RawClient(launcher.address, writes_data=True, agent=Moderator)
        for number, tree in enumerate((forged, ["l", forged], {"members": ["l", forged]}), start=1):
            error = error_in(client.ask(CallMethod, number, 1, "ask", (("d", _text(tree)), 1)))
            assert isinstance(error, AccessDenied)
            assert f"add '{address}' to trusted_servers" in str(error)
        client.close()
    assert service.visits == 0


@pytest.mark.parametrize(
    ("host", "port", "accepted"),
    [
        ("LocalHost", 12345, True),
        ("::1", 12345, True),
        ("[::1]", 12345, True),
        ("10.0.0.5", 12345, True),
        *[(host, 12345, False) for host in ("127.0.0.1", "localhost.", "0:0:0:0:0:0:0:1", "10.0.0.50", "")],
        *[
            (host, 12345, False)
            for host in ("localhost:12345", "localhost@evil", "unix:/tmp/1", "http://localhost", " localhost")
        ],
        *[("localhost", port, False) for port in (0, 1, 12346, -12345, 12345 + 65536)],
    ],
)
def test_only_named_addresses_are_trusted(host: str, port: int, accepted: bool) -> None:
    trusted = parse_trusted([" LOCALHOST:12345", "[::1]:12345", "10.0.0.5:12345"])
    policy = Policy([Worker], accept_code=False, nesting=100, trusted=trusted)
    value = ("d", _text(["P", host, port, "0" * 32, 1, False, "Worker"]))
    if accepted:
        assert isinstance(policy.decode(value), Worker)
    else:
        with pytest.raises((AccessDenied, ProtocolError)):
            policy.decode(value)


@pytest.mark.parametrize(
    ("session", "number"), [("0" * 32, -1), ("0" * 32, 1 << 60), ("0" * 31, 1), ("G" * 32, 1), ("", 1)]
)
def test_proxies_that_no_server_made_are_rejected(session: str, number: int) -> None:
    """A call with them would end the session of this server at the other one, and with it the agents of all its clients."""
    policy = Policy([Worker], accept_code=False, nesting=100, trusted=parse_trusted(["localhost:12345"]))
    with pytest.raises(ProtocolError, match="cannot exist"):
        policy.decode(("d", _text(["P", "localhost", 12345, session, number, False, "Worker"])))


def test_calls_that_a_restricted_server_would_not_read_fail_alone(restricted: RpcAgentServerLauncher) -> None:
    agent = at(restricted)
    for arguments, keywords in (((), {"x" * 2_000: 1}), (range(70_000), {})):
        with pytest.raises(LimitExceeded, match="at most 65536 arguments, with names of at most 1000 characters"):
            agent.echo(*arguments, **keywords)
    assert agent.echo(1).result(60) == 1


def test_many_long_texts_are_sent_in_several_frames(restricted: RpcAgentServerLauncher) -> None:
    """The server rejects a frame of more than 64 MiB, without attachments."""
    texts = ["x" * 60_000] * 1_200
    agent = at(restricted)
    # In the first round, the program does not know yet that the server is restricted.
    for arguments in ([Msg("user", text) for text in texts], texts):
        continues = threading.Event()
        io_loop().call_soon_threadsafe(continues.wait, 60)
        try:
            results = [agent.echo(argument) for argument in arguments]
        finally:
            continues.set()
        assert [result.result(60) for result in results] == arguments


def test_a_server_with_tls_connects_to_other_hosts_only_with_tls() -> None:
    """A client that says that another server has no TLS could answer in its place, and its results would be unpickled."""
    trusted = parse_trusted(["192.0.2.1:1", "localhost:1"])
    policy = Policy([Worker], accept_code=False, nesting=100, trusted=trusted, peer_tls=TlsConf())
    for host, tls, accepted in (("192.0.2.1", True, True), ("localhost", False, True), ("192.0.2.1", False, False)):
        value = ("d", _text(["P", host, 1, "0" * 32, 1, tls, "Worker"]))
        if accepted:
            assert isinstance(policy.decode(value), Worker)
        else:
            with pytest.raises(AccessDenied, match="start that server with TLS"):
                policy.decode(value)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        ["localhost", 1, "0" * 32, 1, False],
        ["localhost", "1", "0" * 32, 1, False, "Worker"],
        ["localhost", 1, "0" * 32, 1, 0, "Worker"],
        [["l"], 1, "0" * 32, 1, False, "Worker"],
        ["x" * 2_000, 1, "0" * 32, 1, False, "Worker"],
        ["localhost", 1, "0" * 32, True, False, "Worker"],
    ],
)
def test_malformed_proxies_are_rejected(parts: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        load(_text(["P", *parts]), 100, proxy=lambda reference: reference)


def test_proxies_are_read_only_where_they_are_expected() -> None:
    proxy = ["P", "localhost", 1, "0" * 32, 1, False, "Worker"]
    with pytest.raises(AccessDenied):
        load(_text(proxy), 100)
    with pytest.raises(ProtocolError):
        load(_text(proxy), 100, frame=True)


def test_an_agent_in_a_child_process_cannot_be_passed_to_a_restricted_server(
    restricted: RpcAgentServerLauncher,
) -> None:
    child = Worker("w", to_dist=True)
    with pytest.raises(AccessDenied, match="child process"):
        at(restricted).ask(child, 1).result(60)


def _text(tree: Any) -> bytes:
    """Return the encoded value of a tree without raw bytes."""
    text = json.dumps([tree, []]).encode()
    return len(text).to_bytes(8, "big") + text
