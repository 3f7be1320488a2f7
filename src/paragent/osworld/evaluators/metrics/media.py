"""Metrics of audio and video files, decoded by ffmpeg."""

from __future__ import annotations

import math
import shutil
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paragent._internal.processes import plain_environment
from paragent._internal.registry import require
from paragent.errors import MissingProgram
from paragent.osworld.evaluators.metrics.images import distance
from paragent.osworld.evaluators.metrics.reading import readable
from paragent.osworld.evaluators.supported import checked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

__all__ = ["compare_audios", "compare_videos", "decoded", "warp"]

require("numpy", "PIL", "soxr")
_RADIUS = 1
_WarpPath = list[tuple[int, int]]


def warp(first: Any, second: Any) -> tuple[float, int]:
    """Return the sum of the cosine distances along the best warping path of two sequences of vectors, and its length."""
    distance, path = _fit(first, second)
    return distance, len(path)


def _fit(first: Any, second: Any) -> tuple[float, _WarpPath]:
    if min(len(first), len(second)) < _RADIUS + 2:
        whole = [(0, len(second) - 1)] * len(first)
        return _best(first, second, whole)
    _, coarse = _fit(_halved(first), _halved(second))
    return _best(first, second, _near(coarse, len(first), len(second)))


def _halved(vectors: Any) -> Any:
    even = len(vectors) // 2 * 2
    return (vectors[0:even:2] + vectors[1:even:2]) / 2


