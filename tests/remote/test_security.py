"""Authentication: the token, the handshake, malformed and hostile input, limits and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import socket
import stat
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paragent import (
    AccessDenied,
    ConfigError,
    LimitExceeded,
    Limits,
    ProtocolError,
    RpcAgentServerLauncher,
    TlsConf,
    wait,
)
from paragent.agents.proxy import link_of
from paragent.errors import ParagentError
from paragent.remote import protocol
from paragent.remote.data import dump
from paragent.remote.protocol import Assembler, CallResult, CancelCall, encode
from paragent.remote.reliable_stream import ReliableStream
from paragent.remote.server.policy import Policy
from paragent.transport.auth import ClientSide, ServerSide, Token, encode_message, load_token, token_file
from paragent.transport.client import ERRORS, METHOD, connect, error_of
from paragent.transport.loop import run
from tests.remote.agents import Moderator, Worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def at(server: RpcAgentServerLauncher, **more: Any) -> Any:
    return Worker("agent", to_dist={"host": server.host, "port": server.port, **more})


@pytest.fixture(scope="module")
def here() -> Iterator[RpcAgentServerLauncher]:
    with RpcAgentServerLauncher() as launcher:
        yield launcher


# --- the token ---------------------------------------------------------------------------------------------------------


def test_the_token_file_is_readable_by_its_user_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tokens: list[str] = []
    threads = [
        threading.Thread(target=lambda: tokens.append(load_token().proof("client", "agents", "a", "b")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(tokens)) == 1, "the first writer wins"
    assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
    assert [path.name for path in token_file().parent.iterdir()] == ["token"]
    token_file().chmod(0o644)
    with pytest.raises(AccessDenied, match="chmod 600"):
        load_token()
    token_file().chmod(0o600)
    token_file().rename(tmp_path / "elsewhere")
    token_file().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AccessDenied, match="not a link"):
        load_token()
    monkeypatch.setenv("PARAGENT_TOKEN", "x" * 16)
    assert load_token().proof("client", "agents", "a", "b") == Token("x" * 16).proof("client", "agents", "a", "b")
    monkeypatch.setenv("PARAGENT_TOKEN", "short")
    with pytest.raises(ConfigError):
        load_token()
    assert "x" * 16 not in repr(Token("x" * 16))


def test_a_wrong_token_is_rejected_on_both_sides(
    here: RpcAgentServerLauncher, caplog: pytest.LogCaptureFixture, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.transport.server._LOG_EVERY", 0.0)
    program = (
        "from tests.remote.agents import Worker\n"
        f"print(repr(Worker('w', to_dist={{'host': '{here.host}', 'port': {here.port}}}).add(1).exception(60)))"
    )
    environment = {**os.environ, "PARAGENT_TOKEN": "a token of somebody else"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert "AccessDenied" in done.stdout
    assert "PARAGENT_TOKEN" in done.stdout
    eventually(lambda: "wrong token" in caplog.text)
    assert at(here).add(1) == 2


@pytest.mark.slow
def test_a_client_with_a_wrong_proof_is_rejected_and_logged(
    here: RpcAgentServerLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    class Liar(ClientSide):
        def answer(self, challenge: bytes, hello: dict[str, Any]) -> bytes:
            return encode_message({"proof": json.loads(challenge)["proof"], "hello": hello})

    async def lie() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(here.address.target) as channel:
            call: Any = channel.stream_stream(METHOD)()
            side = Liar(Token("x" * 20), "agents")
            await call.write(side.begin())
            await call.write(side.answer(await call.read(), {"session": "0" * 32, "received": 0}))
            return await call.code()  # type: ignore[no-any-return]

    async def lie_often() -> list[grpc.StatusCode]:
        return await asyncio.gather(*(lie() for _ in range(20)))

    time.sleep(1.1)  # at most one line per second is logged
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "paragent.transport"):
        assert run(lie(), 10.0) is grpc.StatusCode.UNAUTHENTICATED
        assert time.monotonic() - began >= 0.3, "guessing is slow"
        assert "wrong token" in caplog.text
        assert set(run(lie_often(), 30.0)) == {grpc.StatusCode.UNAUTHENTICATED}
    lines = caplog.text.count("wrong token")
    assert lines <= 2 + (time.monotonic() - began), "many wrong proofs do not cause many log lines"


def test_a_proof_cannot_be_reused() -> None:
    token = Token("x" * 20)
    client, server = ClientSide(token, "agents"), ServerSide(token)
    opening = client.begin()
    second = client.answer(server.challenge(opening), {"a": 1})
    assert server.admit(second) == {"a": 1}
    again = ServerSide(token)
    again.challenge(opening)
    with pytest.raises(AccessDenied):
        again.admit(second)
    with pytest.raises(AccessDenied):
        ClientSide(token, "agents").answer(server.challenge(opening), {})


def test_every_grpc_status_has_an_error_type(here: RpcAgentServerLauncher) -> None:
    assert set(ERRORS) == set(grpc.StatusCode)
    for code in grpc.StatusCode:
        assert isinstance(error_of(code, None, here.address), ParagentError)


# --- arbitrary bytes ---------------------------------------------------------------------------------------------------


def record_and_replay(port: int, conversation: bytes) -> bytes:
    with connect_to(port) as connection:
        connection.settimeout(0.5)
        connection.sendall(conversation)
        received = b""
        with_end = False
        while not with_end:
            try:
                data = connection.recv(65536)
            except (TimeoutError, ConnectionError):
                break
            received += data
            with_end = not data
        return received


@pytest.fixture(scope="module")
def recorded(here: RpcAgentServerLauncher) -> bytes:
    """All bytes of a client that called `note` once, through a proxy that records them."""
    recorded: list[bytes] = []
    listener = socket.create_server(("localhost", 0))

    def forward() -> None:
        ours, _ = listener.accept()
        with ours, socket.create_connection(("localhost", here.port)) as theirs:

            def back() -> None:
                with contextlib.suppress(OSError):  # the client may disconnect before the server does
                    while data := theirs.recv(65536):
                        ours.sendall(data)

            returning = threading.Thread(target=back)
            returning.start()
            with contextlib.suppress(ConnectionError):  # a client that ends with unread data resets the connection
                while data := ours.recv(65536):
                    recorded.append(data)
                    theirs.sendall(data)
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            returning.join(60)

    forwarding = threading.Thread(target=forward)
    forwarding.start()
    program = f"""
