"""Metrics of images: structural similarity, hashes, colours and sizes."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL.Image import Image

__all__ = [
    "check_brightness_decrease_and_structure_sim",
    "check_contrast_increase_and_structure_sim",
    "check_file_exists_and_structure_sim",
    "check_green_background",
    "check_image_file_size",
    "check_image_mirror",
    "check_image_size",
    "check_palette_and_structure_sim",
    "check_saturation_increase_and_structure_sim",
    "check_structure_sim",
    "check_structure_sim_resized",
    "check_structure_sim_with_threshold",
    "check_textbox_on_leftside",
    "check_triangle_position",
    "compare_image_list",
    "compare_images",
    "difference",
    "distance",
    "similarity",
]

require("numpy", "PIL")
_MOST_PIXELS = 64_000_000
"""Maximum number of pixels of an image; a photograph has 24 to 50 million."""
_ABOVE_BASE = 0.01
"""OSWorld's threshold, like the others: how much better a score must be than that of the unchanged image."""
_EDGE = 0.05
"""The share of an image's width or height that counts as its edge, or its centre."""
_DARK = 128


def _open_image(path: str) -> Image:
    """Return an image of acceptable size, read completely.

    Raises:
        ValueError: it is too large.
        OSError: it is not an image, or truncated.
    """
    from PIL import Image as Images

    with Images.open(path) as image:
        _checked_size(image).load()
        return image


def _checked_size(image: Image) -> Image:
    if image.width * image.height > _MOST_PIXELS:
        raise ValueError(f"an image of {image.width} x {image.height} pixels is too large")
    return image


def _similar(first: Image, second: Image, threshold: float = 0.9) -> bool:
    """Return whether two images have the same size and a structural similarity of at least the threshold."""
    if first.size != second.size or min(first.size) < _WINDOW:
        return False
    return similarity(first.convert("RGB"), second.convert("RGB")) >= threshold


def compare_images(
    result: str | None, expected: str | None, *, reference_base_result: float | None = None, **_: Any
) -> float:
    """Return the structural similarity of two greyscale images, resized to the smaller one.

    With `reference_base_result`, the score of the unchanged image, only the part above it counts.
    """
    from PIL.Image import Resampling

    if not result or not expected:
        return 0.0
    pair = [_open_image(path).convert("L") for path in (result, expected)]
    size = min(image.size for image in pair)
    found = similarity(*(image.resize(size, Resampling.LANCZOS) for image in pair))
    if reference_base_result is None:
        return found
    if found < reference_base_result + _ABOVE_BASE:
        return 0.0
    return (found - reference_base_result) / (1 - reference_base_result)


def compare_image_list(result: Any, expected: Any, **_: Any) -> bool:
    """Return whether the images are pairwise equal pixel by pixel, after conversion to the same size and mode."""
    from PIL import ImageChops
    from PIL.Image import Resampling

    pairs = zip(result, expected, strict=False) if isinstance(result, list) else [(result, expected)]
    for found, wanted in pairs:
        if not found or not wanted:
            return False
        one, other = _open_image(found), _open_image(wanted)
        if one.size != other.size:
            one = one.resize(other.size, Resampling.LANCZOS)
        if ImageChops.difference(one.convert(other.mode), other).getbbox():
            return False
    return True


def check_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two images have the same size and are similar."""
    return bool(result and expected) and _similar(_open_image(str(result)), _open_image(str(expected)))


check_file_exists_and_structure_sim = check_structure_sim


def check_structure_sim_with_threshold(
    result: str | None, expected: str | None, *, ssim_threshold: float = 0.85, **_: Any
) -> bool:
    """Return whether two images, resized to the same size, have at least the similarity of the threshold."""
    from PIL.Image import Resampling

    if not result or not expected:
        return False
    one, other = _open_image(result), _open_image(expected)
    if one.size != other.size:
        one = one.resize(other.size, Resampling.LANCZOS)
    window = min(_WINDOW, min(other.size) - (min(other.size) + 1) % 2)
    return similarity(one.convert("RGB"), other.convert("RGB"), window=window) >= ssim_threshold


def check_structure_sim_resized(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether an image without its transparent borders is similar to another, resized to it."""
    if not result or not expected:
        return False
    one, other = _open_image(result), _open_image(expected)
    if _has_transparency(one):
        box = _content(one)
        if box is None:
            return False
        one = one.convert("RGBA").crop(box).convert("RGB")
    return _similar(one.resize(other.size), other)


