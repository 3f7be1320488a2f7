"""Text of others on the user's terminal: without the characters that control it.

Models, pages, guests, task files and error messages may hold escape sequences that write to the clipboard (OSC 52), change the
title, move the cursor over what was printed before, or turn the direction of the text.
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SafeStream", "behind", "printable", "safe_streams"]

_CONTROLS = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # C0 without tab and line feed
    "\x80-\x9f"  # C1: \x9b begins a sequence as ESC [ does
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates of direction
    "\u2028\u2029"  # other ends of lines
    "]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text without control characters; line feeds and tabs stay, lone surrogates become replacement characters."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


class SafeStream:
    """An output stream that lets only printable text through; all else is as in the stream behind."""

    def __init__(self, stream: Any) -> None:
        self.behind = stream

    def write(self, text: str) -> int:
        """Write a text without its control characters."""
        self.behind.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts so."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def behind(stream: Any) -> Any:
    """Return the stream that a `SafeStream` protects, for those who draw with escape sequences of their own."""
    return stream.behind if isinstance(stream, SafeStream) else stream


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Protect `sys.stdout` and `sys.stderr` for the length of a `with`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = mine = tuple(None if one is None else SafeStream(behind(one)) for one in before)
    try:
        yield
    finally:
        for name, stream, own in zip(("stdout", "stderr"), before, mine, strict=True):
            if getattr(sys, name) is own:  # else somebody else took it over meanwhile
                setattr(sys, name, stream)
