"""A model behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

import openai

from paragent.errors import ConfigError, ContextFull, EndpointDown, EndpointRefused, RequestRejected
from paragent.models.base import Completion, Model, ModelSettings
from paragent.models.limiter import Limiter
from paragent.models.patience import Patience
from paragent.models.secrets import DEFAULT_URL, NO_KEY
from paragent.models.streaming import assemble
from paragent.tasks.working import doing, waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.models.base import GatePlace
    from paragent.models.gate.member import GateMember

__all__ = ["OpenAIChat"]

_CONNECT_LIMIT = 10.0
"""Seconds to connect: longer than any healthy handshake across the world."""
_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_TOO_LONG = {"context_length_exceeded", "string_above_max_length"}
_TOO_LONG_WORDS = ("maximum context length", "context window", "too many tokens", "prompt is too long")


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
        self._limiter = Limiter(settings.most_requests)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._member: GateMember | None = None

    def pressure(self) -> tuple[int, int]:
        """Return what the limiter counts."""
        return self._limiter.in_flight, self._limiter.limit

    async def complete(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Completion:
        """Ask until there is an answer or no point in asking."""
        if self._member is None and self.settings.gate is not None:
            self._join(self.settings.gate)
        request = self._request(messages, tools)
        patience = Patience(self.settings.max_retries)
        while True:
            await self._enter()
            doing("generating")
            try:
                completion = await self._ask(request)
                self._answered()
            except (openai.APIError, ValueError) as error:
                pause = self._judge(error, patience)
            else:
                return completion
            finally:
                self._leave()
            with waiting("retrying", pause):
                await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the connections."""
        if self._member is not None:
            self._member.close()
        await self._client.close()

    def _join(self, gate: GatePlace) -> None:
        """Share the endpoint's limit with the other workers of the run; until somebody answers there, decide alone."""
        from paragent.models.gate.member import GateMember

        loop, settings = asyncio.get_running_loop(), self.settings

        def changed(share: int | None, closed: float) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._follow, share, closed)

        def state() -> tuple[int, int]:
            return self._limiter.in_flight, self._limiter.in_flight + len(self._queue)

        self._member = GateMember(gate, settings.name, settings.most_requests, state, changed)

    def _follow(self, share: int | None, closed: float) -> None:
        if share is None:
            self._limiter.decide_alone()
        else:
            self._limiter.follow(share, closed)
        self._call_next()

    def _answered(self) -> None:
        self._limiter.answered()
        if self._member is not None:
            self._member.answered()

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
        """Make one request. The client's typed models would be built and taken apart again for nothing: half of its time."""
        if self.settings.stream:
            stream = await self._client.chat.completions.create(**request)
            reply = await assemble(stream)
        else:
            reply = await self._client.post("/chat/completions", body=request, cast_to=dict[str, Any])
        return _completion(reply)

    def _judge(self, error: Exception, patience: Patience) -> float:
        """Return the seconds after which to ask again.

        Raises:
            ContextFull, RequestRejected, EndpointRefused, EndpointDown: asking again is of no use.
        """
        if isinstance(error, openai.RateLimitError):
            if error.code in _NO_CREDIT:
                raise EndpointRefused(
                    f"the endpoint has no credit for {self.settings.name!r}: {error.message}"
                ) from error
            retry_after = _retry_after(error)
            self._limiter.throttled(retry_after)
            if self._member is not None:
                self._member.throttled(retry_after)
            pause = patience.after_refusal(retry_after)
        else:
            if isinstance(error, openai.APIStatusError) and error.status_code < 500:
                _raise_final(error, self.settings.name)
            self._limiter.troubled()
            if self._member is not None:
                self._member.troubled()
            pause = patience.after_error()
            if pause is not None and isinstance(error, openai.APIStatusError):
                pause = max(pause, _retry_after(error) or 0.0)
        if pause is None:
            raise EndpointDown(
                f"the endpoint {self._client.base_url} failed {patience.errors + 1} times for one turn, last with "
                f"{type(error).__name__}: {error}"
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
            with waiting("waiting for the endpoint", self._limiter.opens_in() or None):
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
        if self._queue and (closed := self._limiter.opens_in()) > 0:
            asyncio.get_running_loop().call_later(closed, self._call_next)


def _http_client(settings: ModelSettings) -> Any:
    """Return the client's aiohttp transport: it needs half the processor time of the default one."""
    return openai.DefaultAioHttpClient(
        base_url=settings.base_url or DEFAULT_URL,
        timeout=openai.Timeout(settings.request_limit, connect=_CONNECT_LIMIT),
    )


def _completion(reply: Any) -> Completion:
    """Read the endpoint's reply.

    Raises:
        ValueError: it is no chat completion.
    """
    try:
        choice = reply["choices"][0]
        said = choice["message"]
        message = {"role": "assistant", "content": said.get("content")}
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"the endpoint's reply is no chat completion: {str(reply)[:200]!r}") from error
    if said.get("tool_calls"):
        message["tool_calls"] = said["tool_calls"]
    usage = reply.get("usage")
    counted = (
        {name: int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")}
        if isinstance(usage, dict)
        else None
    )
    return Completion(message, counted, str(choice.get("finish_reason") or "stop"))


def _raise_final(error: openai.APIStatusError, model: str) -> None:
    """Raise what a refusal that will not change means; return where another try may help."""
    if error.code in _TOO_LONG or any(words in error.message.lower() for words in _TOO_LONG_WORDS):
        raise ContextFull(error.message) from error
    if error.status_code in {401, 403, 404}:
        raise EndpointRefused(
            f"the endpoint refuses model {model!r} (HTTP {error.status_code}): {error.message}. Check OPENAI_BASE_URL, "
            "OPENAI_API_KEY and --model"
        ) from error
    if error.status_code not in {408, 409}:
        raise RequestRejected(f"HTTP {error.status_code}: {error.message}") from error


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Return the seconds that the endpoint asks to wait, where it says so in seconds."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(error.response.headers[name]) * scale)
        except (KeyError, ValueError):
            continue
    return None
