"""Model of an OpenAI-compatible chat completions endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models.adaptations import REPLY_LIMITS, ChatAdaptations
from paragent.models.endpoint import EndpointModel
from paragent.models.replies import assemble_stream, read_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.models.base import Completion, ModelSettings

__all__ = ["OpenAIChat"]


class OpenAIChat(EndpointModel):
    """A model of an OpenAI-compatible chat completions endpoint.

    Raises:
        ConfigError: the settings have no API key.
    """

    dialect = "chat"
    path = "chat/completions"

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._adaptations = ChatAdaptations()

    def write_request(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the body; messages, tools and options are in its format already."""
        request = {**options, "messages": list(messages)}
        return request | {"tools": list(tools)} if tools else request

    def with_settings(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the settings of the run."""
        settings, sampling = self.settings, self.settings.sampling
        request = {**body, "model": settings.name}
        for name in ("stream", "stream_options"):
            request.pop(name, None)
        given = {name: getattr(sampling, name) for name in ("temperature", "top_p", "seed", "reasoning_effort")}
        request |= {name: value for name, value in given.items() if value is not None}
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        if sampling.max_tokens is not None:
            for name in REPLY_LIMITS:
                request.pop(name, None)
            request["max_tokens"] = sampling.max_tokens
        request |= sampling.extra_body
        if settings.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._adaptations.apply(request)

    def adapt(self, request: Mapping[str, Any], message: str) -> bool:
        """Learn what the endpoint rejects: reasoning, turns without reasoning, or `max_tokens`."""
        return self._adaptations.learn(request, message)

    def read_reply(self, reply: Any, headers: Mapping[str, str]) -> Completion:
        """Return the completion of a parsed reply."""
        return read_reply(reply, headers)

    async def assemble(self, events: AsyncIterator[Any]) -> Any:
        """Return a streamed reply in the form of one that was not streamed."""
        return await assemble_stream(events)

    async def forward(self, request: Mapping[str, Any]) -> Completion:
        """Send a request of an agent, with retries; see `Model.forward`. The reply is in `Completion.response`.

        Raises:
            ToolsUnsupported: the endpoint returns tool calls as text; see `ModelSettings.tool_format`.
        """
        messages, tools = request.get("messages"), request.get("tools") or []
        if not isinstance(messages, list) or not isinstance(tools, list):
            raise RequestRejected("the request has no list `messages`, or its `tools` are not a list")
        self.check_hosted(request)
        functions = [tool for tool in tools if _is_function(tool)]
        if tools and self.settings.tool_format == "text":
            if len(functions) < len(tools):
                raise RequestRejected("--tool-format text supports only tools of the type `function`, with a name")
            return _with_message_in_response(await super(EndpointModel, self).forward(request))
        completion = await super().forward(request)
        self.check_tools(completion, functions)
        return completion


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _with_message_in_response(completion: Completion) -> Completion:
    """Return the completion with its message, whose tool calls were text, as the message of the reply too."""
    reply = completion.response
    choice = reply["choices"][0] | {"message": completion.message, "finish_reason": completion.finish_reason}
    return replace(completion, response=reply | {"choices": [choice]})
