"""Conversion of requests and replies between the protocols of model endpoints: chat completions, Responses, Anthropic Messages.

A dialect is a module with five functions (`Dialect`). The form of chat completions is the neutral form: a request that arrives in
one dialect is read into a `ChatRequest` and written in another. The functions do no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from paragent.models.dialects import anthropic, chat, responses
from paragent.models.dialects.base import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.models.base import Completion

__all__ = ["DIALECTS", "ChatRequest", "Dialect"]


class Dialect(Protocol):
    """The functions of a dialect. A body is parsed JSON."""

    def read_request(self, body: Any) -> ChatRequest:
        """Read a request.

        Raises:
            RequestRejected: it is not a request of this protocol, or asks for something that is not supported.
        """

    def write_request(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of a request, without the name of the model.

        Raises:
            RequestRejected: this protocol cannot express the request.
        """

    def read_reply(self, body: Any, headers: Mapping[str, str] | None = None) -> Completion:
        """Read a reply.

        Raises:
            MalformedReply: it is not a reply of this protocol.
        """

    def write_reply(self, completion: Completion, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a reply.

        Args:
            completion: the turn of the model.
            request: the body of the request, in this dialect.
        """

    def stream(self, reply: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Yield a reply as server-sent events.

        Args:
            reply: the body of the reply.
            request: the body of the request; in chat completions it says whether the stream has token counts.
        """


DIALECTS: dict[str, Dialect] = {"chat": chat, "responses": responses, "anthropic": anthropic}
"""The dialects by the name that `Model.dialect` and `--api` use."""
