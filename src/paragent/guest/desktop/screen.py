"""Pictures of the screen as PNG files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
import zlib
from typing import TYPE_CHECKING

from paragent.guest.agent import Refused

if TYPE_CHECKING:
    from paragent.guest.desktop.x11 import Cursor, Display, Picture

__all__ = ["Recorder", "as_png", "pixmap_as_png", "screenshot"]


_LEVEL = 1
"""Of compression: a screen gets to a fiftieth of its size with any level, and the lowest is four times as fast as the usual."""


def screenshot(display: Display) -> bytes:
    """Return the screen with the pointer on it, as a PNG file."""
    picture, cursor = display.picture(), display.cursor()
    if cursor is not None:
        _paste(picture, cursor)
    return as_png(picture)


def _paste(picture: Picture, cursor: Cursor) -> None:
    for index, pixel in enumerate(cursor.pixels):
        opacity = pixel >> 24
        x, y = cursor.x + index % cursor.width, cursor.y + index // cursor.width
        if not opacity or not (0 <= x < picture.width and 0 <= y < picture.height):
            continue
        at = (y * picture.width + x) * 4
        for channel in range(3):
            below = picture.pixels[at + channel] * (255 - opacity) // 255
            picture.pixels[at + channel] = min(255, below + (pixel >> 8 * channel & 255))


def as_png(picture: Picture) -> bytes:
    """Return a PNG file."""
    colours = bytearray(picture.width * picture.height * 3)
    for channel in range(3):
        colours[channel::3] = picture.pixels[2 - channel :: 4]
    return _file(picture.width, picture.height, memoryview(colours))


def pixmap_as_png(pixmap: bytes) -> bytes:
    """Return a binary portable pixmap (PPM, three bytes a pixel) as a PNG file.

    Raises:
        ValueError: it is none.
    """
    parts = pixmap[:64].split(maxsplit=4)
    if len(parts) < 4 or parts[0] != b"P6" or parts[3] != b"255":
        raise ValueError("this is no binary portable pixmap with 256 shades")
    width, height = int(parts[1]), int(parts[2])
    return _file(width, height, memoryview(pixmap)[len(pixmap) - width * height * 3 :])


def _file(width: int, height: int, colours: memoryview) -> bytes:
    line = width * 3
    rows = b"".join(part for row in range(height) for part in (b"\0", colours[row * line : (row + 1) * line]))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, _LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


_FRAMES = 30
"""In a second, as OSWorld's guest has it."""
_START_SECONDS = 20.0
"""For ffmpeg to have its first frame; under emulation it takes seconds to load."""
_END_SECONDS = 60.0
"""For the film to be finished once it is stopped."""


class Recorder:
    """One film at a time."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, ".recording.mp4")
        self._progress = os.path.join(folder, ".recording.progress")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # protects the process

    def start(self, size: tuple[int, int]) -> None:
        """Begin, and return when the first frame was taken: ffmpeg that is stopped before leaves no film.

        Raises `Refused` if there is one already, or no ffmpeg, or it cannot record.
        """
        program = shutil.which("ffmpeg")
        if program is None:
            raise Refused(501, "this machine has no ffmpeg, so it cannot record")
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise Refused(400, "Recording is already in progress.")
            grab = ["-f", "x11grab", "-draw_mouse", "1", "-s", f"{size[0]}x{size[1]}", "-i", os.environ["DISPLAY"]]
            form = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-r", str(_FRAMES)]
            told = ["-progress", self._progress, "-stats_period", "0.1"]
            command = [program, "-loglevel", "error", "-y", *told, *grab, *form, self._path]
            with contextlib.suppress(OSError):
                os.unlink(self._progress)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._wait_for_a_frame(self._process)

    def _wait_for_a_frame(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), open(self._progress) as file:
                if any(line.startswith("frame=") and line.strip() != "frame=0" for line in file):
                    return
            time.sleep(0.02)
        process.kill()
        process.wait()
        self._process = None
        raise Refused(500, "Recording failed. ffmpeg took no frame of the screen.")

    def end(self) -> bytes:
        """End and return the film; raises `Refused` if there is none."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                raise Refused(400, "No recording in progress to stop.")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Refused(500, "the film was not finished in time") from None
            try:
                with open(self._path, "rb") as file:
                    return file.read()
            except OSError:
                raise Refused(500, "Recording failed. The output file is missing or empty.") from None
            finally:
                for path in (self._path, self._progress):
                    with contextlib.suppress(OSError):
                        os.unlink(path)
