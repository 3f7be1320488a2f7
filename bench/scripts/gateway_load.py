"""Agents that call a model: `TURNS` turns each, with a history that grows, on one connection each.

Reads a JSON object from stdin: `targets`, a list of `[port, path, key]`, one for each agent; `streamed`; `one_by_one`. Prints
the seconds of all calls together, the CPU seconds of this process, and the median seconds of a call. It uses little CPU time,
because it shares the cores with what is measured: requests are prepared before, and of a response only the end is searched.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

TURNS = 25
TEXT = "I will look at the next file and compare both versions of the function before I change anything in it. " * 2
RESULT = "def area(width, height):\n    return width * height\n" * 8
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file of the project and return its text, with the numbers of the lines.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def requests(path: str, key: str, streamed: bool) -> list[bytes]:
    """Return the requests of one agent."""
    messages = [{"role": "system", "content": "You are a careful programmer. " * 10}]
    made = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{turn}: {RESULT}"})
        request = {"model": "any", "messages": messages, "tools": [TOOL]} | ({"stream": True} if streamed else {})
        body = json.dumps(request, separators=(",", ":")).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        made.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        messages.append({"role": "assistant", "content": TEXT})
    return made


class Agent(asyncio.Protocol):
    """Sends the next request when the whole response to the last one is there."""

    def __init__(self, todo: list[bytes], times: list[float], done: asyncio.Future[None]) -> None:
        self._todo, self._times, self._done = iter(todo), times, done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def start(self) -> None:
        self._send()

    def _send(self) -> None:
        request = next(self._todo, None)
        if request is None:
            self._transport.close()
            self._done.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = buffer[:end].lower()
        start = head.find(b"content-length:")
        if start >= 0:
            length = int(head[start + 15 :].split(b"\r\n", 1)[0])
            whole = len(buffer) >= end + 4 + length
        else:
            whole = buffer.endswith(b"0\r\n\r\n")
        if not whole:
            return
        if not head.startswith(b"http/1.1 200") or TEXT[:9].encode() not in buffer:
            self._done.set_exception(RuntimeError(f"a call failed: {buffer[:500]!r}"))
            return
        self._times.append(time.perf_counter() - self._began)
        self._buffer = b""
        self._send()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError("the connection was closed"))


async def connected(
    target: tuple[int, str, str], streamed: bool, times: list[float]
) -> tuple[Agent, asyncio.Future[None]]:
    port, path, key = target
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    _, agent = await loop.create_connection(
        lambda: Agent(requests(path, key, streamed), times, done), "127.0.0.1", port
    )
    return agent, done


async def main() -> None:
    given = json.loads(sys.stdin.read())
    times: list[float] = []
    agents = [await connected(target, given["streamed"], times) for target in given["targets"]]
    began, cpu = time.perf_counter(), time.process_time()
    for agent, done in agents:
        agent.start()
        if given["one_by_one"]:
            await done
    await asyncio.gather(*(done for _, done in agents))
    seconds = time.perf_counter() - began
    assert len(times) == TURNS * len(agents)
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu, "median": statistics.median(times)}))


if __name__ == "__main__":
    asyncio.run(main())
