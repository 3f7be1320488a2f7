"""HTTP client of model endpoints: sends JSON bodies and returns parsed replies, streamed or not. Errors are those of `openai`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin

import openai
from pydantic import BaseModel

from paragent.errors import RequestRejected
from paragent.models.credentials import shown_address
from paragent.models.http_session import MOST_REPLY_BYTES, HttpSession, is_direct

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from paragent.models.base import ModelSettings

__all__ = [
    "CONNECT_LIMIT",
    "EndpointClient",
    "EndpointConnections",
    "connection_error",
    "json_body",
    "limited",
    "name_redirect",
]

CONNECT_LIMIT = 10.0
"""Seconds to connect; intercontinental handshakes take less than one."""


class EndpointConnections(Protocol):
    """The connections to one endpoint."""

    url: str
    """The base URL, with a slash at the end."""
    host: str

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
        """Send a request and return the parsed reply and its headers.

        Raises:
            openai.APIError: it failed.
        """

    async def stream(
        self, path: str, body: Mapping[str, Any], assemble: Callable[[AsyncIterator[Any]], Awaitable[Any]]
    ) -> tuple[Any, Mapping[str, str]]:
        """Send a request that asks for a streamed reply; return the whole reply and its headers.

        Args:
            path: below the base URL.
            body: the request.
            assemble: makes the reply from the events, which are parsed JSON.

        Raises:
            openai.APIError: it failed.
        """

    async def close(self) -> None:
        """Close the connections. Idempotent."""


class EndpointClient:
    """The connections to one endpoint.

    The typed models of the `openai` package are not used: they take half of its time and validate nothing.

    Args:
        settings: the settings of the model; its `api_key` is set.
        default_url: the address if the settings have none.
    """

    def __init__(self, settings: ModelSettings, default_url: str) -> None:
        self._timeout = settings.request_timeout
        self._http = _http_client(settings.base_url or default_url, self._timeout)
        self._client = openai.AsyncOpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url or default_url,
            max_retries=0,
            timeout=self._timeout,
            http_client=self._http,
        )
        self.url = f"{str(self._client.base_url).rstrip('/')}/"  # httpx adds none to an address without a path
        """The base URL, with a slash at the end."""
        self.host = self._client.base_url.netloc.decode()
        direct = is_direct(self.url)
        self._session = HttpSession(self._headers, CONNECT_LIMIT, self._timeout) if direct else None

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
        """Send a request and return the parsed reply and its headers.

        This uses aiohttp without the layers of the `openai` package, which take more CPU time than everything else in a
        rollout: 1.4 ms per request with the package, 0.9 ms with its HTTP client alone.
        """
        content, url = json_body(body), f"{self.url}{path}"
        if self._session is None:
            response = await self._post_with_proxy(url, content)
            status, headers, received = response.status_code, response.headers, response.content
        else:
            status, headers, received = await self._session.post(url, content)
            if status < 300 and "json" in headers.get("content-type", ""):
                return json.loads(received), headers
            response = self._session.response(url, status, headers, received)
        if not response.is_success:
            raise _status_error(response)
        reply = json.loads(received) if "json" in headers.get("content-type", "") else response.text
        return reply, headers

    async def _post_with_proxy(self, url: str, content: bytes) -> Any:
        """Send a request with the HTTP client of the `openai` package, which supports proxies, and return the response."""
        try:
            return await self._http.post(url, content=content, headers=self._headers, timeout=self._timeout)
        except Exception as error:
            if (failure := connection_error(error, self._http.build_request("POST", url))) is not None:
                raise failure from error
            raise

    async def stream(
        self, path: str, body: Mapping[str, Any], assemble: Callable[[AsyncIterator[Any]], Awaitable[Any]]
    ) -> tuple[Any, Mapping[str, str]]:
        kind = openai.AsyncStream[object]
        json_body(body)  # a request that cannot be written is not an error of the endpoint
        stream = await self._client.post(f"/{path}", body=body, cast_to=object, stream=True, stream_cls=kind)
        return await assemble(limited(stream)), stream.response.headers

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._session is not None:
            await self._session.close()
        await self._client.close()

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
        merged |= {"x-stainless-retry-count": "0", "x-stainless-read-timeout": str(self._timeout)}
        return {name: value for name, value in merged.items() if isinstance(value, str)}


async def limited(stream: Any) -> AsyncIterator[Any]:
    """Yield the events of a stream of the `openai` or `anthropic` package.

    Raises:
        openai.APIConnectionError: the endpoint sends more than `MOST_REPLY_BYTES`, possibly without an end.
    """
    async for event in stream:
        if stream.response.num_bytes_downloaded > MOST_REPLY_BYTES:
            large = f"the streamed reply has more than {MOST_REPLY_BYTES >> 20} MB"
            raise openai.APIConnectionError(message=large, request=stream.response.request)
        yield event


def name_redirect(error: Exception, path: str) -> None:
    """Let the error of a redirect, which clients do not follow, say where it leads.

    Args:
        error: any error of a request.
        path: the path of requests below the base URL.
    """
    if isinstance(error, openai.APIStatusError) and 300 <= error.status_code < 400:
        given = urljoin(str(error.request.url), error.response.headers.get("location", ""))
        target = shown_address(given).rstrip("/").removesuffix(f"/{path}")
        error.body = {
            "message": f"it redirects to {target}, and redirects are not followed, because the prompts and keys would go there. "
            "If that is your endpoint, use its address"
        }


def connection_error(error: Exception, request: Any) -> openai.APIConnectionError | None:
    """Return the error of the `openai` package for one of its HTTP client; None for any other error."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # of httpx, or of its copy in newer versions
    if "TimeoutException" in kinds:
        return openai.APITimeoutError(request=request)
    if kinds & {"RequestError", "SSLError", "EndOfStream"}:
        return openai.APIConnectionError(request=request)
    return None


def json_body(request: Mapping[str, Any]) -> bytes:
    """Return a request as JSON. It may contain what the `openai` package accepts: dates and pydantic models, such as messages.

    Raises:
        RequestRejected: JSON cannot represent it: it has an infinite number, or is nested too deeply. Agents can send both.
    """
    try:
        text = json.dumps(request, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_json_value)
    except (ValueError, RecursionError) as error:
        raise RequestRejected(f"the request to the model cannot be written as JSON: {error}") from None
    return text.encode()


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


def _http_client(url: str, timeout: float) -> Any:
    """Return the client's aiohttp transport, which takes half the CPU time of the default. It does not follow redirects."""
    limits = openai.Timeout(timeout, connect=CONNECT_LIMIT)
    return openai.DefaultAioHttpClient(base_url=url, timeout=limits, follow_redirects=False)
