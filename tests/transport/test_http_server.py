"""Connections without a request do not keep others out of `HttpServer`."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from paragent.transport import http_server
from paragent.transport.http_server import CLOSE, HttpServer
from tests.waiting import wait_until

HEADERS = {"authorization": "right"}


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer 200 with the size of the body to requests with the right header, 401 to all others."""
    right = (b"authorization", b"right") in scope["headers"]
    body, more = b"", right
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [] if right else [(name.encode(), value.encode()) for name, value in CLOSE.items()]
    text = str(len(body)).encode()
    headers.append((b"content-length", str(len(text)).encode()))
    await send({"type": "http.response.start", "status": 200 if right else 401, "headers": headers})
    await send({"type": "http.response.body", "body": text})


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(lambda _: answer, "127.0.0.1", 0, "the server of a test") as started:
        yield started


@contextlib.contextmanager
def connected(server: HttpServer, number: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        sockets = []
        for _ in range(number):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            with contextlib.suppress(ConnectionError):
                one.sendall(sent)
            sockets.append(one)
        yield sockets


def status(server: HttpServer, body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", "/", body, HEADERS)
        response = connection.getresponse()
        assert int(response.read()) == len(body)
        return response.status


REFUSED_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nbegin"


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", REFUSED_BODY, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 500],
    ids=["silent", "half a line", "half of the headers", "half a body without a token", "many requests, nothing read"],
)
def test_clients_without_a_token_keep_nobody_out(server: HttpServer, sent: bytes) -> None:
    with connected(server, 400, sent):
        assert status(server) == 200


def test_the_oldest_connections_without_a_request_are_closed(server: HttpServer) -> None:
    with connected(server, http_server.MOST_IDLE + 5) as sockets:
        for closed in sockets[:5]:
            with contextlib.suppress(ConnectionResetError):
                assert closed.recv(1) == b""
        newest = sockets[-1]
        newest.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: right\r\n\r\n")
        assert newest.recv(100).startswith(b"HTTP/1.1 200")


def test_headers_have_a_time_limit_even_if_they_arrive_in_drops(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_TIMEOUT", 0.3)
    with connected(server, 1, b"GET / HTTP/1.1\r\n") as [slow]:

        def closed() -> bool:
            try:
                slow.sendall(b"A: b\r\n")
            except ConnectionError:
                return True
            return False

        wait_until(closed, 10, what="the end of the connection")


def test_an_authenticated_request_may_take_longer_than_its_headers(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_TIMEOUT", 0.2)
    start = b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: right\r\nContent-Length: 6\r\n\r\nabc"
    with connected(server, 1, start) as [slow], connected(server, 1) as [silent]:
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""  # closed after the time limit
        slow.sendall(b"def")
        assert slow.recv(100).startswith(b"HTTP/1.1 200")


def test_a_large_body_arrives(server: HttpServer) -> None:
    assert status(server, b"x" * (8 << 20)) == 200
