"""Errors of chat completion endpoints: which are final, what their messages are, and how long to wait before a retry.

The message of an error depends only on its cause, so that equal causes can be counted.
"""

from __future__ import annotations

import json
import math
import random
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import openai

from paragent._internal.text import well_formed
from paragent._internal.tracebacks import message_of, root_cause
from paragent.errors import ContextFull, EndpointRefused, RequestRejected
from paragent.models.credentials import variables
from paragent.models.replies import MalformedReply, NoReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.models.base import ModelSettings

__all__ = ["Backoff", "cause_of", "raise_if_final", "rejection_of", "retry_after", "short_cause"]


_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_TOO_LONG = {"context_length_exceeded", "string_above_max_length"}
_TOO_LONG_PHRASES = (
    "maximum context length",
    "context window",
    "too many tokens",
    "prompt is too long",
    "exceed context limit",
)
_WRONG_ADDRESS = frozenset({301, 302, 303, 307, 308, 404, 405})
"""The status of an address without endpoint: unknown path, other method, or a redirect, which the client does not follow."""
_REFUSALS = frozenset({403, 404, 405})
"""Statuses that can refuse the key, the model or the address, but also a single request."""
_LONGEST_MESSAGE = 500
"""Characters of the endpoint's own message that an error repeats."""
_LONGEST_RETRY_AFTER = 120.0
"""Seconds; a longer `Retry-After` is cut to this. Most quotas are counted per minute, so this is two windows."""
_IMPLAUSIBLE = 86_400.0
"""Seconds above which `Retry-After` is ignored: quotas are counted per day at most."""


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that the endpoint asks to wait, at most two minutes; None if it names no plausible time.

    Args:
        headers: of the response, by lower-case name: `retry-after-ms`, `retry-after` (seconds or a date).
        now: seconds since 1970; None: the current time.
    """
    seconds = _number(headers.get("retry-after-ms"), 0.001)
    if seconds is None:
        header = headers.get("retry-after")
        seconds = _number(header, 1.0)
        if seconds is None:
            seconds = _until(header, time.time() if now is None else now)
    if seconds is None or seconds > _IMPLAUSIBLE:
        return None
    return min(seconds, _LONGEST_RETRY_AFTER)


def _number(text: str | None, scale: float) -> float | None:
    try:
        value = float(text or "") * scale
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until(text: str | None, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(text or "").timestamp() - now)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def cause_of(error: Exception, settings: ModelSettings) -> str:
    """Return the cause of a failed request and what to do: HTTP status and the endpoint's message, or the underlying exception.

    Args:
        error: an exception of the client or of parsing the reply.
        settings: of the model.
    """
    url_variable, _ = variables(settings.api)
    if isinstance(root_cause(error), ConnectionError | socket.gaierror):
        return (
            f"{_cause(error, settings.request_timeout)}. Check that the endpoint runs and that {url_variable} is right"
        )
    if isinstance(error, MalformedReply | json.JSONDecodeError):
        return f"{_cause(error, settings.request_timeout)}. Check {url_variable} and --api, which is {settings.api}"
    return _cause(error, settings.request_timeout)


def _cause(error: Exception, limit: float) -> str:
    if isinstance(error, NoReply):
        return str(error)
    if isinstance(error, openai.APIStatusError):
        return f"HTTP {error.status_code}: {_message(error)}"
    root = root_cause(error)
    if isinstance(error, openai.APITimeoutError) and (isinstance(root, TimeoutError | openai.APITimeoutError)):
        return f"no answer within {limit:g} s"
    if isinstance(root, openai.APIError):
        return f"{type(root).__name__}: {_message(root)}"
    return well_formed(f"{type(root).__name__}: {message_of(root)}")[:_LONGEST_MESSAGE]


def short_cause(error: Exception) -> str:
    """Return the HTTP status or the name of the underlying exception, for the live display."""
    if isinstance(error, NoReply):
        return "no reply"
    return str(error.status_code) if isinstance(error, openai.APIStatusError) else type(root_cause(error)).__name__


def raise_if_final(
    error: Exception, settings: ModelSettings, address: str, *, with_tools: bool, answered: bool
) -> None:
    """Raise if the error is final: another try would fail in the same way. Return if a retry may help.

    Args:
        error: an exception of the client or of parsing the reply.
        settings: of the model.
        address: of the endpoint.
        with_tools: whether the request had tools.
        answered: whether the endpoint has answered before.

    Raises:
        ContextFull: the conversation is too long.
        EndpointRefused: untrusted certificate, wrong key, model or address, or no credit.
        RequestRejected: the endpoint rejects the request.
    """
    url_variable, key_variable = variables(settings.api)
    if isinstance(root := root_cause(error), ssl.SSLCertVerificationError):
        raise EndpointRefused(
            f"the certificate of {address} is not trusted: {root.verify_message or root}. Correct {url_variable}, or "
            "set SSL_CERT_FILE to the certificate file of the authority"
        ) from error
    if not isinstance(error, openai.APIStatusError) or error.status_code >= 500:
        return
    message, status = _message(error), error.status_code
    if status == 402 or str(error.code) in _NO_CREDIT:
        raise EndpointRefused(
            f"{address} has no credit for {settings.name!r}: {message}. Add credit or use another {key_variable}, and start the "
            "same command again",
            402,
            answered=answered,
        ) from error
    if status == 429:
        return
    if str(error.code) in _TOO_LONG or any(words in _own_message(error).lower() for words in _TOO_LONG_PHRASES):
        raise ContextFull(message) from error
    if status == 401:
        raise EndpointRefused(
            f"{address} does not accept the API key (HTTP 401): {message}. Set {key_variable} to a key of this endpoint",
            status,
            answered=answered,
        ) from error
    if answered and status in _REFUSALS:
        raise EndpointRefused(
            f"{address} refuses this request (HTTP {status}): {message}. It has answered others, so the cause is the content: "
            "moderation or a firewall, for example",
            status,
            answered=True,
        ) from error
    if status == 403 or (status == 404 and "model" in f"{message} {error.code}".lower()):
        raise EndpointRefused(
            f"{address} refuses model {settings.name!r} (HTTP {status}): {message}. Check --model and {key_variable}",
            status,
        ) from error
    if status in _WRONG_ADDRESS:
        end = "ends before /v1/messages" if settings.api == "anthropic" else "often ends with /v1"
        raise EndpointRefused(
            f"{address} is not the address of an endpoint with --api {settings.api} (HTTP {status}): {message}. Correct "
            f"{url_variable}, which {end}",
            status,
            answered=answered,
        ) from error
    if status not in {408, 409}:
        advice = ". If the endpoint does not support tools, use --tool-format text" if with_tools else ""
        raise RequestRejected(f"{address} rejects the request (HTTP {status}): {message}{advice}") from error


def rejection_of(error: Exception) -> str:
    """Return what an endpoint says about a request that it rejects because of its form; empty for any other error.

    Only messages and names of fields are returned: other parts of a body may repeat the prompt.
    """
    if not isinstance(error, openai.APIStatusError) or error.status_code not in {400, 422}:
        return ""
    described = _description(error)
    problems = [one for one in (described if isinstance(described, list) else ()) if isinstance(one, dict)]
    fields = [".".join(map(str, one["loc"])) for one in problems if isinstance(one.get("loc"), list)]
    quoted = [f"'{name}'" for field in fields for name in field.split(".")]
    return "\n".join([_own_message(error), *(str(one.get("msg")) for one in problems), *quoted, str(error.param or "")])


def _message(error: openai.APIError) -> str:
    """Return the endpoint's own message, on one line."""
    text = _own_message(error) or str(_description(error) or error.message)
    if text.startswith("<"):
        return "the reply is a web page"
    return well_formed(" ".join(text.split()))[:_LONGEST_MESSAGE].rstrip(".")