def _has_transparency(image: Image) -> bool:
    return image.mode in {"RGBA", "LA"} or "transparency" in image.info


def _content(image: Image) -> tuple[int, int, int, int] | None:
    """Return the bounding box of everything that is not transparent."""
    return image.convert("RGBA").getchannel("A").getbbox()


def check_image_size(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether an image has the expected width and height, if they are given.

    With `ignore_transparent`, and always for an image with a transparent palette colour, only the visible part counts.
    """
    from PIL import Image as Images

    if result is None:
        return False
    with Images.open(result) as image:  # a truncated image has a size too
        size: tuple[int, int] = _checked_size(image).size
        seen = rules.get("ignore_transparent", False) and image.mode in {"RGBA", "LA"}
        if seen or "transparency" in image.info:
            left, top, right, bottom = _content(image) or (0, 0, 0, 0)
            size = (right - left, bottom - top)
    wanted = (rules.get("width"), rules.get("height"))
    return all(one is None or one == other for one, other in zip(wanted, size, strict=True))


def check_image_file_size(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a file is smaller than the maximum size."""
    return result is not None and Path(result).stat().st_size < rules["max_size"]


def _brightness(image: Image) -> float:
    from PIL import ImageStat

    return float(ImageStat.Stat(image.convert("L")).mean[0])


def check_brightness_decrease_and_structure_sim(
    result: str | None, expected: str | None, *, threshold: float = 0.03, **_: Any
) -> bool:
    """Return whether an image is darker than another and, at equal brightness, hardly differs from it."""
    import numpy as np
    from PIL.Image import Resampling

    if result is None or expected is None:
        return False
    one, other = _open_image(result), _open_image(expected)
    if _brightness(one) >= _brightness(other):
        return False
    even = [image.point(_brighter(_DARK / _brightness(image))) for image in (one, other)]
    if even[0].size != even[1].size:
        even[0] = even[0].resize(even[1].size, Resampling.LANCZOS)
    pixels = [np.asarray(image.convert("RGB"), dtype=np.float32) / 255 for image in even]
    return bool(np.mean((pixels[0] - pixels[1]) ** 2) < threshold)


def _brighter(factor: float) -> Any:
    return lambda value: min(255, max(0, int(value * factor)))


def check_saturation_increase_and_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether an image is more saturated than another, with the same hues and brightness."""
    import numpy as np

    if result is None or expected is None:
        return False
    one, other = (_open_image(path).convert("HSV").split() for path in (result, expected))
    stronger = np.mean(np.asarray(one[1])) > np.mean(np.asarray(other[1]))
    return bool(stronger) and _similar(one[0], other[0]) and _similar(one[2], other[2])


def check_contrast_increase_and_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether an image has more contrast than another and is similar to it."""
    import numpy as np

    if result is None or expected is None:
        return False
    one, other = _open_image(result), _open_image(expected)
    contrasts = [float(np.std(np.asarray(image, dtype=np.float32))) for image in (one, other)]
    return contrasts[0] > contrasts[1] and _similar(one, other, 0.65)


def check_palette_and_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether an image has a palette and is similar to another."""
    if not result or not expected:
        return False
    image = _open_image(result)
    return image.mode == "P" and _similar(image, _open_image(expected))


def check_image_mirror(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether an image is the mirror image of another."""
    from PIL.Image import Transpose

    if result is None or expected is None:
        return False
    return _similar(_open_image(result).transpose(Transpose.FLIP_LEFT_RIGHT), _open_image(expected), 0.99)


def check_green_background(
    result: str | None, expected: str | None, *, strict_evaluators: bool = False, **_: Any
) -> bool:
    """Return whether an image is more green than red or blue wherever another is not black.

    OSWorld swaps rows and columns, so only square images pass; with `strict_evaluators` any shape does.
    """
    import numpy as np

    if result is None or expected is None:
        return False
    found, mask = (np.asarray(_open_image(path))[:, :, :3] for path in (result, expected))
    height, width = mask.shape[:2]
    if height != width and not strict_evaluators:
        return False
    background = mask.any(axis=2)
    red, green, blue = (found[:height, :width, channel] for channel in range(3))
    return bool(((green > red) & (green > blue))[background].all())


def check_triangle_position(result: str | None, **_: Any) -> bool:
    """Return whether the figure, which has the second rarest colour of the image, is in the centre."""
    import numpy as np

    if result is None:
        return False
    pixels = np.asarray(_open_image(result))
    colours, counts = np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0, return_counts=True)
    figure = np.all(pixels == colours[np.argsort(counts)][1], axis=2)
    centre = np.argwhere(figure).mean(axis=0)
    size = np.array(pixels.shape[:2])
    return bool(np.all(np.abs(centre - size / 2) < _EDGE * size))


