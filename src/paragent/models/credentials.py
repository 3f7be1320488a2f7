"""Where the address and the key of an endpoint come from: the environment, else a file `.env`, never some of both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DEFAULT_URL", "NO_KEY", "endpoint_from_environment", "read_env_file"]

DEFAULT_URL = "https://api.openai.com/v1"
"""Where a key belongs that comes without an address."""
NO_KEY = (
    "no key for the model's endpoint: set OPENAI_API_KEY (any text will do for an endpoint that needs none), put it into a file "
    ".env, or use `--model demo`, a hand-written policy that is no LLM and needs no endpoint"
)
"""What to say to those who have none."""


def read_env_file(path: Path) -> dict[str, str]:
    """Return the assignments in a `.env` file: `NAME=value` lines, `export` and quotes allowed; empty if there is none."""
    if not path.is_file():
        return {}
    values = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip().removeprefix("export ").strip()
        name, separator, value = text.partition("=")
        if text.startswith("#") or not separator:
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        else:
            value = value.partition(" #")[0].rstrip()
        values[name.strip()] = value
    return values


def endpoint_from_environment(folder: Path) -> tuple[str | None, str | None]:
    """Return the base URL and the key of the endpoint: both from the environment if it has a key, else both from `folder/.env`.

    A `.env` may come with a folder that was written by somebody else. It must not direct the user's own key to its address,
    nor may its key go to an address that it was not made for.

    Raises:
        ConfigError: one source has the key, the other one the address.
    """
    file = folder / ".env"
    own, written = _endpoint(os.environ), _endpoint(read_env_file(file))
    if own.key:
        if written.url and not own.url:
            raise ConfigError(_mixed("the environment", str(file), written.url))
        return own.url or DEFAULT_URL, own.key
    if written.key:
        if own.url and own.url != written.url:
            raise ConfigError(_mixed(str(file), "the environment", own.url))
        return written.url or DEFAULT_URL, written.key
    return own.url or written.url, None


class _Endpoint(NamedTuple):
    url: str | None
    key: str | None


def _endpoint(source: Mapping[str, str]) -> _Endpoint:
    return _Endpoint(source.get("OPENAI_BASE_URL") or None, source.get("OPENAI_API_KEY") or None)


def _mixed(with_key: str, with_url: str, url: str) -> str:
    return (
        f"OPENAI_API_KEY is set in {with_key}, OPENAI_BASE_URL={url} in {with_url}: a key is sent only to an address from the "
        f"same place. Set both in the environment, or both in .env (the address of OpenAI is {DEFAULT_URL})"
    )
