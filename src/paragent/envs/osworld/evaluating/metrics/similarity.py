"""The structural similarity of pictures (Wang et al. 2004), as published scores compute it.

Windows of seven by seven pixels count evenly, variances are those of samples, and windows that would leave the picture do
not count. The work is done in bands, so that memory does not grow with the picture's height.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._plugins import require

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["similarity"]

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
