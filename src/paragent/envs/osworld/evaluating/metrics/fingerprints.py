"""Fingerprints of pictures: what is left of them when only the coarse shapes count."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from paragent._plugins import require

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["distance"]

require("numpy", "PIL")
_SIDE = 32
"""Pixels to which a picture is made smaller: four for each of the eight frequencies that are kept."""
_KEPT = 8


def distance(first: Image, second: Image) -> int:
    """Return in how many of 64 bits the fingerprints of two pictures differ."""
    return int((_fingerprint(first) != _fingerprint(second)).sum())


def _fingerprint(picture: Image) -> Any:
    """Return which of the lowest frequencies of a picture's cosine transform are above their median."""
    import numpy as np
    from PIL.Image import Resampling

    small = np.asarray(picture.convert("L").resize((_SIDE, _SIDE), Resampling.LANCZOS), dtype=float)
    low = (_cosines() @ small @ _cosines().T)[:_KEPT, :_KEPT]
    return low > np.median(low)


@cache
def _cosines() -> Any:
    """Return the matrix of the cosine transform (type II)."""
    import numpy as np

    steps = np.arange(_SIDE)
    return 2 * np.cos(np.pi * steps[:, None] * (2 * steps[None, :] + 1) / (2 * _SIDE))
