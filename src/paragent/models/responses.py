"""Model of an endpoint with OpenAI's Responses API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError
from paragent.models.dialects import DIALECTS, ChatRequest
from paragent.models.endpoint import EndpointModel
from paragent.models.replies import MalformedReply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.models.base import Completion, ModelSettings

__all__ = ["OpenAIResponses"]

_ENCRYPTED = "reasoning.encrypted_content"
"""The part of a reply that brings the reasoning back with the next request, although the endpoint does not store it."""
_DIALECT = DIALECTS["responses"]
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class OpenAIResponses(EndpointModel):
    """A model of an endpoint with the Responses API. Each request has the whole conversation, and nothing is stored.

    Reasoning items are sent back as they were received.

    Raises:
        ConfigError: the settings have no API key, or sampling settings that this API does not have.
    """

    dialect = "responses"
    path = "responses"

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        lacking = {"--stop": settings.sampling.stop, "--seed": settings.sampling.seed is not None}
        if given := [flag for flag, value in lacking.items() if value]:
            raise ConfigError(
                f"the Responses API does not support {' and '.join(given)}: leave it out, or use --api chat"
            )
        self._encrypts = True
        """Whether the endpoint returns encrypted reasoning; models that do not reason reject the request for it."""

    def write_request(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the body of a request that is not stored and gets encrypted reasoning."""
        body = _DIALECT.write_request(ChatRequest(list(messages), list(tools), dict(options)))
        return {"store": False, "include": [_ENCRYPTED], **body}

    def with_settings(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the settings of the run."""
        sampling = self.settings.sampling
        request = {**body, "model": self.settings.name}
        for name in ("stream", "stream_options"):
            request.pop(name, None)
        if request.get("store") is None:  # OpenAI would store it
            request["store"] = False
            if isinstance(included := request.get("include") or [], list):
                request["include"] = [*included, *({_ENCRYPTED} - set(included))]
        given = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_output_tokens": sampling.max_tokens,
        }
        request |= {name: value for name, value in given.items() if value is not None}
        if sampling.reasoning_effort is not None:
            request["reasoning"] = {**(request.get("reasoning") or {}), "effort": sampling.reasoning_effort}
        request |= sampling.extra_body
        if not self._encrypts and isinstance(request.get("include"), list):
            request["include"] = [one for one in request["include"] if one != _ENCRYPTED]
        if self.settings.stream:
            request["stream"] = True
        return request

    def adapt(self, request: Mapping[str, Any], message: str) -> bool:
        """Stop to ask for encrypted reasoning if the endpoint or its model has none."""
        asked = _ENCRYPTED in (request.get("include") or ())
        if not asked or not ("encrypted content" in message.lower() or "include" in message.lower()):
            return False
        self._encrypts = False
        return True

    def read_reply(self, reply: Any, headers: Mapping[str, str]) -> Completion:
        """Return the completion of a parsed response."""
        return _DIALECT.read_reply(reply, headers)

    async def assemble(self, events: AsyncIterator[Any]) -> Any:
        """Return the response of a stream: that of its last event, with the items of earlier ones if it has none."""
        items: list[Any] = []
        async for event in events:
            kind = event.get("type") if isinstance(event, dict) else None
            if kind == "response.output_item.done":
                items.append(event.get("item"))
            elif kind == "error":
                raise MalformedReply(f"the endpoint failed: {str(event.get('message'))[:200]}")
            elif kind in _ENDS:
                response = event.get("response")
                if isinstance(response, dict) and not response.get("output"):
                    return {**response, "output": items}
                return response
        raise MalformedReply("the stream ended before the answer did")
