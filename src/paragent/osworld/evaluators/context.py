"""Where getters work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from paragent.subprocesses import CallFailed

if TYPE_CHECKING:
    from paragent.osworld.context import Ground
    from paragent.subprocesses import SubprocessPool

__all__ = ["PARSE_SECONDS", "Place"]

PARSE_SECONDS = 120.0
"""For one metric or one parsing of a file; the largest expected files of OSWorld (a textbook as PDF) take about ten."""
_FAR_SIDE = "paragent.osworld.evaluators.child"


@dataclass(frozen=True, slots=True)
class Place:
    """One side of one evaluation: the attempt's ground, a folder for this side's files, helpers to parse what is hostile.

    Results and expectations have folders of their own: tasks give both sides files of the same name.
    """

    ground: Ground
    folder: Path
    helpers: SubprocessPool
    found: Path | None = None
    """Of an expectation: the folder of the result. OSWorld has one folder for both and downloads no file that it has already."""

    def path(self, name: str) -> Path:
        """Return the path of a file of this side; folders on the way are made.

        Raises:
            ValueError: the name leads out of the folder.
        """
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
            raise ValueError(f"the task wants a file called {name!r}, which is not inside its folder")
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    async def keep(self, name: str, data: bytes) -> str:
        """Write a file of this side and return its path.

        Raises:
            ValueError: the name leads out of the folder.
        """
        path = self.path(name)
        await asyncio.to_thread(path.write_bytes, data)
        return str(path)

    async def parse(self, function: str, *arguments: Any) -> Any:
        """Return what `package.module:function` returns for the arguments, called in a helper; None where it fails.

        What is parsed was left by an agent on its machine: whatever it does to the parser is the agent's own fault. The
        helper can use the files of the attempt's folder only.
        """
        try:
            await self.helpers.call("load_parser", function, limit=PARSE_SECONDS)
            return await self.helpers.call(
                "parse", function, list(arguments), limit=PARSE_SECONDS, folder=self.ground.folder
            )
        except CallFailed:
            return None


def far_side() -> str:
    """Return the module whose functions helpers call."""
    return _FAR_SIDE
