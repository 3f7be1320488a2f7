"""Errors of chat completion endpoints: what each means, in the endpoint's own words, and when to ask again.

The text of an error depends on its cause alone, so that equal causes can be counted.
"""

from __future__ import annotations

import math
import random
import ssl
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import openai

from paragent._internal.text import well_formed
from paragent._internal.tracebacks import message_of, root_cause
from paragent.errors import ContextFull, EndpointRefused, RequestRejected

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Backoff", "cause_of", "raise_if_final", "retry_after", "short_cause"]


_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_TOO_LONG = {"context_length_exceeded", "string_above_max_length"}
_TOO_LONG_WORDS = ("maximum context length", "context window", "too many tokens", "prompt is too long")
_LONGEST_WORDS = 500
"""Characters of the endpoint's own words that an error repeats."""
_LONGEST_RETRY_AFTER = 120.0
"""Seconds that the endpoint's word is taken for at once: twice the minute over which most quotas are counted."""
_NOT_MEANT = 86_400.0
"""Seconds above which `Retry-After` is disregarded: quotas are counted over a day at most."""


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that the endpoint asks to wait, at most two minutes; None where it names no time that can be meant.

    Args:
        headers: of the response, by lower-case name: `retry-after-ms`, `retry-after` (seconds or a date).
        now: seconds since 1970; None: the clock's.
    """
    seconds = _number(headers.get("retry-after-ms"), 0.001)
    if seconds is None:
        said = headers.get("retry-after")
        seconds = _number(said, 1.0)
        if seconds is None:
            seconds = _until(said, time.time() if now is None else now)
    if seconds is None or seconds > _NOT_MEANT:
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


def cause_of(error: Exception, limit: float) -> str:
    """Return what went wrong: the status and the endpoint's own words, or the error below those of the client.

    Args:
        error: of the client, or of reading the reply.
        limit: seconds that a request may take.
    """
    if isinstance(error, openai.APIStatusError):
        return f"HTTP {error.status_code}: {_words(error)}"
    root = root_cause(error)
    if isinstance(error, openai.APITimeoutError) and (isinstance(root, TimeoutError | openai.APITimeoutError)):
        return f"no answer within {limit:g} s"
    if isinstance(root, openai.APIError):
        return f"{type(root).__name__}: {_words(root)}"
    return well_formed(f"{type(root).__name__}: {message_of(root)}")[:_LONGEST_WORDS]


def short_cause(error: Exception) -> str:
    """Return what went wrong in a word or two, for a display."""
    return str(error.status_code) if isinstance(error, openai.APIStatusError) else type(root_cause(error)).__name__


def raise_if_final(error: Exception, model: str, address: str, *, with_tools: bool) -> None:
    """Raise what a refusal that will not change means; return where another try may help."""
    if isinstance(root := root_cause(error), ssl.SSLCertVerificationError):
        raise EndpointRefused(
            f"the certificate of {address} is not trusted: {root.verify_message or root}. Correct OPENAI_BASE_URL, or "
            "name the authority's file in SSL_CERT_FILE"
        ) from error
    if not isinstance(error, openai.APIStatusError) or error.status_code >= 500:
        return
    said, status = _words(error), error.status_code
    if status == 429:
        if str(error.code) in _NO_CREDIT:
            raise EndpointRefused(f"{address} has no credit for {model!r}: {said}") from error
        return
    if str(error.code) in _TOO_LONG or any(words in str(error.message).lower() for words in _TOO_LONG_WORDS):
        raise ContextFull(said) from error
    if status in {401, 403, 404}:
        raise EndpointRefused(
            f"{address} refuses model {model!r} (HTTP {status}): {said}. Check OPENAI_BASE_URL, OPENAI_API_KEY and --model"
        ) from error
    if status not in {408, 409}:
        advice = ". If the endpoint does not support tools, use --tool-format text" if with_tools else ""
        raise RequestRejected(f"{address} rejects the request (HTTP {status}): {said}{advice}") from error


def _words(error: openai.APIError) -> str:
    """Return what the endpoint itself said, on one line."""
    said: Any = error.body
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    if not isinstance(said, str) or not said.strip():
        said = str(said or error.message)
    return well_formed(" ".join(said.split()))[:_LONGEST_WORDS].rstrip(".")


_FIRST_ERROR_PAUSE = 0.5
_LONGEST_ERROR_PAUSE = 30.0
_FIRST_QUOTA_PAUSE = 1.0
_LONGEST_QUOTA_PAUSE = 90.0
"""Longer than the minute over which most quotas are counted."""
_MOST_DOUBLINGS = 16
"""More would change nothing, and overflow in the end."""
_QUOTA_PATIENCE = 1800.0
"""Seconds of being told to wait after which the endpoint counts as down: thirty windows of a minute."""


@dataclass(slots=True)
class Backoff:
    """The pauses of one turn."""

    max_retries: int
    rng: random.Random = field(default_factory=random.Random)
    errors: int = 0
    refusals: int = 0
    waited: float = 0.0

    def after_error(self) -> float | None:
        """Return the seconds to wait before the next try, or None if this was the last."""
        if self.errors >= self.max_retries:
            return None
        pause: float = min(_LONGEST_ERROR_PAUSE, _FIRST_ERROR_PAUSE * 2 ** min(self.errors, _MOST_DOUBLINGS))
        self.errors += 1
        return pause * self.rng.uniform(0.5, 1.5)

    def after_refusal(self, retry_after: float | None, *, general: bool = True) -> float | None:
        """Return the seconds to wait after "too many requests", never less than the endpoint asked for; None: give up.

        Args:
            retry_after: the seconds that the endpoint named.
            general: whether others are refused, too; pauses grow only then.
        """
        if self.waited >= _QUOTA_PATIENCE:
            return None
        pause = min(_LONGEST_QUOTA_PAUSE, _FIRST_QUOTA_PAUSE * 2 ** min(self.refusals, _MOST_DOUBLINGS))
        self.refusals += general
        # Where the endpoint names a time, all who wait come back near it, not at it: else they would be refused again together.
        chosen = pause * self.rng.uniform(0.5, 1.5) if retry_after is None else retry_after + self.rng.uniform(0.0, 1.0)
        self.waited += chosen
        return chosen
