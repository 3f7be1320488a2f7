"""Base class of models: messages and tools in, one assistant message out."""

from __future__ import annotations

import abc
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Implementation, Registry
from paragent.errors import RequestRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paragent.models.tokens import SampledTokens

__all__ = [
    "APIS",
    "MODELS",
    "REQUEST_TIMEOUT",
    "Completion",
    "Model",
    "ModelSettings",
    "RateLimitAddress",
    "Sampling",
    "count_reply",
    "open_model",
    "reply_counter",
]

REQUEST_TIMEOUT = 600.0
"""The default of `ModelSettings.request_timeout`."""
_OWN_FIELDS = frozenset({"model", "messages", "tools", "stream", "stream_options"})
"""The fields of a chat completion request that are not options."""
MODELS = Registry(
    kind="model",
    implementations={
        "demo": Implementation("paragent.demo.policy:DemoModel"),
        "demo-noisy": Implementation("paragent.demo.noisy_policy:NoisyDemoModel"),
    },
    entry_points="paragent.models",
)
"""Models by name. Every other name is a model of an endpoint."""
APIS = Registry(
    kind="API",
    implementations={
        "chat": Implementation("paragent.models.openai:OpenAIChat", extra="rollout"),
        "responses": Implementation("paragent.models.responses:OpenAIResponses", extra="rollout"),
        "anthropic": Implementation("paragent.models.anthropic:AnthropicMessages", extra="anthropic"),
    },
    entry_points="paragent.apis",
)
"""Protocols of endpoints: classes derived from `paragent.models.endpoint.EndpointModel`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitAddress:
    """The address of the run's rate limit server, which assigns each worker its share of the concurrent requests."""

    address: str
    secret: str
    controlled: bool = False
    """Whether a worker may send requests only while it is connected, because the server pauses requests for training."""

    def __repr__(self) -> str:
        return f"RateLimitAddress(address={self.address!r})"  # never the secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling settings of a run. None leaves it to the agent or the endpoint; the rest replaces what an agent asks for."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    """The most tokens of one reply."""
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request's body, in the protocol of the endpoint, such as `{"return_token_ids": true}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The name and address of a model, and the limits of requests to it."""

    name: str
    """The name of the model."""
    base_url: str | None = None
    """None: OpenAI's."""
    api_key: str | None = None
    """The key of the endpoint; None: none."""
    max_retries: int = 3
    """Retries of one turn after errors. HTTP 429 does not count as an error."""
    max_concurrency: int = 5
    """Maximum number of concurrent requests of this process; refusals of the endpoint (429) lower it."""
    request_timeout: float = REQUEST_TIMEOUT
    """Seconds for one request, from sending it to the end of its reply; the slowest reasoning models take this long."""
    stall_timeout: float = 120.0
    """Seconds between two events of a streamed reply. Before the first event, only `request_timeout` counts."""
    answered: bool = False
    """Whether the endpoint has answered a request with this key, model and address before, in an earlier session."""
    sampling: Sampling = field(default_factory=Sampling)
    """Temperature and other settings of each request."""
    api: str = "chat"
    """The protocol of the endpoint: `chat` (chat completions), `responses` or `anthropic`."""
    rate_limit: RateLimitAddress | None = None
    """None: this process adapts its limit without coordination with other workers."""
    tool_format: str = "native"
    """`native`: requests have `tools`, replies have `tool_calls`. `text`: both are text of the conversation, for models and
    servers without tool support."""
    stream: bool = False
    """Stream answers, so that proxies with short idle timeouts do not cut long ones."""
    hosted_tools: bool = False
    """Whether requests of agents may use tools that the provider executes, and its storage; see `dialects.hosted`."""
    cache: str | None = None
    """The folder of the cache of replies; None: no cache. It is never used in training."""

    def __repr__(self) -> str:
        return f"ModelSettings(name={self.name!r}, base_url={self.base_url!r})"  # never the key


