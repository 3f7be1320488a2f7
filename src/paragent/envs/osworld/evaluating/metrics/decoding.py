"""Sounds and films, decoded by the program ffmpeg."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from paragent._processes import plain_environment
from paragent.envs.osworld.evaluating.metrics.reading import readable
from paragent.errors import MissingProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["decoded"]


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
