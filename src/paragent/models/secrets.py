"""Where the address and the key of an endpoint come from: the environment, else a file `.env`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NO_KEY", "endpoint_from_environment", "read_env_file"]

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
    """Return the base URL and the key of the endpoint; the environment wins over `folder/.env`."""
    written = read_env_file(folder / ".env")
    return tuple(os.environ.get(name) or written.get(name) or None for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"))  # type: ignore[return-value]
