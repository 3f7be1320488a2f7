"""JSON calls over a stream: both ends, in one process and over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import pytest

from paragent.errors import AccessDenied, ConfigError, LeaseLost, ParagentError, ProtocolError, ServerLost
from paragent.transport import Address, Token
from paragent.transport.client import ClientStream, connect
from paragent.transport.json_calls import JsonClient, JsonConnection
from paragent.transport.limits import MESSAGE_BYTES
from paragent.transport.loop import run
from paragent.transport.server import RpcServer, ServerStream


class Pipe:
    """One end of a stream in memory."""

    def __init__(self, incoming: asyncio.Queue[bytes | None], outgoing: asyncio.Queue[bytes | None]) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def read(self) -> bytes:
        message = await self._incoming.get()
        if message is None:
            raise ServerLost("the peer closed the stream")
        return message

    async def write(self, message: bytes) -> None:
        self._outgoing.put_nowait(message)

    def end(self) -> None:
        self._outgoing.put_nowait(None)


def pipes() -> tuple[Pipe, Pipe]:
    first: asyncio.Queue[bytes | None] = asyncio.Queue()
    second: asyncio.Queue[bytes | None] = asyncio.Queue()
    return Pipe(first, second), Pipe(second, first)


@dataclass
class Machine:
    name: str


class Methods:
    """What the server of these tests offers."""

    def __init__(self) -> None:
        self.notified: list[int] = []
        self.cancelled = 0

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def sleep(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "slept"

    async def machine(self) -> Machine:
        return Machine("m1")

    async def fail(self, kind: str) -> None:
        raise {"lease": LeaseLost, "config": ConfigError, "value": ValueError}[kind](f"{kind} failed")

    async def unsendable(self) -> object:
        return object()

    async def note(self, number: int) -> None:
        await asyncio.sleep(0.01 if number == 0 else 0)
        self.notified.append(number)

    async def repeat(self, text: str, times: int) -> str:
        return text * times

    def table(self) -> dict[str, Any]:
        names = ("add", "sleep", "machine", "fail", "unsendable", "note", "repeat")
        return {name: getattr(self, name) for name in names}


class Ends:
    """A client and a server that are connected in memory."""

    def __init__(self) -> None:
        self.near, self.far = pipes()
        self.methods = Methods()
        self.client = JsonConnection(self.near, errors=[LeaseLost], other_errors=AccessDenied)
        self.server = JsonConnection(self.far, self.methods.table())

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(end.serve()) for end in (self.client, self.server)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(limited())


def test_calls_run_concurrently_and_answers_come_in_any_order() -> None:
    async def program() -> None:
        async with Ends() as ends:
            slow = asyncio.create_task(ends.client.call("sleep", 0.2))
            assert await ends.client.call("add", 1, 2) == 3
            assert not slow.done()
            assert await slow == "slept"
            assert await ends.client.call("machine") == {"name": "m1"}

    in_loop(program())


def test_a_long_message_is_sent_in_parts() -> None:
    async def program() -> None:
        async with Ends() as ends:
            part = MESSAGE_BYTES + 1
            answers = await asyncio.gather(*(ends.client.call("repeat", mark, 3 * part) for mark in "+.x"))
            assert [answer.count(mark) for answer, mark in zip(answers, "+.x", strict=True)] == [3 * part] * 3
            assert len(await ends.client.call("repeat", "." * part, 1)) == part
            with pytest.raises(AccessDenied, match="the limit is"):
                await ends.client.call("repeat", "x", 40 << 20)
            assert await ends.client.call("add", 1, 2) == 3

    in_loop(program())


@pytest.mark.parametrize("parts", [[b"+{", b"{}"], [b"+{", b""], [b".{"], [b"+" + bytes(1 << 20)] * 40])
def test_malformed_parts_end_the_connection(parts: list[bytes]) -> None:
    async def program() -> None:
        near, far = pipes()
        for part in parts:
            await far.write(part)
        with pytest.raises(ProtocolError):
            await JsonConnection(near).serve()

    in_loop(program())


def test_both_ends_can_call() -> None:
    async def double(number: int) -> int:
        return 2 * number

    async def program() -> None:
        near, far = pipes()
        first, second = JsonConnection(near, {"double": double}), JsonConnection(far)
        tasks = [asyncio.create_task(end.serve()) for end in (first, second)]
        assert await second.call("double", 4) == 8
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    in_loop(program())


def test_errors_keep_a_listed_type_and_get_the_default_type_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "paragent.transport")

    async def program() -> None:
        async with Ends() as ends:
            for arguments, kind, message in (
                (("fail", "lease"), LeaseLost, "lease failed"),
                (("fail", "config"), AccessDenied, "config failed"),
                (("fail", "value"), AccessDenied, "ValueError: value failed"),
                (("unsendable",), AccessDenied, "TypeError: a object cannot be sent as JSON"),
                (("add", 1), AccessDenied, "TypeError"),
                (("missing",), AccessDenied, "unknown method 'missing'"),
            ):
                with pytest.raises(ParagentError, match=message) as raised:
                    await ends.client.call(*arguments)
                assert type(raised.value) is kind
            assert await ends.client.call("add", 1, 2) == 3

    in_loop(program())


def test_notifications_run_in_the_order_in_which_they_were_sent() -> None:
    async def program() -> None:
        async with Ends() as ends:
            for number in range(3):
                await ends.client.notify("note", number)
            await ends.client.call("add", 0, 0)
            assert ends.methods.notified == [0, 1, 2]

    in_loop(program())


@pytest.mark.parametrize(
    "message",
    [
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"id": "x", "method": "add", "args": []}',
        b'{"id": 1, "method": 3, "args": []}',
        b'{"method": "missing", "args": []}',
        b'{"method": "note", "args": 5}',
        b'{"method": "note", "args": [1, 2]}',
    ],
)
def test_a_malformed_message_ends_the_connection(message: bytes) -> None:
    async def program() -> None:
        async with Ends() as ends:
            await ends.near.write(message)
            with pytest.raises(ProtocolError):
                await ends.tasks[1]

    in_loop(program())


def test_a_call_with_malformed_arguments_gets_an_error() -> None:
    async def program() -> None:
        near, far = pipes()
        server = asyncio.create_task(JsonConnection(far, Methods().table()).serve())
        await near.write(b'{"id": 1, "method": "add", "args": 5}')
        assert json.loads(await near.read())["error"]["type"] == "ProtocolError"
        server.cancel()
        await asyncio.wait([server])

    in_loop(program())


def test_a_malformed_error_is_reported() -> None:
    async def program() -> None:
        near, far = pipes()
        client = JsonConnection(near)
        reading = asyncio.create_task(client.serve())
        calling = asyncio.create_task(client.call("add"))
        await far.read()
        await far.write(b'{"id": 0, "error": 5}')
        await far.write(b'{"id": 0, "result": 5}')  # a second answer is ignored
        with pytest.raises(ProtocolError, match="malformed error"):
            await calling
        reading.cancel()
        await asyncio.wait([reading])

    in_loop(program())


def test_a_stream_that_ends_fails_pending_calls_and_cancels_running_ones() -> None:
    async def program() -> None:
        async with Ends() as ends:
            pending = asyncio.create_task(ends.client.call("sleep", 60))
            await ends.client.call("add", 0, 0)
            ends.far.end()
            ends.near.end()
            with pytest.raises(ServerLost, match="the peer closed the stream"):
                await pending
            with pytest.raises(ServerLost, match="the peer closed the stream"):
                await ends.client.call("add", 0, 0)
            await asyncio.wait(ends.tasks)
            assert ends.methods.cancelled == 1

    in_loop(program())


def test_a_write_that_fails_leaves_no_unread_error() -> None:
    class Closing(Pipe):
        """Fails a write after the end of the stream has been read."""

        reader: asyncio.Task[NoReturn]

        async def write(self, message: bytes) -> None:
            self._incoming.put_nowait(None)
            await asyncio.wait([self.reader])
            raise ServerLost("the connection is closed")

    async def program() -> None:
        unread: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
        stream = Closing(asyncio.Queue(), asyncio.Queue())
        connection = JsonConnection(stream)
        stream.reader = asyncio.create_task(connection.serve())
        with pytest.raises(ServerLost, match="the connection is closed"):
            await connection.call("add", 1, 2)
        with pytest.raises(ServerLost, match="the peer closed the stream"):
            await stream.reader
        gc.collect()
        assert unread == []

    in_loop(program())


# --- over gRPC ------------------------------------------------------------------------------------------------------------

_TOKEN = Token("x" * 20)


class _Service:
    def __init__(self) -> None:
        self.connections = 0

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        return {}, None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        self.connections += 1
        await JsonConnection(stream, Methods().table()).serve()


def test_a_client_connects_when_needed_and_again_after_the_server_restarted() -> None:
    async def program() -> None:
        service = _Service()
        server = RpcServer(Address.of("127.0.0.1", 0), {"test": service}, _TOKEN)
        port = await server.start()

        async def open_stream() -> ClientStream:
            return (await connect(Address("127.0.0.1", port), "test", _TOKEN, None, {}, 60.0))[0]

        client = JsonClient(open_stream, errors=[LeaseLost])
        assert service.connections == 0
        assert await asyncio.gather(*(client.call("add", n, 1) for n in range(20))) == list(range(1, 21))
        assert service.connections == 1, "concurrent calls share one connection"
        with pytest.raises(LeaseLost):
            await client.call("fail", "lease")

        pending = asyncio.create_task(client.call("sleep", 60))
        await client.call("add", 0, 0)
        await server.stop(0)
        with pytest.raises(ServerLost):
            await pending
        server = RpcServer(Address.of("127.0.0.1", port), {"test": service}, _TOKEN)
        await server.start()
        assert await client.call("add", 2, 2) == 4
        assert service.connections == 2

        pending = asyncio.create_task(client.call("sleep", 60))
        await client.call("add", 0, 0)
        await client.close()
        with pytest.raises(ServerLost):
            await pending
        await client.close()
        with contextlib.suppress(TimeoutError):
            await server.stop(0)

    run(program(), 60)


class _Deaf:
    """Reads nothing, so that writes of the client wait."""

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        return {}, None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        await asyncio.get_running_loop().create_future()


def test_closing_a_stream_fails_a_write_that_waits() -> None:
    async def program() -> None:
        server = RpcServer(Address.of("127.0.0.1", 0), {"test": _Deaf()}, _TOKEN)
        port = await server.start()
        stream, _ = await connect(Address("127.0.0.1", port), "test", _TOKEN, None, {}, 60.0)

        async def write() -> None:
            while True:
                await stream.write(bytes(MESSAGE_BYTES))

        writing = asyncio.create_task(write())
        done, _ = await asyncio.wait([writing], timeout=0.5)
        assert not done
        await stream.close()
        with pytest.raises(ServerLost, match="the connection was closed"):
            await writing
        await server.stop(0)

    run(program(), 60)
