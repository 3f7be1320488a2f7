"""A film of the screen, by ffmpeg where it is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time

from paragent.vms.guest.agent import Refused

__all__ = ["Recorder"]

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
