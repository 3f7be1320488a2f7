"""The structural similarity of pictures (Wang et al. 2004), as published scores compute it.

Windows of seven by seven pixels count evenly, variances are those of samples, and windows that would leave the picture do
not count. The work is done in bands, so that memory does not grow with the picture's height.
"""

from __future__ import annotations

from functools import cache
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["difference", "distance", "similarity"]


require("numpy", "PIL")
WINDOW = 7
_BAND = 256
"""Rows of windows at a time: some ten arrays of 256 x 4,000 numbers take 80 MB."""
_LEVELS = 255
_C1, _C2 = (0.01 * _LEVELS) ** 2, (0.03 * _LEVELS) ** 2


def similarity(first: Image, second: Image, *, window: int = WINDOW) -> float:
    """Return the similarity of two pictures of the same size and kind, the mean of their channels.

    Raises:
        ValueError: they have not the same size, or are smaller than a window.
    """
    import numpy as np

    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape:
        raise ValueError(f"pictures of the shapes {one.shape} and {other.shape} cannot be compared")
    if min(one.shape[:2]) < window or window < 2:
        raise ValueError(f"a picture must have at least {WINDOW} x {WINDOW} pixels")
    if one.ndim == 2:
        one, other = one[:, :, None], other[:, :, None]
    channels = range(one.shape[2])
    return float(np.mean([_of_channel(one[:, :, channel], other[:, :, channel], window) for channel in channels]))


def _of_channel(first: Any, second: Any, window: int) -> float:
    total, count = 0.0, 0
    for top in range(0, first.shape[0] - window + 1, _BAND):
        rows = slice(top, top + _BAND + window - 1)
        values = _of_band(first[rows].astype(float), second[rows].astype(float), window)
        total += float(values.sum())
        count += values.size
    return total / count


def _of_band(x: Any, y: Any, window: int) -> Any:
    pixels = window * window
    sample = pixels / (pixels - 1)
    mean_x, mean_y = _means(x, window), _means(y, window)
    variance_x = sample * (_means(x * x, window) - mean_x * mean_x)
    variance_y = sample * (_means(y * y, window) - mean_y * mean_y)
    covariance = sample * (_means(x * y, window) - mean_x * mean_y)
    alike = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return alike / ((mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2))


def _means(values: Any, window: int) -> Any:
    """Return the mean of each window that lies inside."""
    import numpy as np

    for axis in (0, 1):
        windows = np.lib.stride_tricks.sliding_window_view(values, window, axis=axis)
        values = windows.mean(axis=-1)
    return values


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


_WHITE = (0.95047, 1.0, 1.08883)
"""Daylight (D65) for an observer of two degrees."""
_EPSILON, _KAPPA = 0.008856, 7.787
"""Where the cube root of CIELAB becomes a straight line, and how steep."""


def difference(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Return the difference of two colours given as red, green, blue from 0 to 255; below about 2 nobody sees it."""
    (l1, a1, b1), (l2, a2, b2) = _lab(first), _lab(second)
    chroma = (hypot(a1, b1) + hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * sqrt(chroma**7 / (chroma**7 + 25.0**7))
    a1, a2 = a1 * stretch, a2 * stretch
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = (degrees(atan2(b, a)) % 360 if a or b else 0.0 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * cos(radians(hue - 30)) + 0.24 * cos(radians(2 * hue))
    t += 0.32 * cos(radians(3 * hue + 6)) - 0.20 * cos(radians(4 * hue - 63))
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * c)
    by_hue = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * c * t)
    bend = 2 * sqrt(c**7 / (c**7 + 25.0**7)) * sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt(by_light**2 + by_chroma**2 + by_hue**2 - bend * by_chroma * by_hue)


def _lab(colour: tuple[int, ...]) -> tuple[float, float, float]:
    red, green, blue = (_linear(part / 255) for part in colour)
    xyz = (
        0.412453 * red + 0.357580 * green + 0.180423 * blue,
        0.212671 * red + 0.715160 * green + 0.072169 * blue,
        0.019334 * red + 0.119193 * green + 0.950227 * blue,
    )
    x, y, z = (_root(value / white) for value, white in zip(xyz, _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(part: float) -> float:
    return ((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92


def _root(value: float) -> float:
    return float(value ** (1 / 3)) if value > _EPSILON else _KAPPA * value + 16 / 116
