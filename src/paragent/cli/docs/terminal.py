"""Markdown for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markdown import CodeBlock, Markdown
from rich.syntax import Syntax

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["rendered"]


class _CopiableCode(CodeBlock):
    """Code without indentation, padding and line breaks of its own: what is copied from the terminal is the code."""

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        code: Text = Syntax("", self.lexer_name, theme="ansi_dark").highlight(str(self.text).rstrip())
        code.no_wrap, code.overflow = True, "ignore"
        code.rstrip()
        yield code


class _Markdown(Markdown):
    elements = {**Markdown.elements, "fence": _CopiableCode, "code_block": _CopiableCode}  # noqa: RUF012 - as in the base


def rendered(text: str) -> Markdown:
    """Return the text as rich prints it."""
    return _Markdown(text, hyperlinks=False)
