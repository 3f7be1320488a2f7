"""Model of an endpoint with Anthropic's Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.text import read_json
from paragent.errors import ConfigError
from paragent.models.anthropic_client import AnthropicClient
from paragent.models.credentials import ANTHROPIC_URL
from paragent.models.dialects import DIALECTS, ChatRequest
from paragent.models.dialects.anthropic_blocks import without_foreign_thinking
from paragent.models.endpoint import EndpointModel
from paragent.models.replies import MalformedReply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.models.base import Completion, ModelSettings
    from paragent.models.http_client import EndpointConnections

__all__ = ["AnthropicMessages"]

_DIALECT = DIALECTS["anthropic"]
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The field of a block that a delta of a type extends; the name of the field is the same in both."""


class AnthropicMessages(EndpointModel):
    """A model of an endpoint with Anthropic's Messages API, called with the `anthropic` client.

    Thinking blocks are sent back as they were received, with their signatures.

    Raises:
        ConfigError: the settings have no API key, or sampling settings that this API does not have.
    """

    dialect = "anthropic"
    path = "v1/messages"
    default_url = ANTHROPIC_URL

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        if settings.sampling.seed is not None:
            raise ConfigError("Anthropic's Messages API does not support --seed: leave it out")
        self._takes_foreign_thinking = True
        """Whether the endpoint accepts thinking that it did not sign. Anthropic does not; other servers check nothing."""

    def open_client(self) -> EndpointConnections:
        """Return the client of the `anthropic` package."""
        return AnthropicClient(self.settings, self.default_url)

    def write_request(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the body of a request."""
        return _DIALECT.write_request(ChatRequest(list(messages), list(tools), dict(options)))

    def with_settings(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the settings of the run."""
        sampling = self.settings.sampling
        request = {**body, "model": self.settings.name}
        request.pop("stream", None)
        given = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens}
        request |= {name: value for name, value in given.items() if value is not None}
        if sampling.stop:
            request["stop_sequences"] = list(sampling.stop)
        if sampling.reasoning_effort == "none":
            request["thinking"] = {"type": "disabled"}
        elif sampling.reasoning_effort is not None:
            request["output_config"] = {**(request.get("output_config") or {}), "effort": sampling.reasoning_effort}
            request.setdefault("thinking", {"type": "adaptive"})
        request |= sampling.extra_body
        if not self._takes_foreign_thinking:
            request["messages"] = without_foreign_thinking(request.get("messages"))
        if self.settings.stream:
            request["stream"] = True
        return request

    def adapt(self, request: Mapping[str, Any], message: str) -> bool:
        """Leave out thinking of other endpoints if this one checks signatures."""
        sent = request.get("messages")
        if "signature" not in message.lower() or without_foreign_thinking(sent) == sent:
            return False
        self._takes_foreign_thinking = False
        return True

    def read_reply(self, reply: Any, headers: Mapping[str, str]) -> Completion:
        """Return the completion of a parsed message."""
        return _DIALECT.read_reply(reply, headers)

    async def assemble(self, events: AsyncIterator[Any]) -> Any:
        """Return the message of a stream."""
        assembly = _Assembly()
        async for event in events:
            try:
                ended = assembly.add(event)
            except (AttributeError, TypeError, KeyError, ValueError, IndexError) as error:
                raise MalformedReply(f"an event of the stream cannot be read ({error}): {str(event)[:200]}") from None
            if ended:
                return assembly.message
        raise MalformedReply("the stream ended before the answer did")


class _Assembly:
    """A message that is put together from the events of a stream."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._inputs: dict[int, str] = {}
        """The JSON of the inputs of tools, by index of their block."""

    def add(self, event: Any) -> bool:
        """Add an event; return whether it is the last."""
        kind = event["type"]
        if kind == "message_start":
            self.message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            self.message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            self._extend(self.message["content"][event["index"]], event["index"], event["delta"])
        elif kind == "content_block_stop" and event["index"] in self._inputs:
            self.message["content"][event["index"]]["input"] = read_json(self._inputs[event["index"]] or "{}")
        elif kind == "message_delta":
            self.message |= event["delta"]
            counts = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            self.message["usage"] = {**(self.message.get("usage") or {}), **counts}
        return bool(kind == "message_stop")

    def _extend(self, block: dict[str, Any], index: int, delta: Mapping[str, Any]) -> None:
        kind = delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif field := _DELTAS.get(kind):
            block[field] = (block.get(field) or "") + delta[field]
