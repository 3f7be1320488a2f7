"""Host access of task files: which files and addresses of the host's side a task may use.

Task files come from others. Their set-up steps and evaluators run on this host, beside the user's files and networks, and put
what they read into a guest that may have a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    """What the tasks of a run may use. By default no file of this host, and public addresses only."""

    data_folder: Path | None = None
    """Where the files are that tasks may read; None: nowhere."""
    allow_private: bool = False
    """Whether files may be fetched from this host and private networks, too."""

    def file(self, name: str) -> Path:
        """Return the path of a file that a task names, absolute or relative to the data folder.

        Raises:
            EnvironmentFailed: it is not in the data folder, is hidden, or is not a regular file.
        """
        if refusal := self._refusal(name):
            raise EnvironmentFailed(f"the task reads {refusal}")
        path = self._path(name)
        if not path.is_file():
            raise EnvironmentFailed(f"the task reads {name!r}: No such file in {self.data_folder}")
        return path

    def refused(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return which files set-up steps name and may not read, in words for the user, before anything is played."""
        named: list[Any] = []
        for step in steps:
            parameters = step.get("parameters") or {}
            if step.get("type") == "upload_file":
                named += [file.get("local_path") for file in parameters.get("files") or () if isinstance(file, dict)]
            elif step.get("type") == "replay":
                named.append(parameters.get("trajectory"))
        return [refusal for name in named if isinstance(name, str) and (refusal := self._refusal(name))]

    def _path(self, name: str) -> Path:
        assert self.data_folder is not None
        return (self.data_folder / name).resolve()

    def _refusal(self, name: str) -> str:
        """Return why a file may not be read; empty if it may."""
        if self.data_folder is None:
            return (
                f"{name!r} of this host, and no folder is allowed: put the data into a folder of its own, not your home or "
                "above it, or name the folder with the files: --env-option data_folder=FOLDER"
            )
        root = self.data_folder.resolve()
        path = self._path(name)
        if not path.is_relative_to(root):
            return f"{name!r}, which is outside of the folder of its data, {root}: --env-option data_folder=FOLDER"
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            return f"{name!r}, which is hidden: tasks may not read hidden files and folders"
        return ""
