"""Pictures: whether they are the same, how alike they are, and what was done to them."""

from __future__ import annotations

from contextlib import suppress
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
]

require("numpy", "PIL")
_MOST_PIXELS = 64_000_000
"""Of a picture; a photograph of a good camera has 24 to 50 million."""
_ABOVE_BASE = 0.01
"""By how much a score must be better than that of a picture nobody touched; OSWorld's own, like the other thresholds."""
_EDGE = 0.05
"""The share of a picture's width or height that counts as its very edge, or its very middle."""
_DARK = 128


def open_picture(path: str) -> Image:
    """Return a picture of bearable size, read to its end.

    Raises:
        ValueError: it is too large.
        OSError: it is no picture, or cut off.
    """
    from PIL import Image as Pictures

    with Pictures.open(path) as picture:
        _bearable(picture).load()
        return picture


def _bearable(picture: Image) -> Image:
    if picture.width * picture.height > _MOST_PIXELS:
        raise ValueError(f"a picture of {picture.width} x {picture.height} pixels is too large")
    return picture


def _alike(first: Image, second: Image, threshold: float = 0.9) -> bool:
    """Return whether two pictures have the same size and a structural similarity of at least the threshold."""
    from paragent.osworld.evaluators.metrics.image_similarity import WINDOW, similarity

    if first.size != second.size or min(first.size) < WINDOW:
        return False
    return similarity(first.convert("RGB"), second.convert("RGB")) >= threshold


def compare_images(
    result: str | None, expected: str | None, *, reference_base_result: float | None = None, **_: Any
) -> float:
    """Return the structural similarity of two pictures in grey, made the size of the smaller.

    With `reference_base_result`, what an untouched picture would get, only what is above it counts.
    """
    from PIL.Image import Resampling

    from paragent.osworld.evaluators.metrics.image_similarity import similarity

    if not result or not expected:
        return 0.0
    pair = [open_picture(path).convert("L") for path in (result, expected)]
    size = min(picture.size for picture in pair)
    found = similarity(*(picture.resize(size, Resampling.LANCZOS) for picture in pair))
    if reference_base_result is None:
        return found
    if found < reference_base_result + _ABOVE_BASE:
        return 0.0
    return (found - reference_base_result) / (1 - reference_base_result)


def compare_image_list(result: Any, expected: Any, **_: Any) -> bool:
    """Return whether each picture is, pixel by pixel, the one it is compared with; sizes and kinds are made the same."""
    from PIL import ImageChops
    from PIL.Image import Resampling

    pairs = zip(result, expected, strict=False) if isinstance(result, list) else [(result, expected)]
    for found, wanted in pairs:
        if not found or not wanted:
            return False
        one, other = open_picture(found), open_picture(wanted)
        if one.size != other.size:
            one = one.resize(other.size, Resampling.LANCZOS)
        if ImageChops.difference(one.convert(other.mode), other).getbbox():
            return False
    return True


def check_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two pictures have the same size and look alike."""
    return bool(result and expected) and _alike(open_picture(str(result)), open_picture(str(expected)))


check_file_exists_and_structure_sim = check_structure_sim


def check_structure_sim_with_threshold(
    result: str | None, expected: str | None, *, ssim_threshold: float = 0.85, **_: Any
) -> bool:
    """Return whether two pictures, made the same size, look alike at least as much as the threshold says."""
    from PIL.Image import Resampling

    from paragent.osworld.evaluators.metrics.image_similarity import WINDOW, similarity

    if not result or not expected:
        return False
    one, other = open_picture(result), open_picture(expected)
    if one.size != other.size:
        one = one.resize(other.size, Resampling.LANCZOS)
    window = min(WINDOW, min(other.size) - (min(other.size) + 1) % 2)
    return similarity(one.convert("RGB"), other.convert("RGB"), window=window) >= ssim_threshold


def check_structure_sim_resized(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a picture without its transparent borders looks like another whose size it is given."""
    if not result or not expected:
        return False
    one, other = open_picture(result), open_picture(expected)
    if _has_transparency(one):
        box = _content(one)
        if box is None:
            return False
        one = one.convert("RGBA").crop(box).convert("RGB")
    return _alike(one.resize(other.size), other)


def _has_transparency(picture: Image) -> bool:
    return picture.mode in {"RGBA", "LA"} or "transparency" in picture.info


def _content(picture: Image) -> tuple[int, int, int, int] | None:
    """Return the box around all that is not transparent."""
    return picture.convert("RGBA").getchannel("A").getbbox()


