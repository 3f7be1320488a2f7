"""The pictures of one rollout: kept as files of the run, named in the conversation, sent to the model while they are recent.

A message of the conversation has the names of the pictures that the model is shown with it under `pictures`; nothing in the
trajectory is base64.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
        """Return the conversation as the model is sent it, with the last pictures in it.

        A tool's message may only have text, so the pictures of a turn follow its results as a message of the user.
        """
        if not self.files:
            return list(messages)
        named = [name for message in messages for name in message.get("pictures", ())]
        passing = max(0, len(named) - self._shown)
        sent: list[dict[str, Any]] = []
        waiting: list[dict[str, Any]] = []
        for message in messages:
            if waiting and message.get("role") != "tool":
                sent.append({"role": "user", "content": waiting})
                waiting = []
            plain = {name: value for name, value in message.items() if name not in {"pictures", "kept"}}
            names = message.get("pictures", [])
            parts = [self._picture(name) for name in names[passing:]]
            passing = max(0, passing - len(names))
            if message.get("role") == "tool":
                waiting += parts
            elif parts:
                plain["content"] = [{"type": "text", "text": str(message.get("content") or "")}, *parts]
            sent.append(plain)
        if waiting:
            sent.append({"role": "user", "content": waiting})
        return sent

    def _picture(self, name: str) -> dict[str, Any]:
        encoded = base64.b64encode(self.files[name]).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
