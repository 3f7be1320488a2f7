"""The video of an attempt: by the machine itself or, where that cannot record, from what was looked at meanwhile."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.processes import plain_environment
from paragent.errors import MachineFailed, MissingProgram

if TYPE_CHECKING:
    from paragent.osworld.controller import Controller
    from paragent.osworld.observation import Observer

__all__ = ["Film", "Recording"]


_LONGEST = 2.0
"""Seconds for which a picture is shown at most: nobody wants to watch a model think."""
_SECONDS = 25.0
"""For ffmpeg to finish, less than an environment has to close; it takes about one for a hundred pictures of 1920 x 1080."""
_EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2,format=yuv420p"
"""Players want even sizes and this order of colours."""


class Film:
    """Pictures of a screen in the order in which they were taken, each shown as long as it was there.

    Args:
        folder: an empty one of its own, which the caller removes.

    Raises:
        MissingProgram: there is no ffmpeg here.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise MissingProgram("making a film", "there is no ffmpeg here", "install the package `ffmpeg`")
        self._program = program
        self._folder = folder
        self._last = b""
        self._moments: list[float] = []

    def add(self, picture: bytes) -> None:
        """Append a picture, unless it is the same as the last one."""
        if picture != self._last:
            self._last = picture
            (self._folder / f"{len(self._moments)}.png").write_bytes(picture)
            self._moments.append(time.monotonic())

    async def develop(self) -> bytes | None:
        """Return the film as MP4; None if there is no picture, or ffmpeg cannot read one."""
        return await asyncio.to_thread(self._develop) if self._moments else None

    def _develop(self) -> bytes | None:
        ends = [*self._moments[1:], time.monotonic()]
        lines = ["ffconcat version 1.0"]
        for number, (begin, end) in enumerate(zip(self._moments, ends, strict=True)):
            lines += [f"file {number}.png", f"duration {min(end - begin, _LONGEST):.3f}"]
        lines.append(f"file {len(ends) - 1}.png")  # else the last one is not shown
        (self._folder / "order").write_text("\n".join(lines))
        target = self._folder / "film.mp4"
        reading = [self._program, "-v", "error", "-nostdin", "-y", "-f", "concat", "-i", "order"]
        writing = ["-vf", _EVEN, "-fps_mode", "vfr", "-preset", "veryfast", "-movflags", "faststart", target.name]
        try:
            done = subprocess.run(
                [*reading, *writing],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                env=plain_environment(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        return target.read_bytes() if done.returncode == 0 else None


_log = logging.getLogger(__name__)


class Recording:
    """One recording, from `start` to `stop`.

    A video is nothing that a score depends on: where none can be made, a warning says so.

    Args:
        task: whose it is, for warnings.
        controller: of the guest.
        observer: whose pictures make the film where the guest makes none.
        folder: for the pictures; the caller removes it.
    """

    def __init__(self, task: str, controller: Controller, observer: Observer, folder: Path) -> None:
        self._task, self._controller, self._observer, self._folder = task, controller, observer, folder
        self._in_guest = False
        self._film: Film | None = None
        self._video: bytes | None = None

    async def start(self) -> None:
        """Begin, in the guest if it can."""
        try:
            await self._controller.start_recording()
            self._in_guest = True
        except MachineFailed as error:
            try:
                self._film = self._observer.film = Film(Path(tempfile.mkdtemp(dir=self._folder)))
            except MissingProgram as missing:
                _log.warning("no recording of %s: %s; %s", self._task, error, missing)

    async def stop(self) -> None:
        """End it, if it has not ended; what happens on the machine from now on is not shown."""
        self._observer.film = None
        if self._in_guest:
            self._in_guest = False
            try:
                self._video = await self._controller.end_recording()
            except MachineFailed as error:
                _log.warning("the recording of %s is lost: %s", self._task, error)

    async def develop(self) -> bytes | None:
        """Return the video as MP4, after `stop`; None if there is none."""
        if self._film is not None:
            film, self._film = self._film, None
            self._video = await film.develop()
            if self._video is None:
                _log.warning("no recording of %s: ffmpeg made none of its pictures", self._task)
        return self._video