def _near(path: _WarpPath, rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the range of columns of each row that is near the path of the halved sequences."""
    low, high = [columns] * (rows + 4), [-1] * (rows + 4)
    for row, column in path:
        left, right = 2 * (column - _RADIUS), 2 * (column + _RADIUS) + 1
        for near in range(max(2 * (row - _RADIUS), 0), min(2 * (row + _RADIUS) + 2, rows)):
            low[near], high[near] = min(low[near], left), max(high[near], right)
    return [(max(low[row], 0), min(high[row], columns - 1)) for row in range(rows)]


def _best(first: Any, second: Any, near: list[tuple[int, int]]) -> tuple[float, _WarpPath]:
    """Return the cheapest path within the column ranges, and its cost."""
    import numpy as np

    first, second = _units(first), _units(second)
    infinite = float("inf")
    before: list[float] = []
    before_low = 0
    steps: list[list[int]] = []
    for row, (low, high) in enumerate(near):
        costs = np.clip(1 - second[low : high + 1] @ first[row], 0, 2).tolist()
        line: list[float] = []
        step: list[int] = []
        for offset, cost in enumerate(costs):
            at = low + offset - before_low
            up = before[at] if 0 <= at < len(before) else infinite
            left = line[-1] if line else infinite
            corner = before[at - 1] if 0 < at <= len(before) else infinite
            if row == 0 and low + offset == 0:
                corner = 0.0
            best = min(up, left, corner)
            step.append(0 if best == up else 1 if best == left else 2)
            line.append(best + cost)
        before, before_low = line, low
        steps.append(step)
    return before[-1], _walked(steps, near)


def _units(vectors: Any) -> Any:
    """Return the vectors normalised to length one; zero vectors stay zero, and are far from every other vector."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def _walked(steps: list[list[int]], near: list[tuple[int, int]]) -> _WarpPath:
    """Return the path from the beginning to the end, given the step that led to each cell."""
    row, column = len(steps) - 1, near[-1][1]
    path = []
    while row >= 0 and column >= 0:
        path.append((row, column))
        step = steps[row][column - near[row][0]]
        row, column = row - (step != 1), column - (step != 0)
    return path[::-1]


_RATE = 22_050
"""Samples per second. Like the other constants, librosa's default, which published scores used."""
_FRAME, _HOP = 2048, 512
_BANDS, _KEPT = 128, 20
_QUIETEST = 1e-10
_RANGE = 80.0
"""Dynamic range in decibels below the loudest value."""
_MOST_SECONDS = 1200
"""Only the beginning of a sound is compared."""


@checked(
    differs=lambda **_: (
        "sounds are decoded by ffmpeg, not by librosa; the similarity to a silent file differs by up to 0.15"
    )
)
def compare_audios(result: str | None, expected: str | None, **_: Any) -> float:
    """Return the similarity of two sounds; two unreadable files have 1, one unreadable file has 0."""
    if not result or not expected:
        return 0.0
    if Path(result).read_bytes() == Path(expected).read_bytes():
        return 1.0
    first, second = _samples(result), _samples(expected)
    if not first.size or not second.size:
        return float(first.size == second.size)
    distance, length = warp(_features(first), _features(second))
    return math.exp(-distance / length)


def _samples(path: str) -> Any:
    """Return the samples of a file as one channel, the mean of all, at the rate `_RATE`."""
    import numpy as np
    import soxr

    options = ("-map", "a:0", "-t", str(_MOST_SECONDS), "-c:a", "pcm_f32le", "-f", "wav")
    with decoded(path, *options) as stream:
        data = stream.read()
    if b"data" not in data:
        return np.zeros(0)
    head, _, samples = data.partition(b"data")
    channels = int.from_bytes(head[head.index(b"fmt ") + 10 :][:2], "little")
    whole = (len(samples) - 4) // (4 * channels)  # the size of the chunk follows its name
    mono = np.frombuffer(samples, "<f4", whole * channels, 4).reshape(-1, channels).mean(axis=1)
    rate = int.from_bytes(head[head.index(b"fmt ") + 12 :][:4], "little")
    return mono if rate == _RATE else soxr.resample(mono, rate, _RATE, quality="HQ")


def _features(samples: Any) -> Any:
    """Return the MFCC features of each frame of a sound, each normalised by its maximum."""
    import numpy as np

    padded = np.pad(samples, _FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)
    parts = np.array_split(frames, len(frames) // 512 + 1)
    bands = np.vstack([np.abs(np.fft.rfft(part * window)) ** 2 @ _filters().T for part in parts])
    loudness = 10 * np.log10(np.maximum(bands, _QUIETEST))
    loudness = np.maximum(loudness, loudness.max() - _RANGE)
    features = loudness @ _cosines().T
    largest = np.abs(features).max(axis=0)
    return features / np.where(largest < np.finfo(np.float32).tiny, 1.0, largest)


@cache
def _filters() -> Any:
    """Return the mel filter bank: triangles, evenly spaced on Slaney's scale, of equal area."""
    import numpy as np

    edges = _hertz(np.linspace(0.0, _mel(_RATE / 2), _BANDS + 2))
    places = np.linspace(0, _RATE / 2, _FRAME // 2 + 1)
    rising = (places - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - places) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]


_LINEAR, _STEP, _LOG_STEP = 1000.0, 200 / 3, math.log(6.4) / 27
"""Up to 1000 Hz a mel is 200/3 Hz; above, 27 mels are a factor of 6.4."""


def _mel(hertz: float) -> float:
    return hertz / _STEP if hertz < _LINEAR else _LINEAR / _STEP + math.log(hertz / _LINEAR) / _LOG_STEP


def _hertz(mels: Any) -> Any:
    import numpy as np

    above = mels - _LINEAR / _STEP
    return np.where(above < 0, mels * _STEP, _LINEAR * np.exp(_LOG_STEP * np.maximum(above, 0)))


@cache
def _cosines() -> Any:
    """Return the first rows of the matrix of the cosine transform (type II, orthonormal)."""
    import numpy as np

    rows, columns = np.arange(_KEPT)[:, None], np.arange(_BANDS)[None, :]
    matrix = np.cos(np.pi * rows * (2 * columns + 1) / (2 * _BANDS)) * math.sqrt(2 / _BANDS)
    matrix[0] /= math.sqrt(2)
    return matrix


def _program() -> str:
    found = shutil.which("ffmpeg")
    if found is None:
        raise MissingProgram("comparing sounds and videos", "there is no ffmpeg here", "install the package `ffmpeg`")
    return found


_FORMATS = (
    "3g2,3gp,aac,ac3,aiff,amr,ape,apng,asf,au,avi,avif,bmp_pipe,caf,dts,eac3,flac,flv,gif,h264,hevc,ivf,jpeg_pipe,m4a,m4v,"
    "matroska,mj2,mov,mp3,mp4,mpeg,mpegts,mpegvideo,mxf,nut,ogg,png_pipe,rm,swf,tta,voc,w64,wav,webm,webp_pipe,wv"
)
"""Formats whose files are self-contained; formats that refer to other files (hls, dash, concat, sdp, image2 ...) are excluded."""

_program()  # raise MissingProgram when the module is imported


@contextmanager
def decoded(path: str, *options: str) -> Iterator[IO[bytes]]:
    """Decode a file to a stream inside a `with` block; the stream is empty if the file cannot be decoded.

    Only this file is opened: formats that refer to other files, such as playlists, are not read.

    Raises:
        OSError: the file cannot be read.
    """
    command = [
        _program(),
        "-v",
        "error",
        "-nostdin",
        "-threads",
        "2",
        "-protocol_whitelist",
        "file",
        "-format_whitelist",
        _FORMATS,
        "-i",
        f"file:{readable(path)}",
    ]
    process = subprocess.Popen(
        [*command, *options, "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=plain_environment()
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


_MOST_PIXELS = 64_000_000
"""Maximum number of pixels of a frame; the largest videos have 33 million."""


@checked(differs=lambda **_: "videos are decoded by ffmpeg, not by OpenCV")
def compare_videos(
    result: str | None, expected: str | None, *, max_frames_to_check: int = 100, threshold: int = 5, **_: Any
) -> bool:
    """Return whether the first frames of two videos are similar, except for a few, and both have the same number of them."""
    if not result or not expected:
        return False
    options = ("-map", "v:0", "-frames:v", str(max_frames_to_check), "-f", "image2pipe", "-c:v", "ppm")
    different = 0
    with decoded(result, *options) as first, decoded(expected, *options) as second:
        for _frame_number in range(max_frames_to_check):
            one, other = _frame(first), _frame(second)
            if one is None or other is None:
                return one is other
            different += distance(one, other) > threshold
            if different > threshold:
                return False
    return True


def _frame(stream: IO[bytes]) -> Image | None:
    """Return the next image (PPM) of a stream; None at its end."""
    from PIL import Image as Images

    head = [stream.readline().split() for _ in range(3)]
    if head[0] != [b"P6"] or len(head[1]) != 2:
        return None
    width, height = map(int, head[1])
    if width * height > _MOST_PIXELS:
        raise ValueError(f"a frame of {width} x {height} pixels is too large")
    data = stream.read(3 * width * height)
    return Images.frombytes("RGB", (width, height), data) if len(data) == 3 * width * height else None
