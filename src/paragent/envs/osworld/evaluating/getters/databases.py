"""Rows of an SQLite file; runs in a helper."""

from __future__ import annotations

from typing import Any

from paragent.envs.osworld.evaluating.metrics.reading import open_database

__all__ = ["rows"]

_MOST = 100_000
"""Rows; a browser's history has a few thousand."""


def rows(path: str, query: str) -> list[list[Any]]:
    """Return what a query gives, of the first rows at most; bytes are left out, since they are no JSON.

    Raises:
        sqlite3.Error: it is no database, or has no such table.
    """
    with open_database(path, immutable=True) as connection:
        found = connection.execute(query).fetchmany(_MOST)
    return [[None if isinstance(value, bytes) else value for value in row] for row in found]
