"""Text files, by lines or as a whole."""

from __future__ import annotations

import difflib
import io
import re
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.reading import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "check_line_number",
    "check_list",
    "compare_python_pure_text",
    "compare_result_files",
    "compare_text_file",
    "diff_text_file",
    "file_contains",
]

_TIME_OF_DAY = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)")
_PREAMBLE = ("#!", "# -*- coding:", "# coding:", "# coding=")
_PREAMBLE_LINES = 3
"""At most so many lines of a program may say what it is for the system rather than for people."""
_SAME_NUMBER = 1e-4
"""How far apart two numbers in files may be; OSWorld's own."""


def compare_text_file(
    result: str | None, expected: str, *, ignore_blanks: bool = False, ignore_case: bool = False, **_: Any
) -> bool:
    """Return whether two files have the same text."""
    if not result:
        return False
    texts = [text_of(result), text_of(expected)]
    if ignore_blanks:
        texts = [re.sub(r"\s+", " ", text.strip()) for text in texts]
    if ignore_case:
        texts = [text.lower() for text in texts]
    return texts[0] == texts[1]


def diff_text_file(result: str | None, expected: str, **_: Any) -> float:
    """Return the share of lines that two files have in common."""
    if result is None:
        return 0.0
    return line_ratio(text_of(result), text_of(expected))


def line_ratio(first: str, second: str) -> float:
    """Return the share of lines that two texts have in common."""
    return difflib.SequenceMatcher(a=first.splitlines(), b=second.splitlines()).ratio()


def file_contains(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a file has every expected text in it."""
    if not result:
        return False
    text = text_of(result)
    return all(part in text for part in rules["expected"])


def check_list(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether each pattern of `expect` is found in some line, and none of `unexpect` in any."""
    if result is None:
        return False
    lines = list(io.StringIO(text_of(result)))

    def found(pattern: str) -> bool:
        return any(re.search(pattern, line) for line in lines)

    return all(map(found, rules.get("expect", []))) and not any(map(found, rules.get("unexpect", [])))


def check_line_number(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a file has the expected number of lines with a time of day."""
    if result is None:
        return False
    lines = io.StringIO(text_of(result))
    return sum(1 for line in lines if _TIME_OF_DAY.search(line)) == int(rules["expected"])


def compare_python_pure_text(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two programs are the same but for empty lines, tabs, blanks at line ends and the first lines' preamble."""
    return bool(result and expected) and _program(text_of(str(result))) == _program(text_of(str(expected)))


def _program(text: str) -> list[str]:
    lines = text.splitlines()
    start = 0
    while start < min(_PREAMBLE_LINES, len(lines)) and lines[start].strip().startswith(_PREAMBLE):
        start += 1
    return [line.expandtabs(4).rstrip() for line in lines[start:] if line.strip()]


def compare_result_files(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a file has the expected number somewhere in its text, or nearly that number, or else the same text."""
    if not result or not expected:
        return False
    found, wanted = text_of(result).strip(), text_of(expected).strip()
    try:
        number = float(wanted)
        return wanted in found or abs(float(found) - number) < _SAME_NUMBER
    except ValueError:
        return found == wanted
