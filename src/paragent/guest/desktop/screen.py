"""Screenshots as PNG files, and recordings of the screen."""

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

from paragent.guest.agent import Rejected

if TYPE_CHECKING:
    from paragent.guest.desktop.x11 import Cursor, Display, ScreenImage

__all__ = ["Recorder", "as_png", "pixmap_as_png", "screenshot"]


_LEVEL = 1
"""Compression level: every level reduces a screen to about a fiftieth, and the lowest is four times as fast as the default."""


def screenshot(display: Display) -> bytes:
    """Return the screen with the pointer on it, as a PNG file."""
    image, cursor = display.image(), display.cursor()
    if cursor is not None:
        _draw_cursor(image, cursor)
    return as_png(image)


def _draw_cursor(image: ScreenImage, cursor: Cursor) -> None:
    for index, pixel in enumerate(cursor.pixels):
        opacity = pixel >> 24
        x, y = cursor.x + index % cursor.width, cursor.y + index // cursor.width
        if not opacity or not (0 <= x < image.width and 0 <= y < image.height):
            continue
        at = (y * image.width + x) * 4
        for channel in range(3):
            below = image.pixels[at + channel] * (255 - opacity) // 255
            image.pixels[at + channel] = min(255, below + (pixel >> 8 * channel & 255))


def as_png(image: ScreenImage) -> bytes:
    """Return an image as a PNG file."""
    colours = bytearray(image.width * image.height * 3)
    for channel in range(3):
        colours[channel::3] = image.pixels[2 - channel :: 4]
    return _png_file(image.width, image.height, memoryview(colours))


def pixmap_as_png(pixmap: bytes) -> bytes:
    """Return a binary portable pixmap (PPM, three bytes a pixel) as a PNG file.

    Raises:
        ValueError: it is not such a pixmap.
    """
    parts = pixmap[:64].split(maxsplit=4)
    if len(parts) < 4 or parts[0] != b"P6" or parts[3] != b"255":
        raise ValueError("this is not a binary portable pixmap with 8 bits per channel")
    width, height = int(parts[1]), int(parts[2])
    return _png_file(width, height, memoryview(pixmap)[len(pixmap) - width * height * 3 :])


def _png_file(width: int, height: int, colours: memoryview) -> bytes:
    line = width * 3
    rows = b"".join(part for row in range(height) for part in (b"\0", colours[row * line : (row + 1) * line]))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, _LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


_FRAMES_PER_SECOND = 30
"""The frame rate of OSWorld's guest."""
_START_SECONDS = 20.0
"""For ffmpeg to record its first frame; under emulation it takes seconds to load."""
_END_SECONDS = 60.0
"""For ffmpeg to write the file after it was stopped."""


class Recorder:
    """Records the screen with ffmpeg, one recording at a time."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, ".recording.mp4")
        self._progress = os.path.join(folder, ".recording.progress")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # protects the process

    def start(self, size: tuple[int, int]) -> None:
        """Start a recording and return after its first frame: if ffmpeg is stopped before that, it writes no file.

        Raises:
            Rejected: a recording is in progress, ffmpeg is missing, or it cannot record.
        """
        program = shutil.which("ffmpeg")
        if program is None:
            raise Rejected(501, "this machine cannot record: ffmpeg is not installed")
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise Rejected(400, "Recording is already in progress.")
            grab = ["-f", "x11grab", "-draw_mouse", "1", "-s", f"{size[0]}x{size[1]}", "-i", os.environ["DISPLAY"]]
            encoding = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-r", str(_FRAMES_PER_SECOND)]
            progress = ["-progress", self._progress, "-stats_period", "0.1"]
            command = [program, "-loglevel", "error", "-y", *progress, *grab, *encoding, self._path]
            with contextlib.suppress(OSError):
                os.unlink(self._progress)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._wait_for_first_frame(self._process)

    def _wait_for_first_frame(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), open(self._progress) as file:
                if any(line.startswith("frame=") and line.strip() != "frame=0" for line in file):
                    return
            time.sleep(0.02)
        process.kill()
        process.wait()
        self._process = None
        raise Rejected(500, "Recording failed. ffmpeg recorded no frame of the screen.")

    def end(self) -> bytes:
        """Stop the recording and return its file; raises `Rejected` if there is none."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                raise Rejected(400, "No recording in progress to stop.")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Rejected(500, "the recording was not written in time") from None
            try:
                with open(self._path, "rb") as file:
                    return file.read()
            except OSError:
                raise Rejected(500, "Recording failed. The output file is missing or empty.") from None
            finally:
                for path in (self._path, self._progress):
                    with contextlib.suppress(OSError):
                        os.unlink(path)
