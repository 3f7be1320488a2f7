"""Films, frame by frame."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.decoding import decoded
from paragent.envs.osworld.evaluating.metrics.fingerprints import distance

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["compare_videos"]

require("numpy", "PIL")
_MOST_PIXELS = 64_000_000
"""Of a frame; the largest films have 33 million."""


def compare_videos(
    result: str | None, expected: str | None, *, max_frames_to_check: int = 100, threshold: int = 5, **_: Any
) -> bool:
    """Return whether the first frames of two films look alike, but for a few, and neither film ends before the other."""
    if not result or not expected:
        return False
    options = ("-map", "v:0", "-frames:v", str(max_frames_to_check), "-f", "image2pipe", "-c:v", "ppm")
    unlike = 0
    with decoded(result, *options) as first, decoded(expected, *options) as second:
        for _number in range(max_frames_to_check):
            one, other = _frame(first), _frame(second)
            if one is None or other is None:
                return one is other
            unlike += distance(one, other) > threshold
            if unlike > threshold:
                return False
    return True


def _frame(stream: IO[bytes]) -> Image | None:
    """Return the next picture (PPM) of a stream, None at its end."""
    from PIL import Image as Pictures

    head = [stream.readline().split() for _ in range(3)]
    if head[0] != [b"P6"] or len(head[1]) != 2:
        return None
    width, height = map(int, head[1])
    if width * height > _MOST_PIXELS:
        raise ValueError(f"a frame of {width} x {height} pixels is too large")
    data = stream.read(3 * width * height)
    return Pictures.frombytes("RGB", (width, height), data) if len(data) == 3 * width * height else None
