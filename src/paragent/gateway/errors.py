"""Errors of the gateway in the form of each protocol.

The statuses are those that SDKs do not retry, because the model client has retried already. Where an SDK would retry a status,
the header `x-should-retry` says not to.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from paragent._internal.tracebacks import described
from paragent.errors import AgentError, ContextFull, TurnsUsedUp

__all__ = ["Refusal", "error_body", "refusal_of"]

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
"""The kinds of errors in Anthropic's protocol by status; all other errors are of the kind `api_error`."""
_NO_RETRY = {"x-should-retry": "false"}


class Refusal(Exception):
    """A call that the gateway does not answer with a reply of the model.

    Args:
        status: the HTTP status.
        code: a word for programs.
        message: what is wrong, for people.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def response(self, dialect: str) -> web.Response:
        """Return the HTTP response in the form of a protocol."""
        body = json.dumps(error_body(self, dialect)).encode()
        return web.Response(status=self.status, body=body, content_type="application/json", headers=_NO_RETRY)


def error_body(refusal: Refusal, dialect: str) -> dict[str, Any]:
    """Return the body of an error in the form of a protocol."""
    if dialect == "anthropic":
        kind = _ANTHROPIC_KINDS.get(refusal.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": f"{refusal.message} ({refusal.code})"}}
    kind = "invalid_request_error" if refusal.status < 500 else "api_error"
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}}


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for an error of the handler of a rollout."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, TurnsUsedUp):
        return Refusal(403, "turns_used_up", described(error))
    if isinstance(error, ContextFull):
        return Refusal(400, "context_length_exceeded", described(error))
    if isinstance(error, AgentError):
        return Refusal(400, "request_rejected", described(error))
    return Refusal(502, "endpoint_failed", described(error))