def _own_message(error: openai.APIError) -> str:
    """Return the endpoint's own message; empty if it sent none. Other parts of a body may repeat the prompt."""
    described = _description(error)
    return described.strip() if isinstance(described, str) else ""


def _description(error: openai.APIError) -> Any:
    """Return the part of an error's body that says what is wrong. It is a message or, from some endpoints, a structure."""
    found: Any = error.body
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found


_FIRST_ERROR_PAUSE = 0.5
_LONGEST_ERROR_PAUSE = 30.0
_FIRST_QUOTA_PAUSE = 1.0
_LONGEST_QUOTA_PAUSE = 90.0
"""Longer than a minute, the window of most quotas."""
_MOST_DOUBLINGS = 16
"""More doublings would change nothing and overflow eventually."""
_LONGEST_QUOTA_WAIT = 1800.0
"""Seconds of waiting after 429 responses after which the endpoint counts as down: thirty windows of a minute."""


_RNG = random.Random()  # noqa: S311 - pauses, not secrets
"""Shared by all requests: creating one takes about 10 µs."""


@dataclass(slots=True)
class Backoff:
    """The pauses between the requests for one turn: exponential, with jitter."""

    max_retries: int
    rng: random.Random = _RNG
    errors: int = 0
    refusals: int = 0
    waited: float = 0.0

    def after_error(self) -> float | None:
        """Return the seconds to wait before the next try; None if there are no retries left."""
        if self.errors >= self.max_retries:
            return None
        pause: float = min(_LONGEST_ERROR_PAUSE, _FIRST_ERROR_PAUSE * 2 ** min(self.errors, _MOST_DOUBLINGS))
        self.errors += 1
        return pause * self.rng.uniform(0.5, 1.5)

    def after_refusal(self, retry_after: float | None, *, general: bool = True) -> float | None:
        """Return the seconds to wait after a 429 response, never less than the endpoint asked for; None: give up.

        Args:
            retry_after: the seconds that the endpoint named.
            general: whether the endpoint refuses most requests; pauses grow only then.
        """
        if self.waited >= _LONGEST_QUOTA_WAIT:
            return None
        pause = min(_LONGEST_QUOTA_PAUSE, _FIRST_QUOTA_PAUSE * 2 ** min(self.refusals, _MOST_DOUBLINGS))
        self.refusals += general
        # With `Retry-After`, jitter spreads the requests that wait for the same time: together they would be refused again.
        chosen = pause * self.rng.uniform(0.5, 1.5) if retry_after is None else retry_after + self.rng.uniform(0.0, 1.0)
        self.waited += chosen
        return chosen
