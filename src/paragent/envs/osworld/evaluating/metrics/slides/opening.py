"""Presentations as metrics read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.reading import check_package

if TYPE_CHECKING:
    from pptx.presentation import Presentation

__all__ = ["background_fill", "presentation"]

require("pptx")
_SOLID, _INHERITED = 1, 5
"""Kinds of fills, by Microsoft's numbers."""


def presentation(path: str) -> Presentation:
    """Return a presentation.

    Raises:
        TooLarge: it unpacks to an unbearable size.
        zipfile.BadZipFile: it is no presentation.
    """
    from pptx import Presentation

    return Presentation(check_package(path))


def background_fill(slide: Any) -> Any:
    """Return the fill of a plain colour behind a slide, its own or its master's; None if there is none."""
    fill = slide.background.fill
    if fill.type == _INHERITED:
        fill = slide.slide_layout.slide_master.background.fill
    return fill if fill.type == _SOLID else None
