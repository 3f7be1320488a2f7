"""The live display of a rollout run; plain lines if standard error is not a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from paragent.cli.tables import console, escape, number, plain_table, score_text
from paragent.rollout.budgets import described
from paragent.rollout.live_status import RunState
from paragent.store.failures import normalised_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.rollout.live_status import RolloutProgress
    from paragent.rollout.prepare import RolloutPlan
    from paragent.rollout.session import RolloutSession
    from paragent.store import Summary

__all__ = ["ProgressLines", "duration", "open_display", "progress_line", "progress_view", "run_displayed"]

_LINE_INTERVAL = 5.0
"""Seconds between two lines without a terminal."""
_SLOWEST = 8
"""Number of rollouts in the table of the slowest."""


@contextlib.contextmanager
def open_display(session: RolloutSession) -> Iterator[None]:
    """Show the progress of a session inside the `with`."""
    if not session.pending:
        yield
    elif sys.stderr.isatty():
        from rich.live import Live

        with Live(console=console(stderr=True), refresh_per_second=4, transient=True) as live:
            session.watch(lambda progress: live.update(progress_view(progress)))
            yield
    else:
        lines = ProgressLines()
        session.watch(lines.show)
        yield
        lines.print(session.progress)


def run_displayed(plan: RolloutPlan) -> Summary:
    """Execute all pending rollouts, show the progress, and return the statistics of the run; see `run_parallel_rollout`."""
    from paragent.rollout.session import RolloutSession

    with RolloutSession(plan) as session, open_display(session):
        return session.run()


class ProgressLines:
    """Prints a line every few seconds, and when the note or the state changes; the message of an error only once."""

    def __init__(self) -> None:
        self._printed = time.monotonic()
        self._shown = ("", "")
        self._line = ""
        self._reasons: set[str] = set()
        """The messages that were printed, without their varying parts."""

    def show(self, progress: RolloutProgress) -> None:
        if time.monotonic() - self._printed >= _LINE_INTERVAL or (progress.note, _state(progress)) != self._shown:
            self.print(progress)

    def print(self, progress: RolloutProgress) -> None:
        self._printed, self._shown = time.monotonic(), (progress.note, _state(progress))
        line = progress_line(progress)
        if line != self._line:
            self._line = line
            sys.stderr.write("".join(f"{one}\n" for one in (line, *self._new_reasons(progress))))
            sys.stderr.flush()

    def _new_reasons(self, progress: RolloutProgress) -> Iterator[str]:
        """Yield the error messages that were not printed before."""
        for kind in progress.failures:
            reason = " ".join(progress.reasons.get(kind, "").split())
            same = f"{kind}: {normalised_message(reason)}"
            if reason and same not in self._reasons:
                self._reasons.add(same)
                yield f"{progress.run}: {kind}: {reason}"


def progress_line(progress: RolloutProgress) -> str:
    """Return the progress in one line."""
    parts = [
        f"{progress.run}: {progress.done} of {progress.total} done",
        *([_state(progress)] if _state(progress) else []),
        f"{progress.active} active" + _waits(progress),
        *([] if progress.mean is None else [f"score {number(progress.mean)}"]),
        *(f"{count} {kind}" for kind, count in progress.failures.items()),
        *([f"{progress.cut} cut"] if progress.cut else []),
        *([f"{progress.cancelled} cancelled"] if progress.cancelled else []),
        *([_machines(progress)] if progress.machines else []),
        *([_requests(progress)] if progress.live.request_limit else []),
        *map(described, progress.budgets),
        f"{duration(progress.seconds)} elapsed",
    ]
    if progress.seconds_left:
        parts.append(f"{duration(progress.seconds_left)} left")
    return " ".join((", ".join(parts) + (f"; {progress.note}" if progress.note else "")).split())


def progress_view(progress: RolloutProgress) -> Any:
    """Return the progress for a terminal."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1))
    left = "" if progress.seconds_left is None else f"{duration(progress.seconds_left)} left"
    head.add_row(
        f"[bold]{escape(progress.run)}[/]",
        ProgressBar(total=progress.total, completed=progress.done, width=40),
        f"{progress.done}/{progress.total}",
        f"{duration(progress.seconds)} elapsed",
        left,
        f"[yellow]{_state(progress)}[/]",
    )
    facts = f"score [bold]{score_text(progress.mean, progress.measured)}[/]   active {progress.active}   "
    facts += f"tokens {number(progress.prompt_tokens, ',')} in, {number(progress.completion_tokens, ',')} out"
    if progress.retries:
        facts += f"   retries {progress.retries}"
    if progress.cut:
        facts += f"   {progress.cut} cut"
    if progress.cancelled:
        facts += f"   {progress.cancelled} cancelled"
    parts: list[Any] = [head, Text.from_markup(facts, emoji=False)]
    resources = [_machines(progress)] if progress.machines else []
    resources += [_requests(progress)] if progress.live.request_limit else []
    resources += [f"budget: {described(budget)}" for budget in progress.budgets]
    if resources:
        parts.append(Text("   ".join(resources)))
    if progress.failures:
        failures = progress.failures.most_common()
        kinds = "   ".join(f"{kind} {count}{_reason(progress, kind)}" for kind, count in failures)
        parts.append(Text.from_markup(f"[red]failed[/] {escape(kinds)}", emoji=False))
    if progress.live.rollouts:
        parts.append(_slowest(progress))
    if progress.note:
        parts.append(Text(progress.note, style="yellow"))
    return Group(*parts)


