"""Tables and consoles of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.store import RolloutStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from paragent.store import Summary

__all__ = ["COLOURS", "console", "number", "plain_table", "summary_table"]

COLOURS = {
    RolloutStatus.COMPLETED: "green",
    RolloutStatus.FAILED: "red",
    RolloutStatus.TIMED_OUT: "yellow",
    RolloutStatus.INFRASTRUCTURE: "magenta",
    RolloutStatus.CANCELLED: "bright_black",
}


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints no control characters of texts; without a terminal, its width is 140 columns."""
    from paragent._internal.text import safe_console

    made = safe_console(stderr=stderr, highlight=False)
    return made if made.is_terminal else safe_console(stderr=stderr, highlight=False, width=140)


def number(value: float | None, form: str = ".3f") -> str:
    """Return a formatted number, or `unknown` for None."""
    return "unknown" if value is None else format(value, form)


def plain_table(title: str, *headings: str) -> Table:
    """Return an empty table; an empty title is not shown."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    return table


def summary_table(name: str, summary: Summary) -> Any:
    """Return the statistics of a run as a table."""
    from rich.markup import escape

    table = plain_table(escape(name), "", "")
    table.show_header = False
    table.add_row("rollouts", f"{summary.done} of {summary.rollouts}" + _attempts(summary))
    for status, count in summary.statuses.items():
        if count:
            table.add_row(f"  {status}", f"[{COLOURS[RolloutStatus(status)]}]{count}[/]")
    table.add_row("[bold]score[/]", f"[bold]{number(summary.mean)}[/]{_margin(summary)}")
    if summary.statuses[RolloutStatus.INFRASTRUCTURE]:
        table.add_row("  without infrastructure failures", number(summary.mean_without_infrastructure))
    for k, value in summary.pass_at.items():
        table.add_row(f"  pass@{k}", f"{value:.3f}")
    for scorer, value in summary.means.items():
        table.add_row(f"  {escape(scorer)}", f"{value:.3f}")
    for kind, count in summary.failures.items():
        reason = escape(summary.reasons.get(kind, ""))
        table.add_row(f"failed: {escape(kind)}", f"{count}: {reason}" if reason else str(count))
    table.add_row("tokens in / out", f"{number(summary.prompt_tokens, ',')} / {number(summary.completion_tokens, ',')}")
    if summary.cached_replies:
        cached = f"{summary.cached_replies:,} of {summary.cached_replies + summary.requests:,} replies"
        table.add_row("from the cache", f"{cached}; their tokens and cost are not counted")
    table.add_row("cost", number(summary.cost, ",.4f"))
    if summary.machines is not None:
        table.add_row("machines", _machines(summary.machines))
    table.add_row(
        "time",
        f"{summary.seconds:.1f} s in {counted(summary.sessions, 'session')}; {summary.seconds_worked:.1f} s of work",
    )
    return table


def _machines(figures: dict[str, float]) -> str:
    leased, part = figures["leased_seconds"], figures["utilisation"]
    return f"{counted(round(figures['leases_granted']), 'lease')}, {leased:.1f} s leased, {part:.0%} of their time"


def _margin(summary: Summary) -> str:
    """Return half the width of the 95 % interval of the score."""
    if summary.margin is None:
        return ""
    return f" ± {summary.margin:.3f} (95 % interval)"


def _attempts(summary: Summary) -> str:
    return f" ({counted(summary.tasks, 'task')} x {summary.attempts} attempts)" if summary.attempts > 1 else ""
