"""Contract of export formats, and the results of a run as formats receive them."""

from __future__ import annotations

import abc
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paragent._internal.files import read_small_file
from paragent.store.directory import images_folder
from paragent.store.formats.conversations import BranchMessages, conversations
from paragent.store.summary import PRICES
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paragent.store.journal import Journal
    from paragent.store.records import RolloutResult

__all__ = ["ExportFormat", "ExportedRollout", "LeftOut", "RunExport"]

_MOST_NAMED = 10
"""Results that are left out and named; the others are counted."""


@dataclass(frozen=True, slots=True)
class ExportedRollout:
    """One final result with its task and its trajectory."""

    task: BenchmarkTask
    result: RolloutResult
    trajectory: dict[str, Any]
    """`messages`, `tools`, `steps`, `branches`, `tokens`; empty if nothing was recorded or it cannot be read."""
    images: Path
    """The folder with the images that messages name; it need not exist."""

    def conversations(self) -> list[BranchMessages]:
        """Return the conversation and its branches; empty if there are no messages."""
        return conversations(self.trajectory)


@dataclass(slots=True)
class LeftOut:
    """Results that a format cannot represent."""

    count: int = 0
    names: list[str] = field(default_factory=list)
    """The labels of the first ones."""


class RunExport:
    """The final results of a run, for one export, and what became of each.

    Args:
        journal: the journal of the run.
        reasoning: whether to keep reasoning in formats that leave it out unless they are told otherwise.
    """

    def __init__(self, journal: Journal, *, reasoning: bool = False) -> None:
        self.journal = journal
        self.reasoning = reasoning
        self.written = 0
        self.left_out: dict[str, LeftOut] = {}
        """By the reason."""
        self._leaving = False

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.journal.folder.name

    def config(self) -> dict[str, Any]:
        """Return the run's settings; empty if they cannot be read."""
        try:
            config = json.loads(read_small_file(self.journal.folder / "config.json"))
        except (OSError, ValueError):
            return {}
        return config if isinstance(config, dict) else {}

    def prices(self) -> dict[str, float] | None:
        """Return the prices `input` and `output` of a million tokens of the agent's model; None if they are unknown."""
        prices = json.loads(self.journal.meta(PRICES) or "null")
        found: dict[str, float] | None = prices.get("model") if isinstance(prices, dict) else None
        return found

    def rollouts(self) -> Iterator[ExportedRollout]:
        """Yield each final result, one at a time; it counts as written unless `leave_out` is called before the next one."""
        for result in self.journal.results():
            task = self.journal.task(result.task) or BenchmarkTask(result.task, "")
            folder = images_folder(self.journal.folder, result.task, result.attempt)
            self._leaving = False
            yield ExportedRollout(task, result, self._trajectory(result.number), folder)
            self.written += not self._leaving

    def leave_out(self, rollout: ExportedRollout, reason: str) -> None:
        """Say that the result that was yielded last is not written, and why, as in "it has no messages"."""
        self._leaving = True
        found = self.left_out.setdefault(reason, LeftOut())
        found.count += 1
        if len(found.names) < _MOST_NAMED:
            found.names.append(rollout.result.label)

    def _trajectory(self, number: int | None) -> dict[str, Any]:
        try:
            found = self.journal.trajectory(number)
        except (ValueError, zlib.error) as error:
            return {"unstorable": f"the trajectory is damaged: {error}"}
        return found if isinstance(found, dict) else {}


class ExportFormat(abc.ABC):
    """Writes the results of a run. `paragent.testing.ExportFormatContract` tests an implementation."""

    folder: ClassVar[bool] = False
    """Whether it writes a folder instead of a file."""

    @abc.abstractmethod
    def write(self, run: RunExport, target: Path) -> None:
        """Write every result that `run.rollouts()` yields, or call `run.leave_out` for it.

        Only some results may be in memory at the same time.

        Args:
            run: the results.
            target: the file, or the folder, which need not exist; its parent exists.

        Raises:
            UsageError: the folder has to be empty and is not.
            OSError: a file cannot be written.
        """
