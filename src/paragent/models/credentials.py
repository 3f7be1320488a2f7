"""Credentials of model endpoints: address and key from the environment, or both from a `.env` file, never mixed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DEFAULT_URL", "NO_KEY", "endpoint_from_environment", "read_env_file"]

DEFAULT_URL = "https://api.openai.com/v1"
"""The address for a key that comes without one."""
NO_KEY = (
    "there is no API key for the model's endpoint: set OPENAI_API_KEY in the environment or in a file .env (any text if the "
    "endpoint needs none), or use `--model demo`, a scripted policy that needs no endpoint"
)


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a `.env` file; empty if the file does not exist. `${NAME}` is not expanded.

    Expansion would let a `.env` file of somebody else put the user's variables into an address.
    """
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    values = dotenv_values(path, interpolate=False, encoding="utf-8")
    return {name: value for name, value in values.items() if value is not None}


def endpoint_from_environment(folder: Path) -> tuple[str | None, str | None]:
    """Return base URL and API key: both from the environment if it has a key, otherwise both from `folder/.env`.

    A `.env` file may come with a folder that somebody else wrote. It must not send the user's key to its own address, and
    its key must not go to an address that it was not made for.

    Raises:
        ConfigError: the key is in one source and the address in the other.
    """
    file = folder / ".env"
    environment, env_file = _endpoint(os.environ), _endpoint(read_env_file(file))
    if environment.key:
        if env_file.url and not environment.url:
            raise ConfigError(_mixed("the environment", str(file), env_file.url))
        return environment.url or DEFAULT_URL, environment.key
    if env_file.key:
        if environment.url and environment.url != env_file.url:
            raise ConfigError(_mixed(str(file), "the environment", environment.url))
        return env_file.url or DEFAULT_URL, env_file.key
    return environment.url or env_file.url, None


class _Endpoint(NamedTuple):
    url: str | None
    key: str | None


def _endpoint(source: Mapping[str, str]) -> _Endpoint:
    return _Endpoint(source.get("OPENAI_BASE_URL") or None, source.get("OPENAI_API_KEY") or None)


def _mixed(with_key: str, with_url: str, url: str) -> str:
    return (
        f"OPENAI_API_KEY is set in {with_key}, OPENAI_BASE_URL={url} in {with_url}: a key is sent only to an address from the "
        f"same source. Set both in the environment, or both in .env (OpenAI's address is {DEFAULT_URL})"
    )
