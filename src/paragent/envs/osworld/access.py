"""Host access of task files: which files and addresses of the host's side a task may use.

Task files come from others. Their set-up steps and evaluators run on this host, beside the user's files and networks, and put
what they read into a guest that may have a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
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
        if self.data_folder is None:
            raise EnvironmentFailed(
                f"the task reads {name!r} of this host, and no folder is allowed: --env-option data_folder=FOLDER"
            )
        root = self.data_folder.resolve()
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise EnvironmentFailed(
                f"the task reads {name!r}, which is outside of the folder of its data, {root}. If that is wanted, name a folder "
                "that has it: --env-option data_folder=FOLDER"
            )
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            raise EnvironmentFailed(f"the task reads {name!r}: hidden files and folders are not for tasks")
        if not path.is_file():
            raise EnvironmentFailed(f"the task reads {name!r}: No such file in {root}")
        return path