@dataclass(frozen=True, slots=True)
class Completion:
    """One turn of a model."""

    message: dict[str, Any]
    """The assistant's message in OpenAI's format: `role`, `content`, `tool_calls`; and `reasoning_content`, if there is any."""
    usage: dict[str, int] | None
    """`prompt_tokens` and `completion_tokens` as counted by the endpoint; None if it did not return them. Their parts
    `cached_tokens` and `reasoning_tokens` are only there if the endpoint counts them."""
    finish_reason: str = "stop"
    """Why the model stopped, in the words of OpenAI's API: "stop", "length", "tool_calls"."""
    response: Any = None
    """The endpoint's reply as it was received, parsed; a streamed one in the form of one that was not streamed."""
    request_id: str = ""
    """The endpoint's id of the request, for questions to its operator."""
    waited: float = 0.0
    """Seconds of waiting for the rate limit and between retries."""
    retries: int = 0
    """Requests that failed before this reply."""
    model: str = ""
    """The name of the model that answered, as the endpoint returned it."""
    tokens: SampledTokens | None = None
    """The token ids of prompt and reply; None if the endpoint did not return them."""
    cached: bool = False
    """Whether the reply is from the local store of `--cache`, and not a fresh sample."""
    version: int | None = None
    """The version of the policy when the request was sent; None outside of training."""


reply_counter: ContextVar[Callable[[str, dict[str, int] | None], None] | None] = ContextVar(
    "paragent_reply_counter", default=None
)
"""Called by `count_reply` with the model's name and the token counts."""


def count_reply(model: str, usage: dict[str, int] | None) -> None:
    """Count the tokens of a reply that the rollout does not get as a `Completion`: a malformed reply, or a judge's.

    Args:
        model: the name of the model.
        usage: the token counts; None if the endpoint did not return them.
    """
    if count := reply_counter.get():
        count(model, usage)


class Model(abc.ABC):
    """Completes conversations. One object serves all rollouts of an event loop.

    The constructor does no I/O. `paragent.testing.ModelContract` tests an implementation.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        """The settings that the constructor got."""

    dialect: str = "chat"
    """The protocol of the requests that `forward` takes: `chat`, `responses` or `anthropic`."""

    @abc.abstractmethod
    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Return the next message of the assistant.

        Args:
            messages: the conversation in OpenAI's format.
            tools: the tools that the model may call, in OpenAI's format; may be empty.
            options: further fields of a chat completion request, such as `tool_choice` or `response_format`.

        Raises:
            ContextFull: the conversation is too long for the model.
            RequestRejected: the endpoint rejects the request.
            EndpointRefused: the key or the model's name is wrong, or there is no credit.
            ToolsUnsupported: the endpoint returns tool calls as text.
            EndpointDown: the endpoint does not answer, or only with errors, after all retries.
        """

    async def forward(self, request: Mapping[str, Any]) -> Completion:
        """Send a request of an agent, in the protocol `dialect`, and return the reply.

        Args:
            request: the body. The name of the model and the sampling settings of the run replace those in it; the reply is
                never streamed.

        Raises:
            RequestRejected: the body is not a request of that protocol.
            Exception: as `complete`.
        """
        options = {name: value for name, value in request.items() if name not in _OWN_FIELDS}
        messages, tools = request.get("messages"), request.get("tools") or ()
        if not isinstance(messages, list) or not isinstance(tools, list | tuple):
            raise RequestRejected("the request has no list `messages`, or its `tools` are not a list")
        return await self.complete(messages, tools, options)

    def pressure(self) -> tuple[int, int]:
        """Return the number of requests in flight and the current limit."""
        return (0, 0)

    @property
    def has_answered(self) -> bool:
        """Whether a request with these settings was ever answered, as far as this process knows."""
        return True

    async def close(self) -> None:  # noqa: B027 - not every model holds resources
        """Release connections. Idempotent."""


def open_model(settings: ModelSettings) -> Model:
    """Return the model `settings.name`: a registered one or, for any other name, a model of an endpoint with `settings.api`.

    Raises:
        UnknownName: there is no such API.
        MissingExtra: its optional packages are not installed.
    """
    name = settings.name
    model: Model = (MODELS.load(name) if name in MODELS.names() else APIS.load(settings.api))(settings)
    return model
