"""Attacks on the gateway: foreign keys, other hosts, malformed, oversize and slow requests."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest

from paragent.gateway import Gateway, GatewayAddress
from tests.gateway.scripted_handler import ScriptedHandler
from tests.gateway.test_server import ask, on_event_loop
from tests.waiting import wait_until_async

BODY = json.dumps({"model": "any", "messages": [{"role": "user", "content": "?"}]}).encode()


async def raw(address: GatewayAddress, request: bytes, *, path: str = "") -> bytes:
    """Send bytes to the gateway and return everything that it answers until it closes the connection."""
    if path:
        reader, writer = await asyncio.open_unix_connection(path)
    else:
        port = int(address.url.split(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def post(address: GatewayAddress, body: bytes = BODY, *, path: str = "", **headers: str) -> bytes:
    """Return a request that ends its connection."""
    given = {
        "Host": "127.0.0.1",
        "Authorization": f"Bearer {address.key}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    target = path or f"/{address.url.split('/')[3]}/v1/chat/completions"
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@on_event_loop
async def test_the_key_of_one_rollout_does_not_open_another(gateway: Gateway) -> None:
    mine, other = ScriptedHandler("mine"), ScriptedHandler("other")
    my_address, other_address = gateway.register(mine), gateway.register(other)
    stolen = GatewayAddress(other_address.url, my_address.key)
    assert status_of(await raw(stolen, post(stolen))) == 401
    assert status_of(await raw(stolen, post(stolen), path=gateway.unix_path(stolen))) == 401
    await gateway.end(other_address)
    assert status_of(await raw(stolen, post(stolen))) == 401  # and not 410: the key is wrong
    assert not other.bodies
    assert status_of(await raw(my_address, post(my_address))) == 200


KEYS = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    "Basic {key}",
    "{key}",
    "Bearer {key}x",
    "Bearer \xff\xfe",
    "bearer {key} x",
]


@pytest.mark.parametrize("given", KEYS)
@on_event_loop
async def test_a_call_without_the_key_is_refused(gateway: Gateway, given: str) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    answer = await raw(address, post(address, Authorization=given.format(key=address.key)))
    assert status_of(answer) == 401
    assert address.key.encode() not in answer
    assert not handler.bodies


@on_event_loop
async def test_unknown_rollouts_and_ended_ones_are_told_apart_only_with_the_key(gateway: Gateway) -> None:
    address = gateway.register(ScriptedHandler())
    await gateway.end(address)
    unknown = GatewayAddress(address.url.replace(address.path, "A" * 16), address.key)
    wrong = GatewayAddress(address.url, "wrong")
    answers = [await raw(one, post(one)) for one in (unknown, wrong, address)]
    assert list(map(status_of, answers)) == [401, 401, 410]
    assert answers[0].partition(b"\r\n\r\n")[2] == answers[1].partition(b"\r\n\r\n")[2]


HOSTS = ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254", "localhost.evil", "[::2]"]


@pytest.mark.parametrize("host", HOSTS)
@on_event_loop
async def test_requests_for_other_hosts_are_refused(gateway: Gateway, host: str) -> None:
    """A page whose name was rebound to 127.0.0.1 sends its own name."""
    handler = ScriptedHandler()
    address = gateway.register(handler)
    assert status_of(await raw(address, post(address, Host=host))) == 403
    assert not handler.bodies
    for good in ("localhost", "127.0.0.1:8080", "[::1]:80", "LOCALHOST:1"):
        assert status_of(await raw(address, post(address, Host=good))) == 200


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b'"text"',
    b"null",
    b"NaN",
    b"\xff\xfe{}",
    b'{"messages": ' + b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"{}" + b"\x00",
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:12]))
@on_event_loop
async def test_a_malformed_body_gets_400(gateway: Gateway, body: bytes) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    answer = await raw(address, post(address, body))
    assert status_of(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "not_json"
    assert await ask(address) == "42"


HEADS = [
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Evil: a\rb\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: repr(head[:40]))
@on_event_loop
async def test_malformed_requests_are_refused_and_logged_nowhere(
    gateway: Gateway, head: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    address = gateway.register(ScriptedHandler())
    answer = await raw(address, head)
    assert 400 <= status_of(answer) < 500
    assert await ask(address) == "42"
    assert capfd.readouterr().err == ""
    assert not caplog.records


@on_event_loop
async def test_texts_of_a_request_do_not_reach_the_headers_of_the_response(gateway: Gateway) -> None:
    async def fail(body: dict[str, Any]) -> str:
        raise LookupError(body["messages"][0]["content"])

    address = gateway.register(ScriptedHandler(fail))
    body = json.dumps({"messages": [{"role": "user", "content": "a\r\nX-Evil: 1\r\n\r\n<html>"}]}).encode()
    for target in ("", f"/{address.path}/v1/models/x%0d%0aX-Evil:%201"):
        head, _, rest = (await raw(address, post(address, body, path=target))).partition(b"\r\n\r\n")
        assert b"evil" not in head.lower()
        assert json.loads(rest)["error"]


PATHS = ["/", "//", "/{path}", "/{path}/", "/{path}/v1", "/{path}/../x/v1/models", "/{path}/v1/chat/completions/"]
PATHS += ["http://127.0.0.1/{path}/v1/chat/completions", "/v1/chat/completions", "/{path}/mcp"]


@pytest.mark.parametrize("path", PATHS)
@on_event_loop
async def test_other_paths_are_refused(gateway: Gateway, path: str) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    assert status_of(await raw(address, post(address, path=path.format(path=address.path)))) in {401, 404}
    assert not handler.bodies


@pytest.mark.parametrize("chunked", [False, True])
@on_event_loop
async def test_a_request_that_is_too_large_gets_413(
    gateway: Gateway, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.gateway.calls.MOST_BYTES", 100_000)
    handler = ScriptedHandler()
    address = gateway.register(handler)
    large = b'{"messages": "' + b"x" * 200_000 + b'"}'
    if chunked:
        head = post(address, b"", Content_Length="", Transfer_Encoding="chunked")
        answer = await raw(address, head + f"{len(large):x}\r\n".encode() + large + b"\r\n0\r\n\r\n")
    else:
        answer = await raw(address, post(address, large))
    assert status_of(answer) == 413
    assert not handler.bodies
    assert await ask(address) == "42"  # its bytes are no longer counted


@on_event_loop
async def test_a_compressed_request_is_limited_by_its_real_size(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.gateway.calls.MOST_BYTES", 1_000_000)
    handler = ScriptedHandler()
    address = gateway.register(handler)
    bomb = gzip.compress(b'{"a": "' + b"0" * 50_000_000 + b'"}')
    assert len(bomb) < 100_000
    assert status_of(await raw(address, post(address, bomb, Content_Encoding="gzip"))) == 413
    assert status_of(await raw(address, post(address, gzip.compress(BODY), Content_Encoding="gzip"))) == 200


@on_event_loop
async def test_all_requests_of_a_rollout_together_are_limited(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.gateway.calls.MOST_BYTES", 100_000)
    free = asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        await free.wait()
        return "42"

    handler, other = ScriptedHandler(wait), ScriptedHandler()
    address, other_address = gateway.register(handler), gateway.register(other)
    body = json.dumps({"messages": ["x" * 60_000]}).encode()
    first = asyncio.create_task(raw(address, post(address, body)))
    await handler.called.wait()
    assert status_of(await raw(address, post(address, body))) == 413
    assert status_of(await raw(other_address, post(other_address, body))) == 200
    free.set()
    assert status_of(await first) == 200
    assert status_of(await raw(address, post(address, body))) == 200


@on_event_loop
async def test_a_body_that_does_not_arrive_is_given_up(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.gateway.calls.BODY_TIMEOUT", 0.2)
    handler = ScriptedHandler()
    address = gateway.register(handler)
    half = post(address)[:-10]
    slow = asyncio.create_task(raw(address, half))
    assert await ask(address) == "42"  # others are answered meanwhile
    answer = await slow
    assert status_of(answer) == 400
    assert b"slow_request" in answer
    assert len(handler.bodies) == 1


@on_event_loop
async def test_a_body_that_arrives_after_the_end_of_the_rollout_is_refused(gateway: Gateway) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.url.split(":")[2].partition("/")[0]))
    request = post(address)
    writer.write(request[:-10])
    await writer.drain()
    assert await ask(address) == "42"  # by now the gateway has read the first part of the slow request
    await gateway.end(address)
    writer.write(request[-10:])
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert status_of(answer) == 410
    assert b"rollout_ended" in answer
    assert len(handler.bodies) == 1, "the late call did not reach the model"


@on_event_loop
async def test_more_calls_than_the_limit_wait(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.gateway.calls.MOST_CALLS", 2)
    free = asyncio.Event()
    active, most = 0, 0

    async def wait(_: dict[str, Any]) -> str:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await free.wait()
        active -= 1
        return "42"

    handler, other = ScriptedHandler(wait), ScriptedHandler("other")
    address, other_address = gateway.register(handler), gateway.register(other)
    calls = [asyncio.create_task(ask(address)) for _ in range(6)]
    await wait_until_async(lambda: active == 2, what="two calls")
    assert await ask(other_address) == "other"
    free.set()
    assert await asyncio.gather(*calls) == ["42"] * 6
    assert most == 2


@on_event_loop
async def test_an_mcp_server_gets_requests_with_the_key_only(gateway: Gateway) -> None:
    seen: list[str] = []

    async def answer(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        seen.append((await request.read()).decode())
        return aiohttp.web.Response(text="tools")

    address = gateway.register(ScriptedHandler(), mcp=answer)
    async with aiohttp.ClientSession() as session:
        for key, status in (("wrong", 401), (address.key, 200)):
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(address.mcp_url, data=key, headers=headers) as response:
                assert response.status == status
    assert seen == [address.key]


@pytest.mark.parametrize("value", [b"[],", b'{"":0},', b"0,"])
@on_event_loop
async def test_a_request_of_many_small_values_is_limited_by_the_memory_that_they_take(
    gateway: Gateway, value: bytes
) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    body = b'{"messages": [' + value * (12 * 2**20 // len(value)) + b"0]}"
    assert status_of(await raw(address, post(address, body))) == 413
    assert not handler.bodies
    assert await ask(address) == "42"  # they are no longer counted


@on_event_loop
async def test_a_long_conversation_is_within_the_limit(gateway: Gateway) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    text = "One, two, three: a text with commas. " * 50_000
    screenshots = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2**20}}] * 50
    messages = [{"role": "user", "content": [{"type": "text", "text": text}, *screenshots]}]
    assert status_of(await raw(address, post(address, json.dumps({"messages": messages}).encode()))) == 200


async def connect(gateway: Gateway, address: GatewayAddress, sent: bytes = b"") -> asyncio.StreamReader:
    """Open a connection that stays open until the test ends, and send bytes."""
    reader, writer = await asyncio.open_unix_connection(gateway.unix_path(address))
    writer.write(sent)
    test = asyncio.current_task()
    assert test is not None
    test.add_done_callback(lambda _: writer.close())  # a writer that is garbage closes its connection
    return reader


@on_event_loop
async def test_connections_without_a_request_do_not_use_up_the_descriptors(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.gateway.connections.MOST_STRANGERS", 5)
    address = gateway.register(ScriptedHandler())
    halves = (b"", b"POST / HTTP/1.1\r\n", post(address)[:40], post(address)[:20])
    silent = [await connect(gateway, address, halves[number % 4]) for number in range(20)]
    closed = await asyncio.wait_for(asyncio.gather(*(one.read() for one in silent[:15])), 20)
    assert not any(closed), "the oldest are closed without an answer"
    assert not any(one.at_eof() for one in silent[15:])
    assert await ask(address) == "42"


@on_event_loop
async def test_idle_connections_of_a_rollout_are_closed_when_it_has_too_many(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.gateway.connections.MOST_CONNECTIONS", 3)
    address, other = gateway.register(ScriptedHandler()), gateway.register(ScriptedHandler("other"))
    kept = post(other, Connection="keep-alive")
    others = await connect(gateway, other, kept)
    await others.readuntil(b"\r\n\r\n")
    mine = [await connect(gateway, address, post(address, Connection="keep-alive")) for _ in range(9)]
    for one in mine:
        assert b" 200 " in await asyncio.wait_for(one.readline(), 20)
    await asyncio.wait_for(asyncio.gather(*(one.read() for one in mine[:6])), 20)
    assert not others.at_eof(), "another rollout keeps its connections"
    assert await ask(address) == "42"


@on_event_loop
async def test_a_rollout_with_too_many_calls_is_refused_and_others_are_not(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.gateway.connections.MOST_CONNECTIONS", 3)
    free = asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        await free.wait()
        return "42"

    handler = ScriptedHandler(wait)
    address, other = gateway.register(handler), gateway.register(ScriptedHandler("other"))
    calls = [asyncio.create_task(raw(address, post(address))) for _ in range(3)]
    await wait_until_async(lambda: len(handler.bodies) == 3, what="three calls")
    refused = await raw(address, post(address, Connection="keep-alive"))
    assert status_of(refused) == 429
    assert b"x-should-retry: false" in refused.lower()
    assert await ask(other) == "other"
    free.set()
    assert [status_of(answer) for answer in await asyncio.gather(*calls)] == [200] * 3
