"""A film of the screen, by ffmpeg where it is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading

from paragent.vms.guest.agent import Refused

__all__ = ["Recorder"]

_FRAMES = 30
"""In a second, as OSWorld's guest has it."""
_END_SECONDS = 60.0
"""For the film to be finished once it is stopped."""


class Recorder:
    """One film at a time."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, ".recording.mp4")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # protects the process

    def start(self, size: tuple[int, int]) -> None:
        """Begin; raises `Refused` if there is one already, or no ffmpeg."""
        program = shutil.which("ffmpeg")
        if program is None:
            raise Refused(501, "this machine has no ffmpeg, so it cannot record")
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise Refused(400, "Recording is already in progress.")
            grab = ["-f", "x11grab", "-draw_mouse", "1", "-s", f"{size[0]}x{size[1]}", "-i", os.environ["DISPLAY"]]
            form = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-r", str(_FRAMES)]
            command = [program, "-loglevel", "error", "-y", *grab, *form, self._path]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

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
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
