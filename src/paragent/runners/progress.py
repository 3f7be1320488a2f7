"""Progress of a run: counts of responses, a live display, and reports to a function of the user."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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
    running: int = 0
    """How many of these occupy a slot of a worker; the others wait in a queue."""
    seconds: float = 0.0
    """Seconds since the run began."""

    @property
    def done(self) -> int:
        """How many tasks have a response."""
        return sum(self.counts.values())

    @property
    def without_success(self) -> int:
        """How many tasks have ended without success; cancelled ones are not counted."""
        return self.done - self.counts[TaskStatus.SUCCEEDED] - self.counts[TaskStatus.CANCELLED]

    @property
    def rate(self) -> float:
        """Responses per second, without those of cancelled tasks."""
        return (self.done - self.counts[TaskStatus.CANCELLED]) / max(self.seconds, 1e-9)


class Calls(Protocol):
    """The calls of a run, as the progress shows them."""

    @property
    def outstanding(self) -> int: ...
    @property
    def running(self) -> int: ...


class Reporter:
    """Counts responses and reports the progress a few times a second."""

    def __init__(self, config: RunConfig, total: int | None, report: Callable[[Progress], object]) -> None:
        self._progress = Progress(config.job_name, total)
        self._report = report
        self._started = time.monotonic()
        self._last_report = 0.0
        self._starting = False
        self._closed = False

    def note(self, responses: Iterable[TaskResponse], calls: Calls, *, starting: bool = False) -> None:
        """Count new responses, and report if the last report is old enough.

        Args:
            responses: the new responses.
            calls: the calls of tasks that were submitted and have not ended.
            starting: whether the engine has no worker yet.
        """
        self._starting = starting
        for response in responses:
            self._progress.counts[response.status] += 1
        now = time.monotonic()
        if now - self._last_report >= _INTERVAL and not self._closed:
            self._last_report = now
            self._progress.seconds = now - self._started
            self._progress.under_way, self._progress.running = calls.outstanding, calls.running
            self._report(self._progress)

    def close(self) -> None:
        """Make the last report; closing twice does no harm."""
        if self._closed:
            return
        self._closed = True
        self._progress.seconds = time.monotonic() - self._started
        self._progress.under_way = self._progress.running = 0
        self._report(self._progress)


class _Display(Reporter):
    """A live progress bar on a terminal; otherwise a line every few seconds."""

    def __init__(self, config: RunConfig, total: int | None) -> None:
        super().__init__(config, total, self._show)
        self._engine_name = str(
            config.engine_name if config.cls is None else getattr(config.cls, "__name__", config.cls)
        )
        self._bar: Any = None
        self._last_line = 0.0
        self._complete = False
        """Whether the line with all tasks was written."""
        if sys.stderr.isatty():
            self._bar, self._task = _rich_bar(config.job_name, total)
            self._bar.start()
            self._bar.console.show_cursor()  # `start` hides it, and a signal that kills this process would leave it hidden

    def _show(self, progress: Progress) -> None:
        state = f"starting {self._engine_name}" if self._starting else f"{progress.running} in progress"
        cancelled = progress.counts[TaskStatus.CANCELLED]
        ended = f"{progress.without_success} without success" + (f", {cancelled} cancelled" if cancelled else "")
        rate = f"{progress.rate:,.0f}/s" if progress.rate >= 100 else f"{progress.rate:.3g}/s"
        if self._bar:
            self._bar.update(self._task, completed=progress.done, state=state, ended=ended, rate=rate)
        elif not self._complete and (
            self._closed or progress.done == progress.total or progress.seconds - self._last_line >= _LINE_INTERVAL
        ):
            self._complete = progress.done == progress.total
            self._last_line = progress.seconds
            of = "" if progress.total is None else f" of {progress.total}"
            sys.stderr.write(
                f"{progress.job_name}: {progress.done}{of} done, {state}, {ended}, {progress.seconds:.1f} s, {rate}\n"
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
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from paragent._internal.text import safe_console

    bar = Progress(
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[cyan]{task.fields[state]}[/] [red]{task.fields[ended]}[/] {task.fields[rate]}"),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(elapsed_when_finished=True),
        console=safe_console(stderr=True),
    )
    return bar, bar.add_task(title, total=total, state="0 in progress", ended="0 without success", rate="0/s")
