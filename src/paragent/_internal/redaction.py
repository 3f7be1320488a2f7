"""`Redactor`: removes the user's secrets from text and data of a server that may repeat them in its errors and replies.

It is applied where such text enters the program, so that everything behind it (journal, terminal, agents) never has a secret.
"""

from __future__ import annotations

import base64
import html
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from paragent._internal.tracebacks import message_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Redactor", "secrets_in_headers", "secrets_in_url"]

_MARK = "…"
_SHORTEST = 8
"""Characters of a secret. Placeholders for endpoints without keys, such as `EMPTY`, are shorter and occur in other text."""
_SHORTEST_IN_DATA = 16
"""Characters of a secret in data, such as a model's answer, where a placeholder such as `not-needed` may occur by itself."""
_PART = 12
"""Characters of a part of a secret that is removed from text: servers cut what they repeat."""
_LONGEST_TEXT = 1 << 16
"""Characters of a message; longer ones are cut."""
_PATTERNS = (
    re.compile(r"(?i)(\b(?:bearer|basic) +)(?=[^\s\"'<>]*\d)[^\s\"'<>,;]{8,}"),
    re.compile(r"(?i)([?&](?:api[-_]?key|key|access[-_]?token|token|secret|sig|signature)=)[^\s\"'<>&]{8,}"),
    re.compile(r"\b(sk-)[A-Za-z0-9_-]{16,}"),
)
"""Secrets of any owner: proxies repeat the keys of the servers behind them, too. The first group stays."""
_ORDINARY_HEADERS = frozenset(
    {"accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection", "content-type", "user-agent"}
    | {"openai-organization", "openai-project"}
)
"""Headers without secrets, which error messages of endpoints name."""
_SECRET_NAME = re.compile(r"(?i)auth|key|token|secret|pass|cookie|credential|session|sign")
_PLACES = ("/", "./", "../", "~/", "http://", "https://")
"""How values begin that are a path or an address, such as that of a file with keys."""
_ATTRIBUTES = ("message", "body", "code", "param", "type")
"""Where exceptions of HTTP clients keep what the server sent."""


class Redactor:
    """Removes secrets.

    Args:
        secrets: values that nobody else may see. Short ones are ignored.
        private: values that are removed from messages, but not from data, where they may occur by themselves.
    """

    def __init__(self, secrets: Iterable[str], private: Iterable[str] = ()) -> None:
        kept = [secret for secret in dict.fromkeys(secrets) if len(secret) >= _SHORTEST]
        also = [secret for secret in dict.fromkeys(private) if len(secret) >= _SHORTEST]
        self._forms = _longest_first(form for secret in (*kept, *also) for form in _forms(secret))
        whole = (form for secret in kept if len(secret) >= _SHORTEST_IN_DATA for form in _forms(secret))
        self._whole = _longest_first(whole)
        self._parts = {form[start : start + _PART] for form in self._forms for start in range(len(form) - _PART + 1)}

    def text(self, text: str) -> str:
        """Return a message without secrets, parts of them, and what looks like a key of somebody else."""
        text = text[:_LONGEST_TEXT]
        for form in self._forms:
            text = text.replace(form, _MARK)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\1{_MARK}", text)
        return self._without_parts(text)

    def data(self, value: Any) -> Any:
        """Return JSON data without whole secrets. If it has none, `value` itself is returned."""
        return self._replaced(value) if self._occurs(value) else value

    def error(self, error: BaseException) -> None:
        """Remove secrets from the messages of an error and of its causes, in place."""
        seen: set[int] = set()
        current: BaseException | None = error
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            self._clean(current)
            for name in ("__cause__", "__context__"):
                cause = getattr(current, name)
                if cause is not None and self._repeats(cause):
                    setattr(current, name, Exception(f"{type(cause).__name__}: {self.text(message_of(cause))}"))
            current = current.__cause__ or current.__context__

    def _occurs(self, value: Any) -> bool:
        if isinstance(value, str):
            return any(form in value for form in self._whole)
        if isinstance(value, dict):
            return any(map(self._occurs, value)) or any(map(self._occurs, value.values()))
        # A list of numbers, such as token ids, has no text.
        return (
            isinstance(value, list) and bool(value) and not isinstance(value[0], int) and any(map(self._occurs, value))
        )

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            for form in self._whole:
                value = value.replace(form, _MARK)
        elif isinstance(value, dict):
            return {self._replaced(key): self._replaced(one) for key, one in value.items()}
        elif isinstance(value, list):
            return [self._replaced(one) for one in value]
        return value

    def _clean(self, error: BaseException) -> None:
        error.args = tuple(self._deep(one) for one in error.args)
        for name in _ATTRIBUTES:
            if isinstance(found := error.__dict__.get(name), str | dict | list):
                setattr(error, name, self._deep(found))

    def _repeats(self, error: BaseException) -> bool:
        """Return whether an error has a secret even after `_clean`: its message is made from other attributes."""
        self._clean(error)
        message = message_of(error)
        return self.text(message) != message

    def _deep(self, value: Any) -> Any:
        """Return data of an error with all texts cleaned as messages; large data become text."""
        if isinstance(value, dict | list):
            try:
                written = json.dumps(value, ensure_ascii=False, default=repr)
            except (ValueError, RecursionError):
                return _MARK
            if len(written) > _LONGEST_TEXT:
                return self.text(written)
        return self._cleaned(value)

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._cleaned(key): self._cleaned(one) for key, one in value.items()}
        return [self._cleaned(one) for one in value] if isinstance(value, list) else value

    def _without_parts(self, text: str) -> str:
        """Return text without parts of secrets."""
        if not self._parts or len(text) < _PART:
            return text
        kept: list[str] = []
        end = 0
        for start in range(len(text) - _PART + 1):
            if text[start : start + _PART] in self._parts:
                if start > end or not kept or kept[-1] != _MARK:
                    kept += [text[end:start], _MARK]
                end = start + _PART
        return "".join([*kept, text[end:]]) if end else text


def _longest_first(forms: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(forms), key=len, reverse=True)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it stands in plain text, JSON, addresses, web pages and headers of basic authentication."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield html.escape(secret)
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
    yield base64.b64encode(secret.encode(errors="replace")).decode().rstrip("=")


def secrets_in_url(url: str | None) -> list[str]:
    """Return the user, password and query values of an address."""
    parts = urlsplit(url or "")
    login, at, _ = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    names = [user, password, unquote(user), unquote(password), f"{unquote(user)}:{unquote(password)}"] if at else []
    return [*names, *(value for _, value in parse_qsl(parts.query))]


def secrets_in_headers(headers: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the values of headers or variables that are secrets by their names, and the other values that a user has set."""
    secret: list[str] = []
    other: list[str] = []
    for name, value in headers.items():
        ordinary = name.lower() in _ORDINARY_HEADERS or name.lower().startswith("x-stainless")
        if isinstance(value, str) and not ordinary and not value.startswith(_PLACES):
            chosen = secret if _SECRET_NAME.search(name) else other
            chosen += [value, value.partition(" ")[2]]
    return secret, other
