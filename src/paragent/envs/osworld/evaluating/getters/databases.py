"""Rows of an SQLite file; runs in a helper."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

__all__ = ["rows"]

_MOST = 100_000
"""Rows; a browser's history has a few thousand."""


def rows(path: str, query: str) -> list[list[Any]]:
    """Return what a query gives, of the first rows at most; bytes are left out, since they are no JSON.

    Raises:
        sqlite3.Error: it is no database, or has no such table.
    """
    connection = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        found = connection.execute(query).fetchmany(_MOST)
    finally:
        connection.close()
    return [[None if isinstance(value, bytes) else value for value in row] for row in found]
