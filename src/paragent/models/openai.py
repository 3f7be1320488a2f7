"""Client for OpenAI-compatible chat completion endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import time
from collections import deque
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import openai
from pydantic import BaseModel

from paragent._internal.text import well_formed_data
from paragent.errors import ConfigError, EndpointDown, ToolsUnsupported
from paragent.execution import doing, waiting
from paragent.messages import without_reasoning
from paragent.models.base import Completion, Model, ModelSettings, count_reply
from paragent.models.credentials import DEFAULT_URL, NO_KEY
from paragent.models.rate_limit import Limiter
from paragent.models.replies import MalformedReply, assemble_stream, read_reply
from paragent.models.retry import Backoff, cause_of, raise_if_final, retry_after, short_cause
from paragent.models.tool_text import as_text, calls_in, with_calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.models.base import RateLimitAddress
    from paragent.models.rate_limit_client import RateLimitClient

__all__ = ["OpenAIChat"]


_CONNECT_LIMIT = 10.0
"""Seconds to connect; intercontinental handshakes take less than one."""


class OpenAIChat(Model):
    """A model of an endpoint, called with the `openai` client. Retries and the rate limit cover all rollouts of the process.

    Raises:
        ConfigError: the settings have no API key.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        if not settings.api_key:
            raise ConfigError(NO_KEY)
        self._http = _http_client(settings)
        self._client = openai.AsyncOpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url,
            max_retries=0,
            timeout=settings.request_timeout,
            http_client=self._http,
        )
        self._host = self._client.base_url.netloc.decode()
        self._native_calls = False
        """Whether the endpoint has returned a tool call, so that it supports them."""
        self._limiter = Limiter(settings.max_concurrency)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Runs `_admit_waiting` when a slot becomes free without a request ending."""
        self._shared_limit: RateLimitClient | None = None

    def pressure(self) -> tuple[int, int]:
        """Return the number of requests in flight and the current limit."""
        return self._limiter.in_flight, self._limiter.limit

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Send the request, with retries; see `Model.complete`.

        Raises:
            ToolsUnsupported: the endpoint returns tool calls as text; see `ModelSettings.tool_format`.
        """
        if self._shared_limit is None and self.settings.rate_limit is not None:
            self._connect_rate_limit(self.settings.rate_limit)
        messages = without_reasoning(messages)
        if tools and self.settings.tool_format == "text":
            return with_calls(
                await self._send_with_retries(self._request(as_text(messages, tools), [], options)), tools
            )
        completion = await self._send_with_retries(self._request(messages, tools, options))
        self._check_tools(completion, tools)
        return completion

    async def _send_with_retries(self, request: dict[str, Any]) -> Completion:
        """Send a request, again after errors that may pass, and return the answer."""
        backoff = Backoff(self.settings.max_retries)
        retries, waited = 0, 0.0
        while True:
            waited += await self._acquire()
            doing("generating")
            began = time.monotonic()
            try:
                completion = await self._send(request)
                self._record_answer(time.monotonic() - began)
            except UnicodeEncodeError as error:
                request, pause, why = _encodable(request, error), 0.0, "a lone surrogate"
            except (openai.APIError, ValueError) as error:
                if isinstance(error, MalformedReply):
                    count_reply(self.settings.name, error.usage)
                pause, why = self._pause_after(error, backoff, with_tools="tools" in request), short_cause(error)
                retries += 1
            else:
                return replace(completion, waited=waited, retries=retries) if waited or retries else completion
            finally:
                self._release()
            with waiting(f"retrying after {why} from {self._host}", pause):
                await asyncio.sleep(pause)
            waited += pause

    def _check_tools(self, completion: Completion, tools: Sequence[dict[str, Any]]) -> None:
        """Check that the endpoint parses the tool calls of its model. Once it has returned a tool call, it does.

        Raises:
            ToolsUnsupported: the text of the message has a tool call.
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
        """Close the connections. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._shared_limit is not None:
            self._shared_limit.close()
        await self._client.close()

    def _connect_rate_limit(self, rate_limit: RateLimitAddress) -> None:
        """Share the endpoint's rate limit with the other workers of the run. Until connected, use the own adaptive limit."""
        from paragent.models.rate_limit_client import RateLimitClient

        loop, settings = asyncio.get_running_loop(), self.settings

        def changed(share: int | None, closed: float) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._use_share, share, closed)

        def state() -> tuple[int, int]:
            return self._limiter.in_flight, self._limiter.in_flight + len(self._queue)

        self._shared_limit = RateLimitClient(rate_limit, settings.name, settings.max_concurrency, state, changed)

    def _use_share(self, share: int | None, closed: float) -> None:
        if share is None:
            self._limiter.clear_share()
        else:
            self._limiter.set_share(share, closed)
        self._admit_waiting()

    def _record_answer(self, seconds: float) -> None:
        self._limiter.answered(seconds)
        if self._shared_limit is not None:
            self._shared_limit.answered(seconds)

    def _request(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        settings, sampling = self.settings, self.settings.sampling
        request: dict[str, Any] = {**(options or {}), "model": settings.name, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        if sampling.temperature is not None:
            request["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            request["max_tokens"] = sampling.max_tokens
        if settings.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return request

    async def _send(self, request: dict[str, Any]) -> Completion:
        """Send one request. The client's typed models are not used: they take half of its time and validate nothing."""
        client = self._client
        try:
            if self.settings.stream:
                stream_type = openai.AsyncStream[object]
                stream = await client.post(
                    "/chat/completions", body=request, cast_to=object, stream=True, stream_cls=stream_type
                )
                return read_reply(await assemble_stream(stream), stream.response.headers)
            return read_reply(*await self._post(request))
        except RecursionError:
            raise MalformedReply("not a chat completion: nested too deeply") from None

    @functools.cached_property
    def _headers(self) -> dict[str, str]:
        """The headers of a request, merged as the `openai` package does.

        Names are compared without case. Default headers, which include the user's `OPENAI_CUSTOM_HEADERS`, replace those
        of authentication. A value that is not text removes the header.
        """
        given = itertools.chain[tuple[str, object]](
            self._client.auth_headers.items(), self._client.default_headers.items()
        )
        merged = {name.lower(): value for name, value in given}
        merged |= {"x-stainless-retry-count": "0", "x-stainless-read-timeout": str(self.settings.request_timeout)}
        return {name: value for name, value in merged.items() if isinstance(value, str)}

    async def _post(self, request: dict[str, Any]) -> tuple[Any, Mapping[str, str]]:
        """Send a request that is not streamed and return the parsed reply and its headers.

        This uses the HTTP client of the `openai` package without the package's request layer, which takes more CPU time than
        everything else in a rollout: 1.4 ms per request with it, 0.9 ms without. Errors are those of the package.
        """
        body = _json_body(request)
        url = f"{self._client.base_url}chat/completions"
        timeout = self.settings.request_timeout
        try:
            response = await self._http.post(url, content=body, headers=self._headers, timeout=timeout)
        except Exception as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}  # of httpx, or of its copy in newer versions
            if "TimeoutException" in kinds:
                raise openai.APITimeoutError(request=self._http.build_request("POST", url)) from error
            if kinds & {"RequestError", "SSLError", "EndOfStream"}:
                raise openai.APIConnectionError(request=self._http.build_request("POST", url)) from error
            raise
        if not response.is_success:
            raise _status_error(response)
        reply = response.json() if "json" in response.headers.get("content-type", "") else response.text
        return reply, response.headers

    def _pause_after(self, error: Exception, backoff: Backoff, *, with_tools: bool) -> float:
        """Return the seconds to wait before the next try.

        Raises:
            ContextFull, RequestRejected, EndpointRefused, EndpointDown: another try would not help.
        """
        raise_if_final(error, self.settings.name, str(self._client.base_url), with_tools=with_tools)
        asked = retry_after(error.response.headers) if isinstance(error, openai.APIStatusError) else None
        if isinstance(error, openai.RateLimitError):
            general = self._limiter.throttled(asked)
            if self._shared_limit is not None:
                self._shared_limit.throttled(asked)
            pause = backoff.after_refusal(asked, general=general)
        else:
            self._limiter.server_error()
            if self._shared_limit is not None:
                self._shared_limit.server_error()
            pause = backoff.after_error()
            pause = None if pause is None else max(pause, asked or 0.0)
        if pause is None:
            raise EndpointDown(
                f"the endpoint {self._client.base_url} failed {backoff.errors + 1} times for one turn, last with "
                f"{cause_of(error, self.settings.request_timeout)}"
            ) from error
        return pause

    async def _acquire(self) -> float:
        """Wait until the rate limit admits this request, in order of arrival; return the seconds of waiting."""
        if not self._queue and self._limiter.admit():
            return 0.0
        began = time.monotonic()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._admit_waiting()
        try:
            closed = self._limiter.opens_in()
            why = f"waiting for {self._host}" + (", which returned 429" if closed else "")
            with waiting(why, closed or None):
                await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            elif turn in self._queue:
                self._queue.remove(turn)
            raise
        return time.monotonic() - began

    def _release(self) -> None:
        self._limiter.leave()
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._queue and self._limiter.admit():
            turn = self._queue.popleft()
            if turn.done():
                self._limiter.leave()
            else:
                turn.set_result(None)
        if self._queue and (wait := self._limiter.frees_in()) > 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(wait, self._admit_waiting)


def _encodable(request: dict[str, Any], error: UnicodeEncodeError) -> dict[str, Any]:
    """Return the request without lone surrogates, which agents may have put into it.

    Raises:
        ConfigError: it has none, so the key or the address is what cannot be encoded.
    """
    sent = well_formed_data(request)
    if sent == request:
        raise ConfigError(
            f"OPENAI_API_KEY or OPENAI_BASE_URL has characters that cannot be encoded: {error.reason}"
        ) from None
    assert isinstance(sent, dict)
    return sent


def _json_body(request: dict[str, Any]) -> bytes:
    """Return a request as JSON. It may contain what the `openai` package accepts: dates and pydantic models, such as messages."""
    return json.dumps(request, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_json_value).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, by_alias=True)
    raise TypeError(
        f"a request to the model has a value of the type {type(value).__name__}, which JSON cannot represent"
    )


def _status_error(response: Any) -> openai.APIStatusError:
    """Return the error of the `openai` package for a response with an error status."""
    body: Any = response.text.strip()
    message = f"Error code: {response.status_code}"
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(body)
    if isinstance(body, dict):
        body = body.get("error", body)
        if isinstance(body, dict) and isinstance(body.get("message"), str) and body["message"]:
            message += f" - {body['message']}"
    kind = openai.RateLimitError if response.status_code == 429 else openai.APIStatusError
    return kind(message, response=response, body=body)


def _http_client(settings: ModelSettings) -> Any:
    """Return the client's aiohttp transport, which takes half the CPU time of the default."""
    return openai.DefaultAioHttpClient(
        base_url=settings.base_url or DEFAULT_URL,
        timeout=openai.Timeout(settings.request_timeout, connect=_CONNECT_LIMIT),
    )
