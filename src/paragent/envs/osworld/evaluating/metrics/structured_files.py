"""JSON, CSV and SQLite files."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.reading import lines_of, open_database, text_of
from paragent.envs.osworld.evaluating.metrics.value_rules import meets_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "check_csv",
    "check_json_keybindings",
    "check_json_settings",
    "compare_config",
    "compare_csv",
    "run_sqlite3",
]


def check_json_settings(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a JSON file has every expected key with its value."""
    if not result:
        return False
    data = json.loads(text_of(result))
    return all(key in data and data[key] == value for key, value in rules["expected"].items())


def check_json_keybindings(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a JSON list, which may come after a line of comment, has the expected entry."""
    if not result:
        return False
    text = text_of(result)
    for part in (text, text.partition("\n")[2]):
        try:
            data = json.loads(part)
        except ValueError:
            continue
        if isinstance(data, list):
            return rules["expected"] in data
    return False


def compare_config(result: str | None, rules: Mapping[str, Any], *, containment_ok: bool = True, **_: Any) -> bool:
    """Return whether a settings file has what is expected.

    Unless `containment_ok` is off it may have more: other keys where both are JSON, other text where they are not.
    """
    expected = rules.get("expected")
    if not result or not expected:
        return False
    text = text_of(result)
    try:
        found, wanted = json.loads(text), json.loads(expected)
    except ValueError:
        return expected.strip() in text if containment_ok else text == expected
    return _within(wanted, found) if containment_ok else text == expected or found == wanted


def _within(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and _within(value, found[key]) for key, value in wanted.items()
        )
    return bool(wanted == found)


def compare_csv(
    result: str | None, expected: str | list[str], *, strict: bool = True, ignore_case: bool = False, **_: Any
) -> bool:
    """Return whether a file has the lines of the expected file, or of one of several; one that cannot be read has none."""
    if result is None:
        return False

    def lines(path: str) -> list[str]:
        read = lines_of(path) if strict else [line.strip() for line in lines_of(path)]
        return [line.lower() for line in read] if ignore_case else read

    wanted = expected if isinstance(expected, list) else [expected]
    with suppress(OSError):
        found = lines(result)
        return any(Path(path).is_file() and found == lines(path) for path in wanted)
    return False


def check_csv(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether each record of `expect` is in the file, and none of `unexpect`."""
    if result is None:
        return False
    return meets_rules(csv.DictReader(io.StringIO(text_of(result))), rules)


def run_sqlite3(result: str, rules: Mapping[str, Any], **_: Any) -> float:
    """Return the first value that a query of a database gives; the query can read that database and nothing else.

    Raises:
        sqlite3.Error: it is no database, or the query fails or does more than read.
    """
    with open_database(result) as connection:
        row = connection.execute(rules["sql"]).fetchone()
    return float((row and row[0]) or 0)
