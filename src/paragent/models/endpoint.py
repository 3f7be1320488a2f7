"""`EndpointModel`: a model of an HTTP endpoint. Retries, rate limit and errors are here; a subclass is one protocol."""

from __future__ import annotations

import abc
import asyncio
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import openai

from paragent._internal.text import counted, well_formed_data
from paragent.errors import ConfigError, EndpointDown, EndpointRefused, ToolsUnsupported
from paragent.execution import doing, waiting
from paragent.models.base import Completion, Model, ModelSettings, count_reply
from paragent.models.cache import ReplyCache, request_scope
from paragent.models.credentials import DEFAULT_URL, no_key, redactor_of, shown_address, variables
from paragent.models.dialects.hosted import refuse_hosted
from paragent.models.http_client import EndpointClient, EndpointConnections, name_redirect
from paragent.models.replies import MalformedReply, NoReply
from paragent.models.request_queue import RequestQueue, RequestSlot
from paragent.models.retry import Backoff, cause_of, raise_if_final, rejection_of, retry_after, short_cause
from paragent.models.tool_text import as_text, calls_in, with_calls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

__all__ = ["EndpointModel"]

_TRANSPORT_FIELDS = frozenset({"model", "stream", "stream_options"})
"""Fields of a request that an agent sets and the settings of the run replace."""
_SHOWN = 100
"""Characters of a reply that is not JSON that a message shows."""
_MOST_ADAPTATIONS = 3
"""Other forms in which one request is sent: an endpoint may first reject one field, then another."""


