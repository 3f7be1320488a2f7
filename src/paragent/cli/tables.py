"""Tables and consoles of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.store import RolloutStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from paragent.store import Summary

__all__ = ["COLOURS", "console", "interval_text", "number", "plain_table", "score_text", "summary_table"]

COLOURS = {
    RolloutStatus.COMPLETED: "green",
    RolloutStatus.FAILED: "red",
    RolloutStatus.TIMED_OUT: "yellow",
    RolloutStatus.INFRASTRUCTURE: "magenta",
    RolloutStatus.CANCELLED: "bright_black",
    RolloutStatus.UNSCORED: "magenta",
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
    table.add_row("rollouts", f"{summary.done} of {summary.rollouts} done" + _attempts(summary))
    for status, count in summary.statuses.items():
        if count:
            again = " (pending)" if status == RolloutStatus.INFRASTRUCTURE else ""
            table.add_row(f"  {status}", f"[{COLOURS[RolloutStatus(status)]}]{count}[/]{again}")
    table.add_row("[bold]score[/]", score_text(summary.mean, summary.measured, summary.interval, bold=True))
    if summary.mean_of_all is not None and summary.measured < summary.rollouts:
        table.add_row("  others as 0", f"{summary.mean_of_all:.3f} of all {counted(summary.rollouts, 'rollout')}")
    for k, value in summary.pass_at.items():
        table.add_row(f"  pass@{k}", f"{value:.3f}")
    for scorer, value in summary.means.items():
        table.add_row(f"  {escape(scorer)}", f"{value:.3f}")
    if summary.cut:
        table.add_row("cut replies", f"[yellow]{summary.cut}[/]: a limit of tokens, context or output was reached")
    for kind, count in summary.failures.items():
        for reason, same in _reasons(summary.reasons.get(kind, {}), count).items():
            table.add_row(f"failed: {escape(kind)}", f"{same}: {escape(reason)}" if reason else str(same))
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


def score_text(
    mean: float | None, measured: int, interval: tuple[float, float] | None = None, *, bold: bool = False
) -> str:
    """Return a mean score with its interval and the number of results that it is the mean of."""
    if mean is None:
        return "none: nothing was measured"
    shown = f"[bold]{mean:.3f}[/]" if bold else f"{mean:.3f}"
    parts = [] if interval is None else [f"95 % interval {interval_text(interval)}"]
    return f"{shown} ({', '.join([*parts, f'{measured:,} measured'])})"


def interval_text(interval: tuple[float, float], form: str = ".3f") -> str:
    """Return the two ends of an interval."""
    return f"{interval[0]:{form}} to {interval[1]:{form}}"


def _reasons(messages: dict[str, int], count: int) -> dict[str, int]:
    """Return the messages of a kind of failure; those that the summary does not have are counted together."""
    rest = count - sum(messages.values())
    return messages | ({"other messages": rest} if rest and messages else {"": rest} if rest else {})


def _attempts(summary: Summary) -> str:
    return f" ({counted(summary.tasks, 'task')} x {summary.attempts} attempts)" if summary.attempts > 1 else ""
