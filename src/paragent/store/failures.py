"""Messages of failures without their varying parts."""

from __future__ import annotations

import re

__all__ = ["normalised_message"]

_VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"")
"""What differs between two messages of the same error: numbers, addresses, quoted names."""


def normalised_message(error: str) -> str:
    """Return the first line of an error with `…` in place of numbers, addresses and quoted names."""
    return _VARYING.sub("…", error.partition("\n")[0])