from tests.remote.agents import Moderator, Worker
assert Worker("w", to_dist={{"host": "localhost", "port": {listener.getsockname()[1]}}}).note(1).result(60) == 1
"""
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)
    forwarding.join(60)
    listener.close()
    assert len(b"".join(recorded)) > 500
    return b"".join(recorded)


@pytest.mark.slow
def test_a_recorded_connection_cannot_be_replayed(here: RpcAgentServerLauncher, recorded: bytes) -> None:
    """Sending the same bytes again has no effect."""
    watching = at(here)
    before = link_of(watching).control("info").result(60)
    record_and_replay(here.port, recorded)
    after = link_of(watching).control("info").result(60)
    assert (after["clients"], after["agents"]) == (before["clients"], before["agents"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_truncated_and_modified_recordings_have_no_effect(
    here: RpcAgentServerLauncher, recorded: bytes, data: st.DataObject
) -> None:
    """The bytes of a real client, truncated anywhere, with some bytes changed, left out or repeated."""
    said = bytearray(recorded[: data.draw(st.integers(1, len(recorded)))])
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(said) - 1))
        what = data.draw(st.sampled_from(["change", "leave out", "repeat"]))
        if what == "change":
            said[place] ^= data.draw(st.integers(1, 255))
        elif what == "repeat":
            said[place:place] = said[place : place + 40]
        elif len(said) > 1:
            del said[place]
    with (
        connect_to(here.port) as connection,
        contextlib.suppress(ConnectionError),
    ):  # the server may close the connection early
        connection.sendall(said)


def test_a_request_path_that_is_not_utf_8_does_not_end_the_server(
    here: RpcAgentServerLauncher, recorded: bytes
) -> None:
    """gRPC's server ends when it reads such a path, even from an unauthenticated peer."""
    path = METHOD.encode()
    assert path in recorded
    agent = at(here)
    assert agent.add(1) == 2
    for _ in range(3):
        record_and_replay(here.port, recorded.replace(path, path[:5] + b"\xaf" + path[6:]))
        assert agent.add(1).result(20) == 2, "a connected client reconnects"
    assert at(here).add(1).result(20) == 2, "a new client can connect"


