"""HTTP client of Anthropic's Messages API: the `anthropic` package, with the errors of `openai`, which retries understand."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anthropic
import openai

from paragent.models.http_client import CONNECT_LIMIT, connection_error, json_body, limited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from paragent.models.base import ModelSettings

__all__ = ["AnthropicClient"]

_STATUSES = {"overloaded_error": 529, "rate_limit_error": 429, "request_too_large": 413, "billing_error": 402}
"""The status of errors by their type, for errors within a stream, whose status is 200."""
_NO_CREDIT = "credit balance is too low"


class AnthropicClient:
    """The connections to one endpoint. The typed models of the package are not used, and its retries are off.

    Args:
        settings: the settings of the model; its `api_key` is set.
        default_url: the address if the settings have none.
    """

    def __init__(self, settings: ModelSettings, default_url: str) -> None:
        url = (settings.base_url or default_url).rstrip("/").removesuffix("/v1")
        timeout = anthropic.Timeout(settings.request_timeout, connect=CONNECT_LIMIT)
        self._http: Any = anthropic.DefaultAioHttpClient(base_url=url, timeout=timeout, follow_redirects=False)
        self._client = anthropic.AsyncAnthropic(
            api_key=settings.api_key,
            base_url=url,
            max_retries=0,
            timeout=timeout,
            http_client=self._http,
        )
        self.url = f"{str(self._client.base_url).rstrip('/')}/"
        self.host = self._client.base_url.netloc.decode()

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
        """Send a request and return the parsed reply and its headers."""
        del path
        json_body(body)  # a request that cannot be written is not an error of the endpoint
        with self._translated():
            raw = await self._client.messages.with_raw_response.create(
                model=str(body.get("model")),
                max_tokens=1,
                messages=[],
                extra_body=body,  # which replaces these fields
            )
            return raw.http_response.json(), raw.headers

    async def stream(
        self, path: str, body: Mapping[str, Any], assemble: Callable[[AsyncIterator[Any]], Awaitable[Any]]
    ) -> tuple[Any, Mapping[str, str]]:
        """Send a request that asks for a streamed reply; return the whole reply and its headers."""
        kind = anthropic.AsyncStream[object]
        json_body(body)
        with self._translated():
            stream = await self._client.post(f"/{path}", body=dict(body), cast_to=object, stream=True, stream_cls=kind)
            return await assemble(limited(stream)), stream.response.headers

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of the `anthropic` package, and those of its HTTP client within a stream, as those of `openai`."""
        try:
            yield
        except anthropic.APITimeoutError as error:
            raise openai.APITimeoutError(request=error.request) from error
        except anthropic.APIConnectionError as error:
            raise openai.APIConnectionError(request=error.request) from error
        except anthropic.APIStatusError as error:
            raise _status_error(error) from error
        except anthropic.APIError as error:
            raise openai.APIError(error.message, request=error.request, body=error.body) from error
        except Exception as error:
            if (failure := connection_error(error, self._http.build_request("POST", self.url))) is not None:
                raise failure from error
            raise


def _status_error(error: anthropic.APIStatusError) -> openai.APIStatusError:
    """Return the error of the `openai` package. An overloaded endpoint (529) is one that refuses requests, as with 429."""
    body: Any = error.body
    described = body.get("error", body) if isinstance(body, dict) else body
    kind = described.get("type") if isinstance(described, dict) else None
    status = error.status_code if error.status_code >= 300 else _STATUSES.get(str(kind), 500)
    if isinstance(described, dict):
        if status == 413:
            described = {**described, "code": "context_length_exceeded"}
        elif _NO_CREDIT in str(described.get("message")):
            described = {**described, "code": "insufficient_quota"}
    refused = status in {429, 529}
    raised = (openai.RateLimitError if refused else openai.APIStatusError)(
        error.message, response=error.response, body=described
    )
    raised.status_code = status
    return raised
