"""The pictures of one rollout: kept as files of the run, named in the conversation, sent to the model while they are recent.

Nothing in the trajectory is base64: see `paragent.messages.pictures`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paragent.messages.pictures import developed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Album", "stamp"]


def stamp() -> str:
    """Return this moment as OSWorld writes it into the names of files."""
    return f"{datetime.now(UTC):%Y%m%d@%H%M%S%f}"


class Album:
    """Takes pictures in, names them after their step, and puts them into what the model is sent."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._names: dict[bytes, str] = {}
        self.files: dict[str, bytes] = {}
        """By the name of the file. The moment in it tells the plays of a rollout apart."""

    def add(self, pictures: Iterable[bytes], step: int) -> list[str]:
        """Keep pictures and return their names; a picture that is there already is not kept twice."""
        names = []
        for picture in pictures:
            digest = hashlib.sha256(picture).digest()
            if digest not in self._names:
                name = f"step_{step}_{stamp()}.png"
                self._names[digest], self.files[name] = name, picture
            names.append(self._names[digest])
        return names

    def add_files(self, files: Mapping[str, bytes]) -> None:
        """Keep files that are no pictures of a step."""
        for name, content in files.items():
            stem, dot, suffix = name.rpartition(".")
            self.files[f"{stem}_{stamp()}{dot}{suffix}"] = content

    def developed(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the conversation as the model is sent it, with the last pictures in it."""
        return developed(messages, self.files.__getitem__, self._shown) if self.files else list(messages)
