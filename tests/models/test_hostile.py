"""Attacks on the model client: requests of agents that cannot be sent, and endpoints that send without an end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paragent.errors import EndpointDown, RequestRejected
from paragent.models import Completion, ModelSettings, open_model

EVENT = {"choices": [{"delta": {"content": "x" * 1000}}]}
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def ask(url: str, request: dict[str, Any], **settings: Any) -> Completion:
    model = open_model(ModelSettings(name="m", base_url=url, api_key="k", max_retries=0, **settings))
    try:
        return await model.forward(request)
    finally:
        await model.close()


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("content", [float("nan"), float("inf"), nested(5000)], ids=["nan", "inf", "deep"])
def test_a_request_that_json_cannot_represent_is_the_fault_of_the_agent(content: Any, api: str, stream: bool) -> None:
    """An agent could otherwise make the endpoint look as if it were down, and its rollout be repeated."""
    request = {"messages": [{"role": "user", "content": "?"}], "input": "?", "max_tokens": 1, "metadata": content}
    with pytest.raises(RequestRejected, match="cannot be written as JSON"):
        asyncio.run(ask("http://127.0.0.1:9/v1", request, api=api, stream=stream))


@contextlib.asynccontextmanager
async def endpoint(head: bytes, part: bytes) -> AsyncIterator[str]:
    """An endpoint that answers with a head and then repeats a part until the client closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):  # also if the test ends first
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while part and not writer.is_closing():
                writer.write(part)
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


ENDLESS = [
    (False, PLAIN + b"\r\n" + b'{"a": "', b"x" * 10_000),
    (False, PLAIN + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * 50_000_000), b""),
    (
        True,
        PLAIN.replace(b"application/json", b"text/event-stream") + b"\r\n",
        b"data: " + json.dumps(EVENT).encode() + b"\n\n",
    ),
]


@pytest.mark.parametrize(("stream", "head", "part"), ENDLESS, ids=["plain", "compressed", "streamed"])
def test_a_reply_without_an_end_is_given_up(
    stream: bool, head: bytes, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("http_session", "http_client"):
        monkeypatch.setattr(f"paragent.models.{module}.MOST_REPLY_BYTES", 1_000_000)

    async def run() -> None:
        async with endpoint(head, part) as url:
            await asyncio.wait_for(ask(url, {"messages": []}, stream=stream), 60)

    with pytest.raises(EndpointDown, match="more than 0 MB"):
        asyncio.run(run())
