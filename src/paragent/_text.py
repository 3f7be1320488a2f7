"""Text from outside, made well-formed: JSON can carry lone surrogates, which no file, database or connection takes."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["read_json", "well_formed", "well_formed_data"]


def well_formed(text: str) -> str:
    """Return `text` in a form that UTF-8 can encode: surrogate pairs are joined, lone surrogates become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_data(value: Any) -> Any:
    """Return JSON data with all its texts, keys included, made well-formed."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed_data(key): well_formed_data(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [well_formed_data(one) for one in value]
    return value


def read_json(text: str) -> Any:
    r"""Parse JSON and return it well-formed; only an escape such as `\ud800` can bring in a lone surrogate.

    Raises:
        ValueError: it is not JSON.
    """
    data = json.loads(text)
    return well_formed_data(data) if "\\u" in text or not text.isascii() else data
