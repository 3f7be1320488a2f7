"""Credentials of model endpoints: address and key from the environment, or both from a `.env` file, never mixed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from paragent._internal.redaction import Redactor, secrets_in_headers, secrets_in_url
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from paragent.models.base import ModelSettings

__all__ = [
    "ANTHROPIC_URL",
    "DEFAULT_URL",
    "check_address",
    "default_url",
    "endpoint_from_environment",
    "no_key",
    "read_env_file",
    "redactor_of",
    "shown_address",
    "variables",
]

DEFAULT_URL = "https://api.openai.com/v1"
"""The address for a key that comes without one."""
ANTHROPIC_URL = "https://api.anthropic.com"
"""The same, for `--api anthropic`."""


def variables(api: str) -> tuple[str, str]:
    """Return the names of the variables with the address and the key of an endpoint."""
    vendor = "ANTHROPIC" if api == "anthropic" else "OPENAI"
    return f"{vendor}_BASE_URL", f"{vendor}_API_KEY"


def default_url(api: str) -> str:
    """Return the address for a key that comes without one."""
    return ANTHROPIC_URL if api == "anthropic" else DEFAULT_URL


def check_address(url: str, source: str) -> None:
    """Check the form of the address of an endpoint, before requests to it are repeated in vain.

    Raises:
        ConfigError: it is not an HTTP address; the message names `source`.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{source}: the address of an endpoint begins with http:// or https://, not {url!r}")


def shown_address(url: str) -> str:
    """Return an address without the user, password, query and fragment that it may have, for messages."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def redactor_of(settings: ModelSettings) -> Redactor:
    """Return what removes the secrets of requests to an endpoint from its errors and replies.

    They are the key, the custom headers of the environment, and passwords and keys in the addresses of endpoint and proxies.
    """
    from urllib.request import getproxies

    vendor = "ANTHROPIC" if settings.api == "anthropic" else "OPENAI"
    lines = os.environ.get(f"{vendor}_CUSTOM_HEADERS", "").splitlines()
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    secret, other = secrets_in_headers(headers)
    addresses = [settings.base_url, *getproxies().values()]
    in_addresses = [one for address in addresses for one in secrets_in_url(address)]
    return Redactor([settings.api_key or "", *in_addresses, *secret], other)


def no_key(api: str) -> str:
    """Return the message about a missing key."""
    return (
        f"there is no API key for the model's endpoint: set {variables(api)[1]} in the environment or in a file .env (any text "
        "if the endpoint needs none), or use `--model demo`, a scripted policy that needs no endpoint"
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


def endpoint_from_environment(folder: Path, api: str = "chat") -> tuple[str | None, str | None]:
    """Return base URL and API key: both from the environment if it has a key, otherwise both from `folder/.env`.

    A `.env` file may come with a folder that somebody else wrote. It must not send the user's key to its own address, and
    its key must not go to an address that it was not made for.

    Args:
        folder: the folder of the file.
        api: the protocol of the endpoint: `anthropic` has other variables than `chat` and `responses`.

    Raises:
        ConfigError: the key is in one source and the address in the other.
    """
    file = folder / ".env"
    environment, env_file = _endpoint(os.environ, api), _endpoint(read_env_file(file), api)
    if environment.key:
        if env_file.url and not environment.url:
            raise ConfigError(_mixed("the environment", str(file), env_file.url, api))
        return environment.url or default_url(api), environment.key
    if env_file.key:
        if environment.url and environment.url != env_file.url:
            raise ConfigError(_mixed(str(file), "the environment", environment.url, api))
        return env_file.url or default_url(api), env_file.key
    return environment.url or env_file.url, None


class _Endpoint(NamedTuple):
    url: str | None
    key: str | None


def _endpoint(source: Mapping[str, str], api: str) -> _Endpoint:
    address, key = variables(api)
    return _Endpoint(source.get(address) or None, source.get(key) or None)


def _mixed(with_key: str, with_url: str, url: str, api: str) -> str:
    address, key = variables(api)
    return (
        f"{key} is set in {with_key}, {address}={shown_address(url)} in {with_url}: a key is sent only to an address from the "
        f"same source. Set both in the environment, or both in .env (the default address is {default_url(api)})"
    )
