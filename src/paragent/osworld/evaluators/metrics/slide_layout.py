"""Where shapes are and how large. Some of the options were made by OSWorld for one task each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Placing", "well_placed"]

_TOLERANCE = 0.005
"""The share by which places and sizes may differ by default."""
_LOWER_HALF, _RIGHT_PART, _UPPER_PART = 3_600_000, 4_320_000, 1_980_000
"""English Metric Units from the top, from the left and from the top, on a slide of 5,143,500 by 9,144,000."""
_FREEFORM, _PICTURE, _TABLE = 5, 13, 19
"""Kinds of shapes, by Microsoft's numbers."""
_TITLE = "Product Comparison"
_PROMPT = "Elaborate on what you want to discuss."


@dataclass(frozen=True, slots=True)
class Placing:
    """What counts about places and sizes, by the names of OSWorld's options without their `examine_`."""

    shape: bool = True
    """Every shape must be where its twin is, and as large; two without text need not."""
    title_bottom_position: bool = False
    """The title must have moved down; every shape with another text must be in place."""
    table_bottom_position: bool = False
    """The table of the third slide must have moved down; everything else must be in place."""
    right_position: bool = False
    """What has no text on the second slide must have moved to the right."""
    top_position: bool = False
    """The picture on the second slide must have moved up."""
    shape_for_shift_size: bool = False
    """Every shape must be in place, except the prompt."""
    image_size: bool = False
    """Pictures must be as large, everything else in place."""
    modify_height: bool = False
    """What has no text must be as high, everything else in place."""
    tolerance: float = _TOLERANCE

    @classmethod
    def of(cls, chosen: Mapping[str, Any], tolerance: float | None) -> Placing:
        """Return what the options say."""
        named = {one.name: chosen[one.name] for one in fields(cls) if one.name in chosen}
        return cls(**{**named, "tolerance": _TOLERANCE if tolerance is None else tolerance})


def well_placed(first: Any, second: Any, number: int, placing: Placing) -> bool:
    """Return whether a shape of the result is where it should be, given its twin and the number of their slide."""
    in_place = all(_near(first, second, side, placing) for side in ("left", "top", "width", "height"))
    kinds = (first.shape_type, second.shape_type)
    texts = [hasattr(shape, "text") for shape in (first, second)]
    if placing.shape and not in_place and not (_blank(first) and _blank(second)):
        return False
    if placing.title_bottom_position and not _title_moved(first, second, in_place, all(texts)):
        return False
    table = number == 3 and kinds == (_TABLE, _TABLE)
    if placing.table_bottom_position and not (_moved_down(first, second) if table else in_place):
        return False
    if placing.right_position and number == 2 and not any(texts) and not _moved_right(first, second):
        return False
    if placing.top_position and number == 2 and kinds == (_PICTURE, _PICTURE) and not _moved_up(first, second):
        return False
    if placing.shape_for_shift_size and not in_place and not (all(texts) and first.text == second.text == _PROMPT):
        return False
    if placing.image_size:
        as_large = _near(first, second, "width", placing) and _near(first, second, "height", placing)
        if not (as_large if kinds == (_PICTURE, _PICTURE) else in_place):
            return False
    if placing.modify_height:
        free = not any(texts) or kinds == (_FREEFORM, _FREEFORM)
        return _near(first, second, "height", placing) if free else in_place
    return True


def _title_moved(first: Any, second: Any, in_place: bool, both_text: bool) -> bool:
    if not (both_text and first.text == second.text):
        return in_place
    return first.text != _TITLE or _moved_down(first, second)


def _moved_down(first: Any, second: Any) -> bool:
    return bool(first.top > second.top and first.top >= _LOWER_HALF)


def _moved_right(first: Any, second: Any) -> bool:
    return bool(first.left > second.left and first.left >= _RIGHT_PART)


def _moved_up(first: Any, second: Any) -> bool:
    return bool(first.top < second.top and first.top <= _UPPER_PART)


def _blank(shape: Any) -> bool:
    return not (getattr(shape, "text", None) or "").strip()


def _near(first: Any, second: Any, side: str, placing: Placing) -> bool:
    """Return whether two shapes have about the same place or size.

    Raises:
        TypeError: only one of them says what it is.
    """
    one, other = getattr(first, side), getattr(second, side)
    if one == other:
        return True
    if 0 in (one, other):
        return False
    return bool(abs(one - other) / max(abs(one), abs(other)) <= placing.tolerance)
