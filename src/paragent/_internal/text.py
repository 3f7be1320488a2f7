"""Text: valid Unicode from JSON, output without control characters, and plural forms."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = [
    "SafeStream",
    "counted",
    "printable",
    "read_json",
    "safe_console",
    "safe_streams",
    "suggestion",
    "unwrapped",
    "well_formed",
    "well_formed_data",
]


def well_formed(text: str) -> str:
    """Return `text` in a form that UTF-8 can encode: surrogate pairs are joined, lone surrogates become U+FFFD.

    JSON can contain lone surrogates, which files, databases and connections do not accept.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_data(value: Any) -> Any:
    """Return JSON data in which all strings, keys included, are well-formed."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed_data(key): well_formed_data(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [well_formed_data(one) for one in value]
    return value


def read_json(text: str) -> Any:
    r"""Parse JSON and return well-formed data; lone surrogates come only from escapes such as `\ud800`.

    Raises:
        ValueError: it is not JSON.
    """
    import json  # not at the top: every worker loads this module, and few read JSON

    data = json.loads(text)
    return well_formed_data(data) if "\\u" in text or not text.isascii() else data


_CONTROLS = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # C0 without tab and line feed
    "\x80-\x9f"  # C1: \x9b begins a sequence as ESC [ does
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates of text direction
    "\u2028\u2029"  # line and paragraph separators
    "]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text without control characters; line feeds and tabs stay, lone surrogates become U+FFFD."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


class SafeStream:
    """An output stream that removes control characters; all else is passed to the wrapped stream."""

    def __init__(self, stream: Any) -> None:
        self.wrapped = stream

    def write(self, text: str) -> int:
        """Write text without its control characters."""
        self.wrapped.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several strings without their control characters."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def unwrapped(stream: Any) -> Any:
    """Return the stream that a `SafeStream` wraps, for code that writes escape sequences of its own."""
    return stream.wrapped if isinstance(stream, SafeStream) else stream


def safe_console(*, stderr: bool = False, **settings: Any) -> Console:
    """Return a console of rich that removes control characters from text; its own styles and controls stay.

    Names of emoji such as `:key:` stay as well: texts of models have them.
    """
    return _console_class()(file=unwrapped(sys.stderr if stderr else sys.stdout), emoji=False, **settings)


@functools.cache
def _console_class() -> type[Console]:
    from rich.console import Console  # imported here because it takes long and few processes need it
    from rich.segment import Segment

    class SafeConsole(Console):
        """Removes control characters from every text that is rendered, in tables and live displays too."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None and (text := printable(segment.text)) != segment.text:
                    yield Segment(text, segment.style)
                else:
                    yield segment

    return SafeConsole


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by safe streams inside a `with` block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = mine = tuple(None if one is None else SafeStream(unwrapped(one)) for one in before)
    try:
        yield
    finally:
        for name, stream, own in zip(("stdout", "stderr"), before, mine, strict=True):
            if getattr(sys, name) is own:  # else other code has replaced it meanwhile
                setattr(sys, name, stream)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 machine`, `0 machines`, `12,000 machines`; `plural` is for irregular nouns."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def suggestion(name: str, known: Iterable[str], part: Callable[[str], str] = str) -> str:
    """Return a question that names the most similar known name, to be put after a message; empty if none is similar.

    Args:
        name: what the user wrote.
        known: the names that exist.
        part: returns the part of a name that is compared.
    """
    import difflib  # not at the top: it is used only for messages

    parts = {part(one): one for one in known}
    close = difflib.get_close_matches(part(name), list(parts), n=1)
    return f", did you mean {parts[close[0]]!r}?" if close else ""
