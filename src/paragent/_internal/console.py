"""A console of rich that prints text without control characters; its own styles and controls stay."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment

from paragent._internal.text import behind, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

__all__ = ["SafeConsole"]


class SafeConsole(Console):
    """Every text that is rendered, in tables and live displays too, passes here."""

    def __init__(self, *, stderr: bool = False, **more: Any) -> None:
        super().__init__(file=behind(sys.stderr if stderr else sys.stdout), **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, and remove controls from the texts."""
        for segment in super().render(renderable, options):
            if segment.control is None and (text := printable(segment.text)) != segment.text:
                yield Segment(text, segment.style)
            else:
                yield segment
