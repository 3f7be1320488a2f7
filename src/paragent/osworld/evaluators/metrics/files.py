"""Metrics of text, JSON, CSV, SQLite and MP3 files."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.osworld.evaluators.metrics.matching import check_methods, matches, meets_rules
from paragent.osworld.evaluators.metrics.reading import lines_of, open_database, text_of
from paragent.osworld.evaluators.supported import checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "check_csv",
    "check_json_keybindings",
    "check_json_settings",
    "check_line_number",
    "check_list",
    "check_mp3_meta",
    "compare_config",
    "compare_csv",
    "compare_python_pure_text",
    "compare_result_files",
    "compare_text_file",
    "diff_text_file",
    "file_contains",
    "line_ratio",
    "run_sqlite3",
]


def check_json_settings(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a JSON file has every expected key with its value."""
    if not result:
        return False
    data = json.loads(text_of(result))
    return all(key in data and data[key] == value for key, value in rules["expected"].items())


def check_json_keybindings(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a JSON list, which may follow a comment line, has the expected entry."""
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
    """Return whether a settings file has the expected contents.

    Unless `containment_ok` is off it may have more: other keys if both are JSON, otherwise other text.
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
    """Return whether a file has the lines of the expected file, or of one of several; an unreadable file does not match."""
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
    """Return whether the file has each record of `expect` and none of `unexpect`."""
    if result is None:
        return False
    return meets_rules(csv.DictReader(io.StringIO(text_of(result))), rules)


def run_sqlite3(result: str, rules: Mapping[str, Any], **_: Any) -> float:
    """Return the first value of a query's result; the query can only read this database.

    Raises:
        sqlite3.Error: the file is not a database, or the query fails or does more than read.
    """
    with open_database(result) as connection:
        row = connection.execute(rules["sql"]).fetchone()
    return float((row and row[0]) or 0)


_TIME_OF_DAY = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)")
_PREAMBLE = ("#!", "# -*- coding:", "# coding:", "# coding=")
_PREAMBLE_LINES = 3
"""The maximum number of preamble lines of a program, such as a shebang or an encoding."""
_SAME_NUMBER = 1e-4
"""OSWorld's tolerance for numbers in files."""


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
    """Return whether a file contains every expected text."""
    if not result:
        return False
    text = text_of(result)
    return all(part in text for part in rules["expected"])


def check_list(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether each pattern of `expect` matches some line, and no pattern of `unexpect` any."""
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
    """Return whether two programs are equal except for empty lines, tabs, trailing spaces and the preamble."""
    return bool(result and expected) and _program(text_of(str(result))) == _program(text_of(str(expected)))


def _program(text: str) -> list[str]:
    lines = text.splitlines()
    start = 0
    while start < min(_PREAMBLE_LINES, len(lines)) and lines[start].strip().startswith(_PREAMBLE):
        start += 1
    return [line.expandtabs(4).rstrip() for line in lines[start:] if line.strip()]


def compare_result_files(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a file contains the expected number, or nearly that number, or otherwise has the same text."""
    if not result or not expected:
        return False
    found, wanted = text_of(result).strip(), text_of(expected).strip()
    try:
        number = float(wanted)
        return wanted in found or abs(float(found) - number) < _SAME_NUMBER
    except ValueError:
        return found == wanted


_FRAMES = {
    "title": ("TIT2", "TT2"),
    "artist": ("TPE1", "TP1"),
    "albumartist": ("TPE2", "TP2"),
    "album": ("TALB", "TAL"),
    "date": ("TDRC", "TYER", "TYE"),
    "genre": ("TCON", "TCO"),
    "tracknumber": ("TRCK", "TRK"),
    "discnumber": ("TPOS", "TPA"),
    "composer": ("TCOM", "TCM"),
    "bpm": ("TBPM", "TBP"),
    "copyright": ("TCOP", "TCR"),
    "language": ("TLAN", "TLA"),
    "lyricist": ("TEXT", "TXT"),
}
"""The tags that rules may name, and the frames that contain them."""
_OLD_FIELDS = {"TIT2": slice(3, 33), "TPE1": slice(33, 63), "TALB": slice(63, 93), "TDRC": slice(93, 97)}
"""The positions of the texts of version 1 in the last bytes of a file, by the frames that replaced them."""
_OLD_SIZE = 128
_ENCODINGS = ("latin-1", "utf-16", "utf-16-be", "utf-8")
_HEAD = 10
"""Bytes of the header of the tags, and of each frame since version 2.3."""
_UNSYNCHRONISED, _EXTENDED = 0x80, 0x40


@checked(rules=lambda rules: check_methods(rules.values()))
def check_mp3_meta(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tags of a file match their rules; a tag that is missing or unknown is an empty string.

    Raises:
        ValueError: the file has no tags.
    """
    if result is None:
        return False
    frames = _frames_of(Path(result))
    found = {tag: next((frames[name] for name in names if name in frames), "") for tag, names in _FRAMES.items()}
    return all(matches(found.get(tag.lower(), ""), rule) for tag, rule in rules.items())


def _frames_of(path: Path) -> dict[str, str]:
    """Return the texts of a file's tags by frame; tags of version 1, at the end of the file, count if there are no others."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        tagged = head[:3] == b"ID3" and head[3] in (2, 3, 4)
        frames = _frames(file.read(_number(head[6:10], 7)), head[3], head[5]) if tagged else {}
        file.seek(max(0, path.stat().st_size - _OLD_SIZE))
        old = file.read(_OLD_SIZE)
    if old.startswith(b"TAG"):
        texts = {name: text for name, place in _OLD_FIELDS.items() if (text := _old_text(old[place]))}
        return texts | _old_track(old) | frames
    if not tagged:
        raise ValueError("the file has no tags")
    return frames


def _old_text(data: bytes) -> str:
    return data.split(b"\0")[0].strip().decode("latin-1")


def _old_track(old: bytes) -> dict[str, str]:
    """Return the track number, which version 1.1 stores at the end of the comment."""
    return {"TRCK": str(old[126])} if old[125] == 0 and old[126] != 0 else {}


def _number(data: bytes, bits: int) -> int:
    """Return a number with `bits` bits per byte; with seven, no byte looks like the start of audio data."""
    number = 0
    for byte in data:
        number = number << bits | byte
    return number


def _frames(data: bytes, version: int, flags: int) -> dict[str, str]:
    """Return the texts of all text frames; several texts are joined by commas."""
    if version < 4 and flags & _UNSYNCHRONISED:
        data = data.replace(b"\xff\0", b"\xff")
    if version > 2 and flags & _EXTENDED:
        size = _number(data[:4], 7 if version == 4 else 8)
        data = data[size if version == 4 else size + 4 :]
    found: dict[str, str] = {}
    for name, body in _split(data, version):
        if name.startswith("T") and body and body[0] < len(_ENCODINGS):
            text = body[1:].decode(_ENCODINGS[body[0]], "replace")
            found[name] = ",".join(part for part in text.split("\0") if part)
    return found


def _split(data: bytes, version: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the contents of each frame."""
    letters, head = (3, 6) if version == 2 else (4, _HEAD)
    bits = 7 if version == 4 else 8
    while len(data) > head and data[0]:
        size = _number(data[letters : 2 * letters], bits)
        yield data[:letters].decode("latin-1"), data[head : head + size]
        data = data[head + size :]