class EndpointModel(Model):
    """A model of an HTTP endpoint. Retries and the rate limit cover all rollouts of the process.

    A subclass implements a protocol: `path`, `write_request`, `with_settings`, `read_reply` and `assemble`; where its protocol
    needs it, also `default_url`, `open_client` and `adapt`.

    Raises:
        ConfigError: the settings have no API key.
    """

    path: ClassVar[str]
    """The path of requests below the base URL, without a slash at the beginning."""
    default_url: ClassVar[str] = DEFAULT_URL
    """The base URL if the settings have none."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        if not settings.api_key:
            raise ConfigError(no_key(settings.api))
        self._redactor = redactor_of(settings)
        self._client = self.open_client()
        self._address = shown_address(self._client.url)
        """The address of the endpoint without secrets, for messages."""
        self._requests = RequestQueue(settings, self._client.host)
        self._cache: ReplyCache | None = None
        self._native_calls = False
        """Whether the endpoint has returned a tool call, so that it supports them."""

    def open_client(self) -> EndpointConnections:
        """Return the client for requests to the endpoint. Its errors are those of the `openai` package."""
        return EndpointClient(self.settings, self.default_url)

    @abc.abstractmethod
    def write_request(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the body of a request for a conversation in the format of chat completions; see `Model.complete`."""

    @abc.abstractmethod
    def with_settings(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the settings of the run: the model's name, `Sampling`, and whether the reply is streamed.

        The settings of the run replace what the body has.
        """

    @abc.abstractmethod
    def read_reply(self, reply: Any, headers: Mapping[str, str]) -> Completion:
        """Return the completion of a parsed reply.

        Raises:
            MalformedReply: it is not a reply of the protocol.
        """

    @abc.abstractmethod
    async def assemble(self, events: AsyncIterator[Any]) -> Any:
        """Return a streamed reply in the form of one that was not streamed.

        Args:
            events: the events as parsed JSON.

        Raises:
            MalformedReply: an event cannot be read, or the stream ended before the reply did.
        """

    def adapt(self, request: Mapping[str, Any], message: str) -> bool:
        """Remember what the endpoint rejects, and return whether `with_settings` now returns another request to send.

        Args:
            request: what was sent.
            message: the endpoint's message.
        """
        del request, message
        return False

    def pressure(self) -> tuple[int, int]:
        """Return the number of requests in flight and the current limit."""
        return self._requests.pressure()

    @property
    def has_answered(self) -> bool:
        return self._requests.has_answered

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
        if tools and self.settings.tool_format == "text":
            request = self.write_request(as_text(messages, tools), [], options or {})
            return with_calls(await self._answer(request), tools)
        completion = await self._answer(self.write_request(messages, tools, options or {}))
        self.check_tools(completion, tools)
        return completion

    async def forward(self, request: Mapping[str, Any]) -> Completion:
        """Send a request of an agent, with retries; see `Model.forward`. The reply is in `Completion.response`.

        Raises:
            RequestRejected: the provider would act for the agent; see `ModelSettings.hosted_tools`.
        """
        self.check_hosted(request)
        return await self._answer(request)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._requests.close()
        if self._cache is not None:
            self._cache.close()
        await self._client.close()

    def check_hosted(self, request: Mapping[str, Any]) -> None:
        """Check that a request of an agent does not let the provider act for it, unless the settings allow that.

        Raises:
            RequestRejected: it does.
        """
        if not self.settings.hosted_tools:
            refuse_hosted(self.dialect, request)

    def check_tools(self, completion: Completion, tools: Sequence[dict[str, Any]]) -> None:
        """Check that the endpoint parses the tool calls of its model. Once it has returned a tool call, it does.

        Raises:
            ToolsUnsupported: the text of the message has a tool call.
        """
        if completion.message.get("tool_calls"):
            self._native_calls = True
        elif tools and not self._native_calls and calls_in(completion.message["content"] or "", tools):
            if not completion.cached:
                count_reply(self.settings.name, completion.usage)
            raise ToolsUnsupported(
                f"{self._client.host} returns tool calls of {self.settings.name!r} as text: use --tool-format text, or have "
                "the server parse them (vLLM: --enable-auto-tool-choice --tool-call-parser ...)"
            )

    async def _answer(self, body: Mapping[str, Any]) -> Completion:
        """Return the reply to a request: from the cache if it has one, otherwise from the endpoint."""
        settings, scope = self.settings, request_scope.get()
        training = settings.rate_limit is not None and settings.rate_limit.controlled
        if settings.cache is None or scope is None or training:
            return await self._send_with_retries(body)
        if self._cache is None:
            self._cache = ReplyCache(Path(settings.cache))
        asked = {name: value for name, value in body.items() if name not in _TRANSPORT_FIELDS}
        with scope.numbered([settings.api, self._client.url, settings.name, asked, asdict(settings.sampling)]) as key:
            if (found := await asyncio.to_thread(self._cache.get, key)) is not None:
                reply, request_id = found
                return replace(self.read_reply(reply, {}), cached=True, request_id=request_id)
            completion = await self._send_with_retries(body)
        await asyncio.to_thread(self._cache.put, key, completion.response, completion.request_id)
        return completion

    async def _send_with_retries(self, body: Mapping[str, Any]) -> Completion:
        """Send a request, again after errors that may pass, and return the answer."""
        self._requests.connect()
        slot = RequestSlot(self._requests)
        try:
            return await self._try_until_answered(body, slot)
        except EndpointRefused as error:
            self._requests.fail_waiting(error)
            raise
        except EndpointDown as error:
            if error.unreachable:
                self._requests.fail_waiting(error)
            raise
        finally:
            slot.release()

    async def _try_until_answered(self, body: Mapping[str, Any], slot: RequestSlot) -> Completion:
        request = self.with_settings(body)
        backoff = Backoff(self.settings.max_retries)
        retries, adaptations, waited = 0, 0, 0.0
        answers: int | None = None
        """How many requests were answered when the first error occurred."""
        while True:
            waited += await slot.acquire()
            doing("generating")
            began, version = time.monotonic(), self._requests.version
            try:
                completion = await self._send_within_limits(request)
                self._requests.answered(time.monotonic() - began)
            except UnicodeEncodeError as error:
                body, request, pause, why = well_formed_data(body), self._encodable(request, error), 0.0, ""
            except (openai.APIError, ValueError) as error:
                if isinstance(error, MalformedReply):
                    count_reply(self.settings.name, error.usage)
                rejection = rejection_of(error)
                if rejection and adaptations < _MOST_ADAPTATIONS and self.adapt(request, rejection):
                    request, pause = self.with_settings(body), 0.0
                    adaptations += 1
                else:
                    answers = self._requests.answers if answers is None else answers
                    others_answered = self._requests.answers > answers
                    pause = self._pause_after(
                        error, backoff, with_tools="tools" in request, others_answered=others_answered
                    )
                why = short_cause(error)
                retries += 1
            else:
                return replace(completion, waited=waited, retries=retries, version=version)
            if (
                self._requests.has_answered
            ):  # otherwise the first request of the run keeps its turn until it is answered
                slot.release()
            if pause:
                with waiting(f"retrying after {why} from {self._client.host}", pause):
                    await asyncio.sleep(pause)
                waited += pause

    async def _send_within_limits(self, request: dict[str, Any]) -> Completion:
        """Send one request.

        Raises:
            NoReply: its reply is not complete within the time limit of a request.
        """
        seconds = self.settings.request_timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._send(request)
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoReply(f"no answer within {seconds:g} s (--request-timeout)") from None

    async def _send(self, request: dict[str, Any]) -> Completion:
        """Send one request. Neither the reply nor an error repeats the key or another secret of the request."""
        try:
            if request.get("stream"):
                reply, headers = await self._client.stream(self.path, request, self._assemble_in_time)
            else:
                reply, headers = await self._client.post(self.path, request)
            if isinstance(reply, str):
                shown = self._redactor.text(reply)[:_SHOWN]
                kind = "a web page" if reply.lstrip().startswith("<") else f"text that is not JSON: {shown!r}"
                raise MalformedReply(f"the reply is {kind}", is_json=False)
            completion = self.read_reply(self._redactor.data(reply), headers)
            return replace(completion, request_id=self._redactor.data(completion.request_id))
        except RecursionError:
            raise MalformedReply("not a reply of a model: nested too deeply") from None
        except (openai.APIError, ValueError) as error:
            name_redirect(error, self.path)
            self._redactor.error(error)
            raise

    async def _assemble_in_time(self, events: AsyncIterator[Any]) -> Any:
        """Return a streamed reply; see `assemble`.

        Raises:
            NoReply: the stream makes no progress.
        """
        return await self.assemble(_progressing(events, self.settings.stall_timeout))

    def _pause_after(self, error: Exception, backoff: Backoff, *, with_tools: bool, others_answered: bool) -> float:
        """Return the seconds to wait before the next try.

        Raises:
            ContextFull, RequestRejected, EndpointRefused, EndpointDown: another try would not help.
        """
        raise_if_final(error, self.settings, self._address, with_tools=with_tools, answered=self._requests.has_answered)
        asked = retry_after(error.response.headers) if isinstance(error, openai.APIStatusError) else None
        if isinstance(error, openai.RateLimitError):
            pause = backoff.after_refusal(asked, general=self._requests.throttled(asked))
        else:
            self._requests.server_error()
            pause = backoff.after_error()
            pause = None if pause is None else max(pause, asked or 0.0)
        if pause is None:
            raise EndpointDown(
                f"the endpoint {self._address} failed {counted(backoff.errors + 1, 'time')} for one turn, last with "
                f"{cause_of(error, self.settings)}",
                others_answered=others_answered,
                unreachable=isinstance(error, openai.APIConnectionError) or not getattr(error, "is_json", True),
            ) from error
        return pause

    def _encodable(self, request: dict[str, Any], error: UnicodeEncodeError) -> dict[str, Any]:
        """Return the request without lone surrogates, which agents may have put into it.

        Raises:
            ConfigError: it has none, so the key or the address is what cannot be encoded.
        """
        sent = well_formed_data(request)
        if sent == request:
            names = " or ".join(reversed(variables(self.settings.api)))
            raise ConfigError(f"{names} has characters that cannot be encoded: {error.reason}") from None
        assert isinstance(sent, dict)
        return sent


async def _progressing(events: AsyncIterator[Any], seconds: float) -> AsyncIterator[Any]:
    """Yield the events of a stream.

    Raises:
        NoReply: after the first event, none but pings arrived for `seconds`.
    """
    iterator = aiter(events)
    limit: float | None = None
    while True:
        try:
            async with asyncio.timeout(limit):
                event = await anext(iterator)
                while isinstance(event, dict) and event.get("type") == "ping":
                    event = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise NoReply(f"the streamed reply made no progress for {seconds:g} s (--stall-timeout)") from None
        limit = seconds
        yield event
