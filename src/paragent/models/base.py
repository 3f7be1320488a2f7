"""The contract of models: messages and tools in, one assistant message out."""

from __future__ import annotations

import abc
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Implementation, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "MODELS",
    "Completion",
    "Model",
    "ModelSettings",
    "RateLimitAddress",
    "count_reply",
    "open_model",
    "reply_counter",
]

MODELS = Registry(
    kind="model",
    implementations={
        "demo": Implementation("paragent.demo.policy:DemoModel"),
        "openai": Implementation("paragent.models.openai:OpenAIChat", extra="rollout"),
    },
    entry_points="paragent.models",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitAddress:
    """Where the workers of a run hear how many of the requests that an endpoint takes are theirs."""

    address: str
    secret: str

    def __repr__(self) -> str:
        return f"RateLimitAddress(address={self.address!r})"  # never the secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model, where it is, and how often and how long to try."""

    name: str
    base_url: str | None = None
    """None: that of OpenAI."""
    api_key: str | None = None
    max_retries: int = 3
    """Further requests for one turn after errors; being told to wait is no error."""
    most_requests: int = 5
    """Requests at a time from this process, before the endpoint says that it is too many."""
    request_limit: float = 600.0
    """Seconds for one request: as long as the slowest reasoning models take for one turn."""
    temperature: float | None = None
    max_tokens: int | None = None
    rate_limit: RateLimitAddress | None = None
    """None: this process finds out by itself how many requests the endpoint takes."""
    tool_format: str = "native"
    """`native`: tools are part of requests, calls part of replies. `text`: both are text of the conversation, for models and
    servers without tool support."""
    stream: bool = False
    """Ask for the answer in pieces, which keeps proxies with short limits from cutting long ones."""

    def __repr__(self) -> str:
        return f"ModelSettings(name={self.name!r}, base_url={self.base_url!r})"  # never the key


@dataclass(frozen=True, slots=True)
class Completion:
    """One turn of a model."""

    message: dict[str, Any]
    """The assistant's message in OpenAI's form: `content`, `tool_calls`."""
    usage: dict[str, int] | None
    """`prompt_tokens` and `completion_tokens` as the endpoint counted them; None where it did not say."""
    finish_reason: str = "stop"


reply_counter: ContextVar[Callable[[str, dict[str, int] | None], None] | None] = ContextVar(
    "paragent_reply_counter", default=None
)
"""Told the model's name and the token counts of replies that `count_reply` is called for."""


def count_reply(model: str, usage: dict[str, int] | None) -> None:
    """Count a reply that the rollout is not given as a `Completion`: a malformed one, one that raises an error, a judge's.

    Args:
        model: the name of the model.
        usage: its token counts; None where the endpoint did not say.
    """
    if count := reply_counter.get():
        count(model, usage)


class Model(abc.ABC):
    """Answers conversations. One object serves all rollouts of an event loop."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings

    @abc.abstractmethod
    async def complete(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Completion:
        """Return the next message of the assistant.

        Raises:
            ContextFull: the conversation is too long for the model.
            RequestRejected: the endpoint cannot make sense of the request.
            EndpointRefused: the key or the model's name is wrong, or there is no credit.
            ToolsUnsupported: the model's tool calls come as text.
            EndpointDown: it does not answer, or only with errors, and was asked often enough.
        """

    def pressure(self) -> tuple[int, int]:
        """Return how many requests are in flight, and how many may be."""
        return (0, 0)

    async def close(self) -> None:  # noqa: B027 - not every model holds something
        """Free connections; idempotent."""


def open_model(settings: ModelSettings) -> Model:
    """Return the model that `settings.name` names: one of the family, or else a model of an OpenAI-compatible endpoint.

    Raises:
        MissingExtra: the packages for it are not installed.
    """
    kind = settings.name if settings.name in MODELS.names() else "openai"
    model: Model = MODELS.load(kind)(settings)
    return model