def check_image_size(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a picture has the expected width and height, where they are given.

    With `ignore_transparent`, and always for a picture with a transparent colour of its palette, only what can be seen counts.
    """
    from PIL import Image as Pictures

    if result is None:
        return False
    with Pictures.open(result) as picture:  # a picture that is cut off has a size, too
        size: tuple[int, int] = _bearable(picture).size
        seen = rules.get("ignore_transparent", False) and picture.mode in {"RGBA", "LA"}
        if seen or "transparency" in picture.info:
            left, top, right, bottom = _content(picture) or (0, 0, 0, 0)
            size = (right - left, bottom - top)
    wanted = (rules.get("width"), rules.get("height"))
    return all(one is None or one == other for one, other in zip(wanted, size, strict=True))


def check_image_file_size(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a file is smaller than the largest size."""
    return result is not None and Path(result).stat().st_size < rules["max_size"]


def _brightness(picture: Image) -> float:
    from PIL import ImageStat

    return float(ImageStat.Stat(picture.convert("L")).mean[0])


def check_brightness_decrease_and_structure_sim(
    result: str | None, expected: str | None, *, threshold: float = 0.03, **_: Any
) -> bool:
    """Return whether a picture is darker than another and, both made equally bright, hardly differs from it."""
    import numpy as np
    from PIL.Image import Resampling

    if result is None or expected is None:
        return False
    one, other = open_picture(result), open_picture(expected)
    if _brightness(one) >= _brightness(other):
        return False
    even = [picture.point(_brighter(_DARK / _brightness(picture))) for picture in (one, other)]
    if even[0].size != even[1].size:
        even[0] = even[0].resize(even[1].size, Resampling.LANCZOS)
    pixels = [np.asarray(picture.convert("RGB"), dtype=np.float32) / 255 for picture in even]
    return bool(np.mean((pixels[0] - pixels[1]) ** 2) < threshold)


def _brighter(factor: float) -> Any:
    return lambda value: min(255, max(0, int(value * factor)))


def check_saturation_increase_and_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a picture has stronger colours than another, with the same hues and the same brightness."""
    import numpy as np

    if result is None or expected is None:
        return False
    one, other = (open_picture(path).convert("HSV").split() for path in (result, expected))
    stronger = np.mean(np.asarray(one[1])) > np.mean(np.asarray(other[1]))
    return bool(stronger) and _alike(one[0], other[0]) and _alike(one[2], other[2])


def check_contrast_increase_and_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a picture has more contrast than another and still looks like it."""
    import numpy as np

    if result is None or expected is None:
        return False
    one, other = open_picture(result), open_picture(expected)
    contrasts = [float(np.std(np.asarray(picture, dtype=np.float32))) for picture in (one, other)]
    return contrasts[0] > contrasts[1] and _alike(one, other, 0.65)


def check_palette_and_structure_sim(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a picture has a palette and looks like another."""
    if not result or not expected:
        return False
    picture = open_picture(result)
    return picture.mode == "P" and _alike(picture, open_picture(expected))


def check_image_mirror(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a picture is the mirror image of another."""
    from PIL.Image import Transpose

    if result is None or expected is None:
        return False
    return _alike(open_picture(result).transpose(Transpose.FLIP_LEFT_RIGHT), open_picture(expected), 0.99)


def check_green_background(
    result: str | None, expected: str | None, *, strict_evaluators: bool = False, **_: Any
) -> bool:
    """Return whether a picture is more green than red or blue wherever another is not black.

    OSWorld takes rows for columns, so that only square pictures pass; with `strict_evaluators` any shape does.
    """
    import numpy as np

    if result is None or expected is None:
        return False
    found, mask = (np.asarray(open_picture(path))[:, :, :3] for path in (result, expected))
    height, width = mask.shape[:2]
    if height != width and not strict_evaluators:
        return False
    background = mask.any(axis=2)
    red, green, blue = (found[:height, :width, channel] for channel in range(3))
    return bool(((green > red) & (green > blue))[background].all())


def check_triangle_position(result: str | None, **_: Any) -> bool:
    """Return whether the figure, which has the second rarest colour of the picture, is in the middle."""
    import numpy as np

    if result is None:
        return False
    pixels = np.asarray(open_picture(result))
    colours, counts = np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0, return_counts=True)
    figure = np.all(pixels == colours[np.argsort(counts)][1], axis=2)
    centre = np.argwhere(figure).mean(axis=0)
    size = np.array(pixels.shape[:2])
    return bool(np.all(np.abs(centre - size / 2) < _EDGE * size))


def check_textbox_on_leftside(result: str | None, **_: Any) -> bool:
    """Return whether something dark begins at the picture's left edge."""
    import numpy as np

    if result is None:
        return False
    dark = np.asarray(open_picture(result).convert("L")) < _DARK
    with suppress(IndexError):
        return bool(np.flatnonzero(dark.any(axis=0))[0] < dark.shape[1] * _EDGE)
    return False
