"""A model behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import openai

from paragent._internal.text import well_formed_data
from paragent.errors import ConfigError, EndpointDown, ToolsUnsupported
from paragent.models.base import Completion, Model, ModelSettings, count_reply
from paragent.models.credentials import DEFAULT_URL, NO_KEY
from paragent.models.rate_limit.limiter import Limiter
from paragent.models.replies import MalformedReply, listed_calls, read_reply, text_of
from paragent.models.retry import Backoff, cause_of, raise_if_final, retry_after, short_cause
from paragent.models.tool_text import as_text, calls_in, with_calls
from paragent.tasks import doing, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from paragent.models.base import RateLimitAddress
    from paragent.models.rate_limit.client import RateLimitClient

__all__ = ["OpenAIChat", "assemble"]


async def assemble(stream: AsyncIterator[Any]) -> dict[str, Any]:
    """Return the completion whose chunks, as parsed JSON, `stream` yields, in the form of one that was not streamed.

    Raises:
        MalformedReply: a chunk cannot be read, or the stream ended before the answer did.
    """
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    usage: Any = None
    finish_reason = None
    async for chunk in stream:
        try:
            usage = chunk.get("usage") or usage
            for choice in (chunk.get("choices") or ())[:1]:
                finish_reason = choice.get("finish_reason") or finish_reason
                delta = (
                    choice.get("delta") or choice.get("message") or {}
                )  # a server that does not stream sends the latter
                text.append(text_of(delta.get("content")) or "")
                for position, piece in enumerate(listed_calls(delta.get("tool_calls"))):
                    _add(calls, piece, position)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise MalformedReply(f"a chunk of the stream cannot be read ({error}): {str(chunk)[:200]}", usage) from None
    if finish_reason is None:
        raise MalformedReply("the stream was cut before the answer ended", usage)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}


def _add(calls: dict[int, dict[str, Any]], piece: dict[str, Any], position: int) -> None:
    """Add a piece to its call; some servers leave the index out, which then is the piece's position in its chunk."""
    index = piece.get("index")
    index = index if isinstance(index, int) else position
    call = calls.setdefault(index, {"id": "", "function": {"name": "", "arguments": ""}})
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or piece
    if isinstance(function.get("arguments"), dict):
        call["function"]["arguments"] = function["arguments"]
    else:
        call["function"]["arguments"] += function.get("arguments") or ""
    call["function"]["name"] += function.get("name") or ""


_CONNECT_LIMIT = 10.0
"""Seconds to connect: longer than any healthy handshake across the world."""


