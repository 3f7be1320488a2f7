"""Calls of one rollout: reading the request, waiting for the reply, and sending it, also as a stream."""

from __future__ import annotations

import asyncio
import contextvars
import json
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from paragent.gateway.errors import Refusal, error_body, refusal_of
from paragent.models.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

__all__ = [
    "BODY_TIMEOUT",
    "COMMENT_INTERVAL",
    "ENDED",
    "MOST_BYTES",
    "MOST_CALLS",
    "MOST_TOOL_BYTES",
    "SILENCE",
    "GatewayHandler",
    "RegisteredRollout",
]

ENDED = (410, "rollout_ended", "the rollout has ended")
MOST_BYTES = 256 * 2**20
"""The limit of one request, and of all requests of one rollout that are being answered. A conversation with a hundred
screenshots of 1 MB each has 130 MB."""
MOST_TOOL_BYTES = 16 * 2**20
"""The limit of one request to the MCP server."""
_VALUE_BYTES = 100
"""What each value of a request counts in addition. An empty list has two bytes and takes 64 when it is parsed, so that a request
of 256 MB could take 7 GB."""
MOST_CALLS = 64
"""Calls of one rollout that are answered at a time; more of them wait. Agents with many sub-agents use a few dozen."""
BODY_TIMEOUT = 60.0
"""Seconds for the body of a request to arrive; on loopback the largest takes one."""
SILENCE = 5.0
"""Seconds before a streamed response begins without a reply. An error until then has its own HTTP status."""
COMMENT_INTERVAL = 10.0
"""Seconds between the comments of a stream; clients and proxies close connections that are silent for 30 s or longer."""
_WRITE_TIMEOUT = 60.0
"""Seconds for a client to accept the events of a stream."""
_TOO_LARGE = (413, "request_too_large", f"the requests of a rollout take at most {MOST_BYTES // 2**20} MB at a time")
_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


class GatewayHandler(Protocol):
    """Answers the calls of one rollout."""

    @property
    def model_name(self) -> str:
        """The name of the model, for `v1/models`."""

    async def forward(self, dialect: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """Answer a request.

        Args:
            dialect: its protocol: `chat`, `responses` or `anthropic`.
            body: the request.

        Returns:
            The reply in the same protocol, not streamed.

        Raises:
            TurnsUsedUp: the rollout may not call the model again.
            AgentError: the request cannot be answered because of its content.
            Exception: the endpoint failed.
        """


class RegisteredRollout:
    """A rollout that may call the model. Its calls run in the context in which it was registered.

    So the time that a call waits for the endpoint, and the tokens that it uses, are those of the rollout.

    Args:
        key: the key that its calls must have.
        handler: answers them.
        mcp: answers the requests to its MCP server; None: it has none.
    """

    def __init__(
        self,
        key: str,
        handler: GatewayHandler,
        mcp: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] | None,
    ) -> None:
        self.key = key.encode()
        self.handler = handler
        self.mcp = mcp
        self._context = contextvars.copy_context()
        self._slots = asyncio.Semaphore(MOST_CALLS)
        self._calls: set[asyncio.Task[Mapping[str, Any]]] = set()
        self._bytes = 0
        """The size of the requests that are being answered."""
        self._ended = False

    async def end(self) -> None:
        """Cancel the calls and wait for them; later ones are refused."""
        self._ended = True
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def answer(self, request: web.BaseRequest, dialect: str) -> web.StreamResponse:
        """Answer a call to the model. If the client disconnects, the call is cancelled.

        Raises:
            Refusal: there is no reply.
        """
        async with self._slots:
            content = await self._read(request)
            size = len(content) + _VALUE_BYTES * _values(content)
            self._bytes += size - len(content)
            try:
                if self._bytes > MOST_BYTES:
                    raise Refusal(*_TOO_LARGE)
                body = _parsed(content)
                del content  # the parsed request is enough
                if self._ended:
                    raise Refusal(*ENDED)
                call = asyncio.create_task(self._forward(dialect, body), context=self._context.copy())
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                try:
                    if body.get("stream"):
                        return await _stream(request, call, dialect, body)
                    return web.Response(body=_as_json(await _reply_of(call)), content_type="application/json")
                finally:
                    call.cancel()
            finally:
                self._bytes -= size

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request.

        Raises:
            Refusal: it is too large, or does not arrive.
        """
        chunks: list[bytes] = []
        if (request.content_length or 0) > MOST_BYTES:
            raise Refusal(*_TOO_LARGE)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for chunk in request.content.iter_any():
                    chunks.append(chunk)
                    self._bytes += len(chunk)
                    if self._bytes > MOST_BYTES:
                        raise Refusal(*_TOO_LARGE)
        except BaseException as error:
            self._bytes -= sum(map(len, chunks))
            if isinstance(error, TimeoutError):
                raise Refusal(400, "slow_request", f"the request did not arrive within {BODY_TIMEOUT:g} s") from None
            raise
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _forward(self, dialect: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """Return the reply of the handler.

        Raises:
            Refusal: it has none.
        """
        try:
            return await self.handler.forward(dialect, body)
        except Exception as error:  # every failure is a response; the handler has recorded it
            raise refusal_of(error) from error


async def _reply_of(call: asyncio.Task[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Wait for a reply.

    Raises:
        Refusal: there is none, or the rollout has ended.
    """
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the client has disconnected
        raise Refusal(*ENDED) from None


async def _stream(
    request: web.BaseRequest, call: asyncio.Task[Mapping[str, Any]], dialect: str, body: dict[str, Any]
) -> web.StreamResponse:
    """Answer a streamed request when the whole reply is there; comments keep the connection open until then.

    Raises:
        Refusal: there is no reply, and the response has not begun.
    """
    await asyncio.wait((call,), timeout=SILENCE)
    if call.done():
        return web.Response(
            body=b"".join(DIALECTS[dialect].stream(await _reply_of(call), body)), headers=_STREAM_HEADERS
        )
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    await response.prepare(request)
    while not call.done():
        await _write(response, b": waiting for the model\n\n")
        await asyncio.wait((call,), timeout=COMMENT_INTERVAL)
    try:
        events: Iterable[bytes] = DIALECTS[dialect].stream(await _reply_of(call), body)
    except Refusal as refusal:
        event = b"" if dialect == "chat" else b"event: error\n"
        events = [event + b"data: " + _as_json(error_body(refusal, dialect)) + b"\n\n"]
    await _write(response, b"".join(events))
    return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(_WRITE_TIMEOUT):
        await response.write(data)


def _values(content: bytes) -> int:
    """Return at least the number of values in a JSON text; commas and brackets in strings count, too."""
    return sum(map(content.count, (b",", b"[", b"{")))


def _parsed(content: bytes) -> dict[str, Any]:
    """Return a request as JSON.

    Raises:
        Refusal: it is not a JSON object.
    """
    try:
        body = json.loads(content.decode())  # not of bytes, for which `json` guesses the encoding
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(400, "not_json", f"the request is not valid JSON: {why}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "not_json", "the request is not a JSON object")
    return body


_encoder = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` would construct one for each reply


def _as_json(value: Any) -> bytes:
    return _encoder.encode(value).encode()
