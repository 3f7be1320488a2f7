"""The video of an attempt: by the machine itself or, where that cannot record, from what was looked at meanwhile."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.envs.osworld.film import Film
from paragent.errors import MachineFailed, MissingProgram

if TYPE_CHECKING:
    from paragent.envs.osworld.controller import Controller
    from paragent.envs.osworld.observing import Observer

__all__ = ["Recording"]

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
