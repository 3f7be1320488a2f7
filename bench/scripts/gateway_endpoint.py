"""A chat completion endpoint that answers every request immediately with the same bytes. Prints its port; ends with its stdin."""

from __future__ import annotations

import asyncio
import json
import sys

TEXT = "I will look at the next file and compare both versions of the function before I change anything in it. " * 2
SHARED = {"id": "chatcmpl-1", "created": 1700000000, "model": "fast"}
USAGE = {"prompt_tokens": 1200, "completion_tokens": 44, "total_tokens": 1244}
MESSAGE = {"role": "assistant", "content": TEXT}


def _response(body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _plain() -> bytes:
    choice = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
    reply = {**SHARED, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return _response(json.dumps(reply).encode(), "application/json")


def _streamed() -> bytes:
    """Twenty pieces of text, as an endpoint sends them that generates several tokens at a time."""
    size = len(TEXT) // 20 + 1
    deltas = [{"content": TEXT[start : start + size]} for start in range(0, len(TEXT), size)]
    choices = [{"index": 0, "delta": one, "finish_reason": None} for one in ({"role": "assistant"}, *deltas)]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [{**SHARED, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    chunks.append({**SHARED, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return _response(events.encode(), "text/event-stream")


PLAIN, STREAMED = _plain(), _streamed()


class Endpoint(asyncio.Protocol):
    """One connection. Only the length of a request and whether it asks for a stream are read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = buffer[:end].lower()
            start = head.find(b"content-length:")
            length = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
            if len(buffer) < end + 4 + length:
                break
            body, buffer = buffer[end + 4 : end + 4 + length], buffer[end + 4 + length :]
            streamed = b'"stream":true' in body or b'"stream": true' in body
            self._transport.write(STREAMED if streamed else PLAIN)  # type: ignore[attr-defined]
        self._buffer = buffer


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Endpoint, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