class OpenAIChat(Model):
    """Asks with the `openai` client; how often and how many at a time is decided here, over all rollouts of the process.

    Raises:
        ConfigError: there is no key.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        if not settings.api_key:
            raise ConfigError(NO_KEY)
        self._client = openai.AsyncOpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url,
            max_retries=0,
            timeout=settings.request_limit,
            http_client=_http_client(settings),
        )
        self._host = self._client.base_url.netloc.decode()
        self._native_calls = False
        """Whether the endpoint has returned a tool call as such: it then supports them."""
        self._limiter = Limiter(settings.most_requests)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Calls the queue when a place becomes free by itself."""
        self._member: RateLimitClient | None = None

    def pressure(self) -> tuple[int, int]:
        """Return what the limiter counts."""
        return self._limiter.in_flight, self._limiter.limit

    async def complete(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Completion:
        """Ask until there is an answer or no point in asking.

        Raises:
            ToolsUnsupported: the model writes its tool calls as text; see `ModelSettings.tool_format`.
        """
        if self._member is None and self.settings.rate_limit is not None:
            self._join(self.settings.rate_limit)
        if tools and self.settings.tool_format == "text":
            return with_calls(await self._answer(self._request(as_text(messages, tools), [])), tools)
        completion = await self._answer(self._request(messages, tools))
        self._check_tools(completion, tools)
        return completion

    async def _answer(self, request: dict[str, Any]) -> Completion:
        """Return the answer to a request, which is made again as long as that may help."""
        backoff = Backoff(self.settings.max_retries)
        while True:
            await self._enter()
            doing("generating")
            began = time.monotonic()
            try:
                completion = await self._ask(request)
                self._answered(time.monotonic() - began)
            except UnicodeEncodeError as error:
                request, pause, why = _encodable(request, error), 0.0, "a lone surrogate"
            except (openai.APIError, ValueError) as error:
                if isinstance(error, MalformedReply):
                    count_reply(self.settings.name, error.usage)
                pause, why = self._judge(error, backoff, with_tools="tools" in request), short_cause(error)
            else:
                return completion
            finally:
                self._leave()
            with waiting(f"retrying after {why} from {self._host}", pause):
                await asyncio.sleep(pause)

    def _check_tools(self, completion: Completion, tools: Sequence[dict[str, Any]]) -> None:
        """Find out whether the endpoint understands the tool calls of its model; one that has returned a call does.

        Raises:
            ToolsUnsupported: the message has a call in its text.
        """
        if completion.message.get("tool_calls"):
            self._native_calls = True
        elif tools and not self._native_calls and calls_in(completion.message["content"] or "", tools):
            count_reply(self.settings.name, completion.usage)
            raise ToolsUnsupported(
                f"{self._host} returns tool calls of {self.settings.name!r} as text: use --tool-format text, or have the "
                "server parse them (vLLM: --enable-auto-tool-choice --tool-call-parser ...)"
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        if self._member is not None:
            self._member.close()
        await self._client.close()

    def _join(self, rate_limit: RateLimitAddress) -> None:
        """Share the endpoint's limit with the other workers of the run; until somebody answers there, decide alone."""
        from paragent.models.rate_limit.client import RateLimitClient

        loop, settings = asyncio.get_running_loop(), self.settings

        def changed(share: int | None, closed: float) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._follow, share, closed)

        def state() -> tuple[int, int]:
            return self._limiter.in_flight, self._limiter.in_flight + len(self._queue)

        self._member = RateLimitClient(rate_limit, settings.name, settings.most_requests, state, changed)

    def _follow(self, share: int | None, closed: float) -> None:
        if share is None:
            self._limiter.decide_alone()
        else:
            self._limiter.follow(share, closed)
        self._call_next()

    def _answered(self, seconds: float) -> None:
        self._limiter.answered(seconds)
        if self._member is not None:
            self._member.answered(seconds)

    def _request(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        settings = self.settings
        request: dict[str, Any] = {"model": settings.name, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        if settings.temperature is not None:
            request["temperature"] = settings.temperature
        if settings.max_tokens is not None:
            request["max_tokens"] = settings.max_tokens
        if settings.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return request

    async def _ask(self, request: dict[str, Any]) -> Completion:
        """Make one request. The client's typed models are not built: they cost half of its time and check nothing."""
        client = self._client
        try:
            if self.settings.stream:
                stream_type = openai.AsyncStream[object]
                stream = await client.post(
                    "/chat/completions", body=request, cast_to=object, stream=True, stream_cls=stream_type
                )
                return read_reply(await assemble(stream))
            return read_reply(await client.post("/chat/completions", body=request, cast_to=dict[str, Any]))
        except RecursionError:
            raise MalformedReply("not a chat completion: nested too deeply") from None

    def _judge(self, error: Exception, backoff: Backoff, *, with_tools: bool) -> float:
        """Return the seconds after which to ask again.

        Raises:
            ContextFull, RequestRejected, EndpointRefused, EndpointDown: asking again is of no use.
        """
        raise_if_final(error, self.settings.name, str(self._client.base_url), with_tools=with_tools)
        asked = retry_after(error.response.headers) if isinstance(error, openai.APIStatusError) else None
        if isinstance(error, openai.RateLimitError):
            general = self._limiter.throttled(asked)
            if self._member is not None:
                self._member.throttled(asked)
            pause = backoff.after_refusal(asked, general=general)
        else:
            self._limiter.troubled()
            if self._member is not None:
                self._member.troubled()
            pause = backoff.after_error()
            pause = None if pause is None else max(pause, asked or 0.0)
        if pause is None:
            raise EndpointDown(
                f"the endpoint {self._client.base_url} failed {backoff.errors + 1} times for one turn, last with "
                f"{cause_of(error, self.settings.request_limit)}"
            ) from error
        return pause

    async def _enter(self) -> None:
        """Wait for a place among the requests in flight, in the order of arrival."""
        if not self._queue and self._limiter.admit():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._call_next()
        try:
            closed = self._limiter.opens_in()
            why = f"waiting for {self._host}" + (", which sent 429" if closed else "")
            with waiting(why, closed or None):
                await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            elif turn in self._queue:
                self._queue.remove(turn)
            raise

    def _leave(self) -> None:
        self._limiter.leave()
        self._call_next()

    def _call_next(self) -> None:
        while self._queue and self._limiter.admit():
            turn = self._queue.popleft()
            if turn.done():
                self._limiter.leave()
            else:
                turn.set_result(None)
        if self._queue and (wait := self._limiter.frees_in()) > 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(wait, self._call_next)


def _encodable(request: dict[str, Any], error: UnicodeEncodeError) -> dict[str, Any]:
    """Return a request without the lone surrogates that an agent put into it.

    Raises:
        ConfigError: it has none, so that it is the key or the address that cannot be sent.
    """
    sent = well_formed_data(request)
    if sent == request:
        raise ConfigError(
            f"OPENAI_API_KEY or OPENAI_BASE_URL has characters that cannot be sent: {error.reason}"
        ) from None
    assert isinstance(sent, dict)
    return sent


def _http_client(settings: ModelSettings) -> Any:
    """Return the client's aiohttp transport: it needs half the processor time of the default one."""
    return openai.DefaultAioHttpClient(
        base_url=settings.base_url or DEFAULT_URL,
        timeout=openai.Timeout(settings.request_limit, connect=_CONNECT_LIMIT),
    )