def connect_to(port: int) -> socket.socket:
    """Connect, and try again while the server restarts its listener."""
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("localhost", port), 5)
        time.sleep(0.05)
    return socket.create_connection(("localhost", port), 5)


def test_after_the_recordings_the_server_has_no_other_agents(here: RpcAgentServerLauncher) -> None:
    agent = at(here)
    assert agent.add(1) == 2
    assert link_of(agent).control("info").result(60)["agents"] <= 2, "this agent, and one that is being dropped"


def test_idle_unauthenticated_peers_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as many idle streams as the limit of handshakes are opened; a client with the token can still connect."""
    monkeypatch.setattr("paragent.transport.server._HANDSHAKE_SECONDS", 600.0)
    with RpcAgentServerLauncher(limits=Limits(handshakes=8)) as server:

        async def loiter() -> tuple[Any, list[Any]]:
            channel = grpc.aio.insecure_channel(server.address.target)
            method: Any = channel.stream_stream(METHOD)
            calls: list[Any] = [method() for _ in range(24)]
            await channel.channel_ready()
            return channel, calls

        channel, calls = run(loiter(), 10.0)
        assert at(server).add(1).result(60) == 2
        assert len(calls) == 24
        wait_until(lambda: sum(call.done() for call in calls) >= 16)
        run(channel.close(), 10.0)


def test_a_peer_that_sends_nothing_is_dropped(here: RpcAgentServerLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.transport.server._HANDSHAKE_SECONDS", 0.1)

    async def wait() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(here.address.target) as channel:
            call: Any = channel.stream_stream(METHOD)()
            return await call.code()  # type: ignore[no-any-return]

    assert run(wait(), 30.0) is grpc.StatusCode.DEADLINE_EXCEEDED


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_on_the_port_have_no_effect(here: RpcAgentServerLauncher, noise: bytes, preface: bool) -> None:
    start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if preface else b""
    with connect_to(here.port) as connection, contextlib.suppress(ConnectionError):  # as above
        connection.sendall(start + noise)


def test_after_random_bytes_the_server_still_works(here: RpcAgentServerLauncher) -> None:
    assert at(here).add(1) == 2


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_random_messages_instead_of_a_handshake_are_rejected(
    here: RpcAgentServerLauncher, messages: list[bytes]
) -> None:
    async def send() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(here.address.target) as channel:
            call: Any = channel.stream_stream(METHOD)()
            try:
                for message in messages:
                    await call.write(message)
                await call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            return await call.code()  # type: ignore[no-any-return]

    assert run(send(), 10.0) is not grpc.StatusCode.OK


@pytest.mark.parametrize(
    "nonce",
    ["\ud800" * 64, "g" * 64, "A" * 64, "\u0663" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n", 5, None],
    ids=["surrogates", "letters", "capitals", "digits", "short", "long", "newline", "number", "none"],
)
def test_a_nonce_that_is_not_hexadecimal_is_rejected(
    here: RpcAgentServerLauncher, caplog: pytest.LogCaptureFixture, nonce: Any
) -> None:
    """It is rejected before it is used, without an unexpected exception."""

    async def send() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(here.address.target) as channel:
            call: Any = channel.stream_stream(METHOD)()
            await call.write(encode_message({"service": "agents", "nonce": nonce}))
            return await call.code()  # type: ignore[no-any-return]

    with caplog.at_level(logging.ERROR):
        assert run(send(), 10.0) is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records
    with pytest.raises(ProtocolError, match="hexadecimal"):
        ClientSide(Token("x" * 20), "agents").answer(encode_message({"nonce": nonce, "proof": ""}), {})


@pytest.mark.slow
def test_clients_that_disconnect_before_the_welcome_leave_no_session() -> None:
    """They authenticate and disconnect, about half of them before the server has sent its welcome."""
    with RpcAgentServerLauncher(lease=0.3, limits=Limits(sessions=50)) as server:

        async def disconnect() -> None:
            channel = grpc.aio.insecure_channel(server.address.target)
            call: Any = channel.stream_stream(METHOD)()
            side = ClientSide(load_token(), "agents")
            await call.write(side.begin())
            hello = {"session": os.urandom(16).hex(), "received": 0, "reconnect": False}
            await call.write(side.answer(await call.read(), hello))
            call.cancel()
            await channel.close()

        async def disconnect_often() -> None:
            await asyncio.gather(*(disconnect() for _ in range(40)))

        for _ in range(2):
            asyncio.run(disconnect_often())  # not on the server's loop, where the order of events would differ
            wait_until(lambda: server.info()["clients"] == 0)
        assert at(server).add(1).result(60) == 2


items = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
kinds = st.sampled_from([*sorted(name for name in protocol.__all__ if name[0].isupper()), "zz"])


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(kinds, st.lists(st.lists(items, max_size=7).map(tuple)) | items) | items, max_size=4))
def test_a_client_that_sends_random_messages_loses_only_its_own_session(
    here: RpcAgentServerLauncher, said: list[Any]
) -> None:
    async def talk() -> None:
        hello = {"session": os.urandom(16).hex(), "received": 0, "reconnect": False}
        stream, _ = await connect(here.address, "agents", load_token(), None, hello, 5.0)
        try:
            await stream.write(pickle.dumps((1, 0, (), said)))
            async with asyncio.timeout(0.05):
                await stream.read()
        except (ParagentError, TimeoutError):
            pass
        finally:
            await stream.close()

    run(talk(), 10.0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60) | items.map(pickle.dumps) | items.map(dump), items)
def test_a_restricted_server_reads_values_as_data_or_rejects_them(data: bytes, item: Any) -> None:
    policy = Policy((Worker,), accept_code=False, nesting=20)
    for value in (("p", data), ("M", data), ("p", data, {"digest": data}), ("d", data), ("d", item), (), (item,), item):
        try:
            thing = policy.decode(value)
        except (AccessDenied, LimitExceeded, ProtocolError):
            continue
        assert type(thing).__module__ in ("builtins", "paragent.messages")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=100), max_size=4))
def test_random_bytes_are_rejected_as_frames(messages: list[bytes]) -> None:
    assembler = Assembler(1000)
    try:
        for message in messages:
            assembler.feed(message)
    except (ProtocolError, LimitExceeded):
        pass


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(st.builds(CallResult, st.just(1), items), min_size=1, max_size=3), max_size=6), st.data())
def test_a_reliable_stream_survives_any_cut(frames: list[list[Any]], data: st.DataObject) -> None:
    """Whatever part was delivered before the cut, after resuming every frame was received once and in order."""
    here, there = ReliableStream(1 << 20), ReliableStream(1 << 20)
    received: list[Any] = []

    def hear(messages: list[bytes]) -> None:
        for message in messages:
            if (frame := there.receive(message)) is not None:
                received.extend(frame[1])

    for frame in frames:
        messages = here.next_frame(frame)
        if data.draw(st.booleans()):
            hear(messages)
        else:
            for lost in here.resume(there.received):
                hear(lost)
            there.resume(0)
    for lost in here.resume(there.received):
        hear(lost)
    assert repr(received) == repr([item for frame in frames for item in frame])


def test_a_repeated_frame_is_received_once() -> None:
    """An abandoned connection may still deliver frames that are repeated on the new one."""
    here, there = ReliableStream(1 << 20), ReliableStream(1 << 20)
    first, second = (here.next_frame([CancelCall(number)])[0] for number in (1, 2))
    received = [there.receive(message) for message in (first, first, second, first, second)]
    assert [frame and frame[1] for frame in received] == [[CancelCall(1)], None, [CancelCall(2)], None, None]
    assert there.received == 2


def test_inconsistent_frames_are_rejected() -> None:
    there = ReliableStream(1 << 20)
    with pytest.raises(ProtocolError, match="frame 2 came after frame 0"):
        there.receive(encode(2, 0, [CancelCall(1)], ())[0])
    with pytest.raises(ProtocolError, match="never sent"):
        there.receive(encode(1, 1, [CancelCall(1)], ())[0])
    with pytest.raises(ProtocolError, match="never sent"):
        there.resume(1)


def test_frames_with_classes_and_frames_beyond_the_limit_are_rejected() -> None:
    with pytest.raises(ProtocolError, match="names"):
        Assembler(1000).feed(pickle.dumps((1, 0, (), [("CancelCall", [(Worker,)])])))
    with pytest.raises(LimitExceeded):
        Assembler(1000).feed(pickle.dumps((1, 0, (2000,), [])))
    longer = Assembler(1000)
    assert longer.feed(pickle.dumps((1, 0, (3,), []))) is None
    with pytest.raises(ProtocolError, match="longer than announced"):
        longer.feed(b"four")
    large = [CallResult(1, "x" * (3 << 20))]
    assembler = Assembler(8 << 20)
    got = [
        frame
        for message in encode(1, 0, large, [b"y" * (2 << 20), b"z" * 70_000])
        if (frame := assembler.feed(message))
    ]
    assert got == [(1, 0, large, [b"y" * (2 << 20), b"z" * 70_000])]


def test_sessions_and_agents_are_limited() -> None:
    with RpcAgentServerLauncher(limits=Limits(sessions=1, agents=3)) as tight:
        agents = [at(tight) for _ in range(3)]
        assert [agent.add(1).result(60) for agent in agents] == [2] * 3

        async def second() -> None:
            hello = {"session": "1" * 32, "received": 0, "reconnect": False}
            await connect(tight.address, "agents", load_token(), None, hello, 5.0)

        with pytest.raises(LimitExceeded, match="1 client,"):
            run(second(), 10.0)
        with pytest.raises(LimitExceeded, match="limit"):
            at(tight).add(1).result(60)
        assert agents[0].add(1) == 2, "connected clients are not affected"
        agents.pop().stop().result(60)
        assert at(tight).add(1).result(60) == 2, "a session that ended makes room"
    with pytest.raises(ConfigError):
        Limits(sessions=0)


# --- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", "names"),
        )
    return folder


@pytest.mark.slow
def test_servers_support_tls_and_mutual_tls(certificates: Path) -> None:
    ca = str(certificates / "ca.pem")

    def pair(name: str) -> dict[str, str]:
        return {"cert": str(certificates / f"{name}.pem"), "key": str(certificates / f"{name}.key")}

    with RpcAgentServerLauncher(tls=TlsConf(**pair("server"))) as launcher:
        assert at(launcher, tls=TlsConf(ca=ca)).add(1) == 2
        assert "if it uses TLS, connect with to_dist(tls=TlsConf(ca=...))" in str(at(launcher).add(1).exception(60))
        assert isinstance(at(launcher, tls=TlsConf()).add(1).exception(60), ParagentError)
    with RpcAgentServerLauncher(tls=TlsConf(ca=ca, **pair("server"))) as launcher:
        assert at(launcher, tls=TlsConf(ca=ca, **pair("client"))).add(1) == 2
        error = at(launcher, tls=TlsConf(ca=ca)).add(1).exception(60)
        assert isinstance(error, ParagentError)
        assert "TlsConf(cert=..., key=...)" in str(error)
    for wrong in (TlsConf(ca="/none"), TlsConf(cert=ca), TlsConf()):
        with pytest.raises(ConfigError):
            wrong.server_credentials()


def test_results_are_passed_between_servers_over_tls(certificates: Path) -> None:
    """Directly if the second server has certificates, else through the caller; never without TLS."""
    ca = str(certificates / "ca.pem")

    def pair(name: str) -> dict[str, str]:
        return {"cert": str(certificates / f"{name}.pem"), "key": str(certificates / f"{name}.key")}

    client = TlsConf(ca=ca, **pair("client"))
    mutual = TlsConf(ca=ca, **pair("server"))
    child: Any = Worker("agent", to_dist=True)
    with (
        RpcAgentServerLauncher(tls=mutual) as first,
        RpcAgentServerLauncher(tls=mutual, custom_agent_classes=[Worker]) as second,
        RpcAgentServerLauncher(peer_tls=mutual) as third,
        RpcAgentServerLauncher() as fourth,
    ):
        source = at(first, tls=client)
        targets = [at(second, tls=client), at(third), at(fourth), child]
        assert [target.add(1).result(60) for target in targets] == [2] * 4
        for target in targets:
            assert target.echo(source.nap(0.1)).result(60) == "agent"
            assert target.echo(source.echo({"a": [1]})).result(60) == {"a": [1]}
        assert first.info()["clients"] == 4, (
            "this program, the second and third server, and the child; the fourth cannot"
        )
        assert source.echo(targets[0].nap(0.1)).result(60) == "agent"


@pytest.mark.parametrize("classes", [[], [Worker]], ids=["accepts code", "restricted"])
def test_results_go_through_the_caller_if_a_server_does_not_know_the_authority_of_another(
    certificates: Path, classes: list[type], caplog: pytest.LogCaptureFixture
) -> None:
    """Both servers use TLS with certificates of a private authority, and neither has `peer_tls`."""
    files = TlsConf(cert=str(certificates / "server.pem"), key=str(certificates / "server.key"))
    client = TlsConf(ca=str(certificates / "ca.pem"))
    with (
        RpcAgentServerLauncher(tls=files, custom_agent_classes=classes) as first,
        RpcAgentServerLauncher(tls=files, custom_agent_classes=classes) as second,
    ):
        source, target = at(first, tls=client), at(second, tls=client)
        assert target.add(1).result(60) == 2, "connected, so that the program knows that the server has certificates"
        assert target.echo(source.nap(0.1)).result(60) == "agent"
        large = source.echo(bytes(2 << 20))
        assert wait([large], 60) == ([large], [])
        assert len(target.echo(large).result(60)) == 2 << 20
        assert target.echo(x=source.nap(0.1)).result(60) == "agent"
        assert list(target.numbers(source.add(1))) == [0, 1]
        assert isinstance(target.echo(source.fail("value")).exception(60), ValueError)
        assert first.info()["clients"] == 1
    [record] = [one for one in caplog.records if "go through the clients" in one.getMessage()]
    assert f"results of localhost:{first.port}" in record.getMessage()
    assert "--peer-ca" in record.getMessage()


def test_agents_of_restricted_servers_call_each_other_over_tls(certificates: Path) -> None:
    files = {"cert": str(certificates / "server.pem"), "key": str(certificates / "server.key")}
    client = TlsConf(ca=str(certificates / "ca.pem"))
    with (
        RpcAgentServerLauncher(tls=TlsConf(**files), custom_agent_classes=[Worker]) as first,
        RpcAgentServerLauncher(
            tls=TlsConf(**files),
            custom_agent_classes=[Moderator],
            peer_tls=client,
            trusted_servers=[f"localhost:{first.port}"],
        ) as second,
        RpcAgentServerLauncher(
            tls=TlsConf(**files), custom_agent_classes=[Moderator], trusted_servers=[f"localhost:{first.port}"]
        ) as third,
    ):
        member = at(first, tls=client)
        for server, problem in ((second, ""), (third, "--peer-ca")):
            moderator: Any = Moderator([member], to_dist={"host": server.host, "port": server.port, "tls": client})
            error = moderator.ask(member, 1).exception(60)
            assert (problem in str(error)) if problem else error is None
