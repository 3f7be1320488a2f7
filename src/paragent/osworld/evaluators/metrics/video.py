"""Films, frame by frame."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from paragent._internal.processes import plain_environment
from paragent._internal.registry import require
from paragent.errors import MissingProgram
from paragent.osworld.evaluators.metrics.image_similarity import distance
from paragent.osworld.evaluators.metrics.reading import readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

__all__ = ["compare_videos", "decoded"]


def _program() -> str:
    found = shutil.which("ffmpeg")
    if found is None:
        raise MissingProgram("comparing sounds and films", "there is no ffmpeg here", "install the package `ffmpeg`")
    return found


_FORMATS = (
    "3g2,3gp,aac,ac3,aiff,amr,ape,apng,asf,au,avi,avif,bmp_pipe,caf,dts,eac3,flac,flv,gif,h264,hevc,ivf,jpeg_pipe,m4a,m4v,"
    "matroska,mj2,mov,mp3,mp4,mpeg,mpegts,mpegvideo,mxf,nut,ogg,png_pipe,rm,swf,tta,voc,w64,wav,webm,webp_pipe,wv"
)
"""Formats whose files hold all that they play; not those that name other files (hls, dash, concat, sdp, image2 ...)."""

_program()  # a module that needs it says so when it is loaded


@contextmanager
def decoded(path: str, *options: str) -> Iterator[IO[bytes]]:
    """Decode a file to a stream for the length of a `with`; of what cannot be decoded there is nothing in it.

    Only the file itself is opened: formats that refer to other files, as playlists do, are not read.

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
