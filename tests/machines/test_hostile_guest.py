"""Replies of a hostile machine take bounded time and memory and raise `MachineFailed`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from paragent import MachineFailed
from paragent.machines import Machine
from paragent.machines.guest_client import JSON_BYTES, GuestReply, GuestRequest
from paragent.osworld.browser import browser_address
from paragent.osworld.controller import Controller

Answer = Callable[[socket.socket], None]
LIMIT = 1 << 20


@contextmanager
def guest(answer: Answer) -> Iterator[int]:
    """Call `answer` for every connection after its request arrived."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)
    assert not thread.is_alive()


def says(data: bytes) -> Answer:
    return lambda connection: connection.sendall(data)


def repeats(head: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    """Send `piece` until the client closes the connection."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in itertools.count():
            connection.sendall(piece)
            time.sleep(pause)

    return answer


def send_both(port: int, timeout: float = 20.0, limit: int = LIMIT) -> list[GuestReply | MachineFailed]:
    """Send a request with the sync and with the async client."""
    request = GuestRequest("127.0.0.1", port, "GET", "/", timeout=timeout, limit=limit)
    given: list[GuestReply | MachineFailed] = []
    try:
        given.append(request.send())
    except MachineFailed as error:
        given.append(error)
    try:
        given.append(asyncio.run(request.send_async()))
    except MachineFailed as error:
        given.append(error)
    return given


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a body without a length": repeats(OK + b"\r\n", b"x" * 65536),
    "chunks": repeats(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    "a chunk of a chosen length": says(OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\n"),
    "the length of a chunk": repeats(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 1024),
    "a length that is too large": says(OK + b"Content-Length: 99999999999\r\n\r\n"),
    "a header": repeats(OK + b"X: ", b"x" * 65536),
    "headers": repeats(OK, b"X: y\r\n" * 1024),
    "no line at all": repeats(b"", b"x" * 65536),
}
MALFORMED = {
    "a negative length": OK + b"Content-Length: -1\r\n\r\n",
    "a length with a sign": OK + b"Content-Length: +5\r\n\r\nhello",
    "a length with underscores": OK + b"Content-Length: 1_0\r\n\r\n0123456789",
    "a length that is no number": OK + b"Content-Length: many\r\n\r\n",
    "digits beyond any number": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a chunk of negative length": OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "less than it announced": OK + b"Content-Length: 10\r\n\r\nhello",
    "chunks that do not end": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "a head that does not end": OK + b"X: y",
    "no status": b"HTTP/1.1\r\n\r\n",
    "a status of many digits": b"HTTP/1.1 2000000 OK\r\n\r\n",
    "something else": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "nothing": b"",
}
WELL_FORMED = {
    "a length": OK + b"Content-Length: 5\r\n\r\nhello and more",
    "the end of the connection": OK + b"\r\nhello",
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n2;name=value\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_reply_is_rejected_within_the_limit(answer: Answer) -> None:
    with guest(answer) as port:
        tracemalloc.start()
        try:
            given = send_both(port)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [type(each) for each in given] == [MachineFailed, MachineFailed]
    assert most < 8 * LIMIT


@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_reply_is_a_failure_of_the_machine(answer: bytes) -> None:
    with guest(says(answer)) as port:
        assert [type(each) for each in send_both(port)] == [MachineFailed, MachineFailed]


@pytest.mark.parametrize("answer", WELL_FORMED.values(), ids=WELL_FORMED)
def test_replies_with_a_length_chunked_and_until_the_end_are_understood(answer: bytes) -> None:
    with guest(says(answer)) as port:
        assert send_both(port) == [GuestReply(200, b"hello"), GuestReply(200, b"hello")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        repeats(OK + b"Content-Length: 1000000\r\n\r\n", b"x", 0.05),
        repeats(OK, b"X: y\r\n", 0.05),
        repeats(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.05),
    ],
    ids=["a body", "headers", "chunks"],
)
def test_the_time_limit_covers_the_whole_reply(answer: Answer) -> None:
    """Each byte arrives long before the time limit of one receive."""
    with guest(answer) as port:
        began = time.monotonic()
        given = send_both(port, timeout=0.5)
        assert time.monotonic() - began < 20  # without a limit of the whole reply it would take hours
    assert [type(each) for each in given] == [MachineFailed, MachineFailed]


def test_the_limit_of_a_file_can_be_set() -> None:
    with guest(says(OK + b"Content-Length: 5\r\n\r\nhello")) as port:
        machine = Machine("m0", "127.0.0.1", port)
        assert machine.get_file("x", limit=5) == b"hello"
        with pytest.raises(MachineFailed, match="larger than 4 bytes"):
            machine.get_file("x", limit=4)


def test_a_request_cannot_contain_a_second_one() -> None:
    with (
        guest(says(OK + b"Content-Length: 0\r\n\r\n")) as port,
        pytest.raises(MachineFailed, match="control characters"),
    ):
        GuestRequest("127.0.0.1", port, "GET", "/x HTTP/1.1\r\nX-Paragent-Token: y", timeout=5).send()


BODIES: tuple[object, ...] = (
    [],
    5,
    None,
    "text",
    {"returncode": "many"},
    {"output": 1, "returncode": [1]},
    {"width": "x", "height": {}, "returncode": "1"},
    {"width": math.inf, "height": math.nan, "returncode": math.inf},
)


@pytest.mark.parametrize("body", [*map(json.dumps, BODIES), "[" * 100_000, "\udcff"], ids=repr)
def test_replies_with_wrong_types_are_failures_of_the_machine(body: str) -> None:
    data = body.encode(errors="surrogateescape")
    with guest(says(OK + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)) as port:
        machine = Machine("m0", "127.0.0.1", port)
        controller = Controller(machine)
        with pytest.raises(MachineFailed):
            machine.execute("true")
        for question in (
            controller.accessibility_tree,
            controller.cursor_position,
            controller.screen_size,
            controller.desktop_path,
            lambda: controller.list_directory("/"),
        ):
            with pytest.raises(MachineFailed):
                asyncio.run(question())


def test_a_machine_cannot_set_the_address_of_its_browser() -> None:
    """The address that a machine reports for its DevTools could be a service of this host."""
    came = threading.Event()

    def note(connection: socket.socket) -> None:
        came.set()

    with guest(note) as other:

        def reported(url: str) -> Answer:
            body = json.dumps({"webSocketDebuggerUrl": url}).encode()
            return says(OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

        with guest(reported(f"ws://127.0.0.1:{other}/devtools/browser/1-a")) as port:
            assert asyncio.run(browser_address(f"127.0.0.1:{port}")) == f"ws://127.0.0.1:{port}/devtools/browser/1-a"
        for url in (f"http://127.0.0.1:{other}/x", "ws://x/a b", "ws://x/?y", "ws://x/\r\nX: y", "5", "ws://x/@y"):
            with guest(reported(url)) as port, pytest.raises(MachineFailed):
                asyncio.run(browser_address(f"127.0.0.1:{port}"))
    assert not came.is_set()


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"0,"])
def test_large_json_is_not_parsed(piece: bytes) -> None:
    many = b"[" + piece * (JSON_BYTES // len(piece)) + b"0]"
    tracemalloc.start()
    try:
        with pytest.raises(MachineFailed, match="write to a file"):
            GuestReply(200, many).json()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_large_accessibility_tree_is_parsed() -> None:
    tree = "<node>" * 500_000
    assert GuestReply(200, json.dumps({"AT": tree}).encode()).fields() == {"AT": tree}