def check_textbox_on_leftside(result: str | None, **_: Any) -> bool:
    """Return whether something dark begins at the left edge of the image."""
    import numpy as np

    if result is None:
        return False
    dark = np.asarray(_open_image(result).convert("L")) < _DARK
    with suppress(IndexError):
        return bool(np.flatnonzero(dark.any(axis=0))[0] < dark.shape[1] * _EDGE)
    return False


# --- structural similarity ------------------------------------------------------------------------------------------------

_WINDOW = 7
"""Pixels of the side of a window."""
_BAND = 256
"""Rows of windows that are computed at a time: about ten arrays of 256 x 4,000 numbers take 80 MB."""
_LEVELS = 255
_C1, _C2 = (0.01 * _LEVELS) ** 2, (0.03 * _LEVELS) ** 2


def similarity(first: Image, second: Image, *, window: int = _WINDOW) -> float:
    """Return the structural similarity of two images of the same size and mode, averaged over the channels.

    Raises:
        ValueError: the sizes differ, or are smaller than a window.
    """
    import numpy as np

    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape:
        raise ValueError(f"images of the shapes {one.shape} and {other.shape} cannot be compared")
    if min(one.shape[:2]) < window or window < 2:
        raise ValueError(f"an image must have at least {_WINDOW} x {_WINDOW} pixels")
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


# --- perceptual hashes ----------------------------------------------------------------------------------------------------

_SIDE = 32
"""Size of the reduced image: four pixels for each of the eight frequencies that are kept."""
_KEPT = 8


def distance(first: Image, second: Image) -> int:
    """Return the number of bits, of 64, in which the perceptual hashes of two images differ."""
    return int((_perceptual_hash(first) != _perceptual_hash(second)).sum())


def _perceptual_hash(image: Image) -> Any:
    """Return which of the lowest frequencies of an image's cosine transform are above their median."""
    import numpy as np
    from PIL.Image import Resampling

    small = np.asarray(image.convert("L").resize((_SIDE, _SIDE), Resampling.LANCZOS), dtype=float)
    low = (_cosines() @ small @ _cosines().T)[:_KEPT, :_KEPT]
    return low > np.median(low)


@cache
def _cosines() -> Any:
    """Return the matrix of the cosine transform (type II)."""
    import numpy as np

    steps = np.arange(_SIDE)
    return 2 * np.cos(np.pi * steps[:, None] * (2 * steps[None, :] + 1) / (2 * _SIDE))


# --- colours --------------------------------------------------------------------------------------------------------------

_WHITE = (0.95047, 1.0, 1.08883)
"""White point: daylight (D65) for an observer of two degrees."""
_EPSILON, _KAPPA = 0.008856, 7.787
"""Threshold and slope of the linear part of CIELAB."""


def difference(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Return the difference of two RGB colours (CIEDE2000); below about 2 it is not visible."""
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
