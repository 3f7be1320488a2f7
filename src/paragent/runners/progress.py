"""Progress of a run: counts of responses, a live display, and reports to a function of the user."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.tasks import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paragent.config import RunConfig
    from paragent.tasks import TaskResponse

__all__ = ["Progress", "Reporter", "open_reporter"]

_INTERVAL = 0.1
"""Seconds between two reports."""


@dataclass(slots=True)
class Progress:
    """The state of a run at one moment."""

    job_name: str
    """The name of the run."""
    total: int | None
    """How many tasks there are; None if that is not known."""
    counts: dict[TaskStatus, int] = field(default_factory=lambda: dict.fromkeys(TaskStatus, 0))
    """How many tasks have ended with each status."""
    under_way: int = 0
    """How many tasks have been submitted and have not ended."""
    seconds: float = 0.0
    """Seconds since the run began."""

    @property
    def done(self) -> int:
        """How many tasks have a response."""
        return sum(self.counts.values())


class Reporter:
    """Counts responses and reports the progress a few times a second."""

    def __init__(self, config: RunConfig, total: int | None, report: Callable[[Progress], None]) -> None:
        self._progress = Progress(config.job_name, total)
        self._report = report
        self._started = time.monotonic()
        self._last_report = 0.0
        self._starting = False

    def note(self, responses: Iterable[TaskResponse], under_way: int, *, starting: bool = False) -> None:
        """Count new responses, and report if the last report is old enough.

        Args:
            responses: the new responses.
            under_way: tasks that were submitted and have not ended.
            starting: whether the engine has no worker yet.
        """
        self._starting = starting
        for response in responses:
            self._progress.counts[response.status] += 1
        self._progress.under_way = under_way
        now = time.monotonic()
        self._progress.seconds = now - self._started
        if now - self._last_report >= _INTERVAL:
            self._last_report = now
            self._report(self._progress)

    def close(self) -> None:
        """Make the last report."""
        self._progress.seconds = time.monotonic() - self._started
        self._report(self._progress)


class _Display(Reporter):
    """A live progress bar on a terminal; otherwise a line every few seconds."""

    def __init__(self, config: RunConfig, total: int | None) -> None:
        super().__init__(config, total, self._show)
        self._engine_name = str(config.engine_name)
        self._bar: Any = None
        self._last_line = 0.0
        self._complete = False
        """Whether the line with all tasks was written."""
        if sys.stderr.isatty():
            self._bar, self._task = _rich_bar(config.job_name, total)
            self._bar.start()

    def _show(self, progress: Progress) -> None:
        state = f"starting {self._engine_name}" if self._starting else f"{progress.under_way} in progress"
        bad = progress.done - progress.counts[TaskStatus.SUCCEEDED]
        if self._bar:
            self._bar.update(self._task, completed=progress.done, state=state, bad=bad)
        elif not self._complete and (
            progress.done == progress.total or progress.seconds - self._last_line >= _LINE_INTERVAL
        ):
            self._complete = progress.done == progress.total
            self._last_line = progress.seconds
            of = "" if progress.total is None else f" of {progress.total}"
            sys.stderr.write(
                f"{progress.job_name}: {progress.done}{of} done, {state}, {bad} without success, "
                f"{progress.seconds:.1f} s\n"
            )

    def close(self) -> None:
        """Show the final state and restore the terminal."""
        super().close()
        if self._bar:
            self._bar.stop()


_LINE_INTERVAL = 5.0
"""Seconds between two lines if there is no terminal."""


def open_reporter(config: RunConfig, total: int | None) -> Reporter | None:
    """Return the reporter that `config.progress` asks for, or None. The caller closes it."""
    if config.progress is True:
        return _Display(config, total)
    return Reporter(config, total, config.progress) if callable(config.progress) else None


def _rich_bar(title: str, total: int | None) -> tuple[Any, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    from paragent._internal.text import safe_console

    bar = Progress(
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[cyan]{task.fields[state]}[/] [red]{task.fields[bad]} without success"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=safe_console(stderr=True),
    )
    return bar, bar.add_task(title, total=total, state="0 in progress", bad=0)
