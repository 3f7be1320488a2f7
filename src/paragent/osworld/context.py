"""Contexts of an attempt: what set-up steps and evaluators use, and what one getter uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from paragent.errors import EnvironmentFailed, MachineFailed
from paragent.osworld.access import Access
from paragent.subprocesses import CallFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from paragent.osworld.controller import Controller
    from paragent.subprocesses import SubprocessPool

__all__ = ["CHILD_MODULE", "PARSE_SECONDS", "AttemptContext", "GetterContext", "MachineRefused"]

PARSE_SECONDS = 120.0
"""Time limit of one metric or of parsing one file; the largest expected file of OSWorld (a textbook as PDF) takes about 10 s."""
CHILD_MODULE = "paragent.osworld.evaluators.registry"
"""The module whose functions run in child processes."""


class MachineRefused(MachineFailed):
    """The machine's server answered that it cannot do what was requested: there is no such file, window or program.

    The machine works. During the set-up another machine may succeed. During the evaluation the refusal is part of the state
    that the agent left.
    """


async def _no_steps(steps: Sequence[Mapping[str, Any]], attempt: AttemptContext) -> None:
    raise EnvironmentFailed(f"{len(steps)} set-up steps for {attempt.folder}, but its context has no `run_steps`")


@dataclass(slots=True)
class AttemptContext:
    """What set-up steps and evaluators of one attempt use. The creator owns the folder and the machine."""

    controller: Controller
    folder: Path
    """An existing folder for the files of this attempt only."""
    client_password: str = "password"  # noqa: S105 - the published password of OSWorld's images
    screen: tuple[int, int] = (1920, 1080)
    last_action: str | Mapping[str, Any] | None = None
    """The agent's last action, in the form in which the agent wrote it."""
    run_steps: Callable[[Sequence[Mapping[str, Any]], AttemptContext], Awaitable[None]] = _no_steps
    """Runs set-up steps, as `paragent.osworld.setup.set_up` does."""
    access: Access = field(default_factory=Access)
    """Which files and addresses of this host task files may use."""

    @property
    def failed(self) -> bool:
        """Whether the agent's last action was FAIL, as a string or as `{"action_type": "FAIL"}`."""
        action = self.last_action
        if isinstance(action, str):
            return action.strip() == "FAIL"
        return action is not None and action.get("action_type") == "FAIL"

    async def set_up(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Run set-up steps: before the attempt, or because an evaluator asks for them."""
        await self.run_steps(steps, self)


@dataclass(frozen=True, slots=True)
class GetterContext:
    """What a getter uses for one side of a check, the result or the expectation.

    The two sides have separate folders because tasks use the same file names for both.
    """

    attempt: AttemptContext
    folder: Path
    """For the files of this side."""
    processes: SubprocessPool
    """Child processes that parse files from the machine."""
    result_folder: Path | None = None
    """For an expectation: the folder of the result. OSWorld has one folder for both sides and does not download a file that
    already exists there; None turns that off."""

    def path(self, name: str) -> Path:
        """Return the path of a file of this side and create its parent folders.

        Raises:
            ValueError: the name leads out of the folder.
        """
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
            raise ValueError(f"the task names the file {name!r}, which is not inside its folder")
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    async def write(self, name: str, data: bytes) -> str:
        """Write a file of this side and return its path.

        Raises:
            ValueError: the name leads out of the folder.
        """
        path = self.path(name)
        await asyncio.to_thread(path.write_bytes, data)
        return str(path)

    async def parse(self, function: str, *arguments: Any) -> Any:
        """Call `package.module:function` in a child process and return its result; None if the call fails.

        The agent may have written the parsed file, so a parser that fails or exceeds its limits counts against the agent.
        The child process can read only the attempt's folder.
        """
        try:
            await self.processes.call("load_parser", function, limit=PARSE_SECONDS)
            return await self.processes.call(
                "parse", function, list(arguments), limit=PARSE_SECONDS, folder=self.attempt.folder
            )
        except CallFailed:
            return None