def _state(progress: RolloutProgress) -> str:
    """Return the state if it is not the usual one."""
    usual = progress.state in {RunState.STARTING, RunState.RUNNING} or progress.state.ended
    return "" if usual else str(progress.state)


def _waits(progress: RolloutProgress) -> str:
    """Return how many rollouts wait, and for what most of them wait."""
    rollouts = progress.live.rollouts
    waits = Counter(rollout.activity for rollout in rollouts if _is_wait(rollout.activity))
    if not waits:
        return ""
    [(most, _)] = waits.most_common(1)
    longest = max((rollout.until or 0.0 for rollout in rollouts if rollout.activity == most), default=0.0)
    return f" ({waits.total()} waiting: {_activity(most, longest or None).removeprefix('waiting ')})"


def _reason(progress: RolloutProgress, kind: str) -> str:
    return f" ({reason})" if (reason := progress.reasons.get(kind)) else ""


def _slowest(progress: RolloutProgress) -> Any:
    table = plain_table("", "slowest", "activity", "for", "work")
    for rollout in progress.live.rollouts[:_SLOWEST]:
        colour = "yellow" if _is_wait(rollout.activity) else "cyan"
        shown = escape(_activity(rollout.activity, rollout.until))
        table.add_row(escape(rollout.label), f"[{colour}]{shown}[/]", duration(rollout.since), duration(rollout.worked))
    return table


def _activity(activity: str, until: float | None) -> str:
    """Return an activity, with the remaining time of a wait if it is known."""
    if until is None or round(until) == 0:
        return activity
    remaining = duration(until)
    return f"{activity} in {remaining}" if activity.startswith("retrying") else f"{activity}, at least {remaining}"


def _requests(progress: RolloutProgress) -> str:
    return f"requests {progress.live.in_flight} / {progress.live.request_limit}"


def _machines(progress: RolloutProgress) -> str:
    counts = progress.machines
    if counts is None:
        return ""
    booting = f", {counts.booting} booting" if counts.booting else ""
    return f"machines {counts.in_use} in use, {counts.resetting} resetting{booting} / {counts.total}"


def _is_wait(activity: str) -> bool:
    return activity.startswith(("waiting", "retrying"))


def duration(seconds: float) -> str:
    """Return a duration as `0:45` or `1:02:03`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
