"""Tables and consoles of the commands."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.store import RolloutStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from paragent.store import Summary

__all__ = [
    "COLOURS",
    "console",
    "escape",
    "fitted_table",
    "interval_text",
    "number",
    "plain_table",
    "read_config",
    "score_text",
    "summary_table",
]

COLOURS = {
    RolloutStatus.COMPLETED: "green",
    RolloutStatus.FAILED: "red",
    RolloutStatus.TIMED_OUT: "yellow",
    RolloutStatus.INFRASTRUCTURE: "magenta",
    RolloutStatus.CANCELLED: "bright_black",
    RolloutStatus.UNSCORED: "magenta",
}


_NARROWEST = 16
"""Characters of a column whose texts may be wrapped: if there is less room, other columns are left out."""
_BRACKET = re.compile(r"(?<!\\)(\\*)\[([a-z#/@][^\[]*?\])?")
"""An opening bracket with the backslashes before it; group 2 is set if rich reads it as a tag."""


def escape(text: str) -> str:
    """Return markup that rich displays as exactly this text.

    `rich.markup.escape` is not used: it loses a backslash before a bracket that does not begin a tag, as in LaTeX's `\\[`, and
    changes backslashes at the end of a text.
    """
    marked = _BRACKET.sub(_escape_bracket, text)
    at_end = len(marked) - len(marked.rstrip("\\"))
    return f"{marked}{marked[len(marked) - at_end :]}[none][/]" if at_end else marked


def _escape_bracket(found: re.Match[str]) -> str:
    backslashes, tag = found[1], found[2]
    if tag is None:
        return f"{backslashes}\\[" if backslashes else "["
    return f"{backslashes * 2}\\[{tag}"


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints no control characters of texts; without a terminal, its width is 140 columns."""
    from paragent._internal.text import safe_console

    made = safe_console(stderr=stderr, highlight=False)
    return made if made.is_terminal else safe_console(stderr=stderr, highlight=False, width=140)


def number(value: float | None, form: str = ".3f") -> str:
    """Return a formatted number, or `unknown` for None.

    0.2375 is 0.238, as on the pages: the decimal digits are rounded and not the binary number, which is a little below.
    """
    if value is None:
        return "unknown"
    with localcontext(rounding=ROUND_HALF_UP):
        return format(Decimal(repr(value)), form)


def plain_table(title: str, *headings: str) -> Table:
    """Return an empty table; an empty title is not shown."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    return table


def fitted_table(
    width: int,
    rows: Sequence[Mapping[str, str]],
    *,
    wrapped: Collection[str] = (),
    optional: Sequence[str] = (),
    headings: Mapping[str, str] | None = None,
) -> Table:
    """Return a table that fits into a terminal.

    Only texts in columns of `wrapped` are broken into several lines, and no text is shortened. If the first column alone does not
    fit, because it has a long id, it is broken too.

    Args:
        width: the columns of the terminal.
        rows: the cells of each row, by column; at least one row, and all rows have the same columns.
        wrapped: the columns whose texts may be wrapped.
        optional: the columns that are left out if there is no room for all, the first of them first.
        headings: the headings of columns, if they differ from their names.
    """
    from rich.text import Text

    titles = {name: name for name in rows[0]} | dict(headings or {})
    widths = {}
    for name, title in titles.items():
        longest = max(Text.from_markup(text).cell_len for text in (title, *(row[name] for row in rows)))
        widths[name] = len(" │ ") + (min(longest, _NARROWEST) if name in wrapped else longest)
    for name in optional:
        if sum(widths.values()) + 1 > width:
            widths.pop(name, None)
    table = plain_table("", *(titles[name] for name in widths))
    for name, column in zip(widths, table.columns, strict=True):
        column.overflow, column.no_wrap = "fold", name not in wrapped
    if sum(widths.values()) + 1 > width:
        for column in table.columns:
            if not column.no_wrap:
                column.max_width = _NARROWEST
        others = sum(list(widths.values())[1:]) + len("│  │")
        table.columns[0].no_wrap, table.columns[0].max_width = False, max(_NARROWEST, width - others)
    for row in rows:
        table.add_row(*(row[name] for name in widths))
    return table


def read_config(run: Path) -> dict[str, Any]:
    """Return the content of config.json of a run; empty if it cannot be read."""
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def summary_table(run: Path, summary: Summary, metric: str | None) -> Any:
    """Return what a run measured, and its statistics, as a table.

    Args:
        run: the run directory.
        summary: the statistics.
        metric: the scorer whose score counts; None if it is unknown.
    """
    from paragent.engines.base import lost_calls

    table = plain_table(escape(run.name), "", "")
    table.show_header = False
    config = read_config(run)
    origin = {"data": Path(str(config.get("data") or "")).name, "model": config.get("model")}
    for name, value in (origin | {"scorer": metric, "judge": config.get("judge_model")}).items():
        if value:
            table.add_row(name, escape(str(value)))
    table.add_row("rollouts", f"{summary.done} of {summary.rollouts} done" + _attempts(summary))
    for status, count in summary.statuses.items():
        if count:
            again = " (pending)" if status == RolloutStatus.INFRASTRUCTURE else ""
            table.add_row(f"  {status}", f"[{COLOURS[RolloutStatus(status)]}]{count}[/]{again}")
    table.add_row("[bold]score[/]", score_text(summary.mean, summary.measured, summary.interval, bold=True))
    if summary.mean_of_all is not None and summary.measured < summary.rollouts:
        table.add_row("  others as 0", f"{number(summary.mean_of_all)} of all {counted(summary.rollouts, 'rollout')}")
    for k, value in summary.pass_at.items():
        table.add_row(f"  pass@{k}", number(value))
    for scorer, value in summary.means.items():
        count = summary.measured_by[scorer]
        measured = f" ({count:,} measured)" if count != summary.measured else ""
        table.add_row(f"  {escape(scorer)}", number(value) + measured)
    if summary.cut:
        table.add_row("cut replies", f"[yellow]{summary.cut}[/]: a limit of tokens, context or output was reached")
    for kind, count in summary.failures.items():
        for reason, same in _reasons(summary.reasons.get(kind, {}), count).items():
            table.add_row(f"failed: {escape(kind)}", f"{same}: {escape(reason)}" if reason else str(same))
    for reason, same in summary.lost_workers.items():
        again = " and executed again" if lost_calls(reason) else ""
        table.add_row("lost workers", f"[yellow]{same:,}[/]: {escape(reason)}{again}")
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
    shown = f"[bold]{number(mean)}[/]" if bold else number(mean)
    parts = [] if interval is None else [f"95 % interval {interval_text(interval)}"]
    return f"{shown} ({', '.join([*parts, f'{measured:,} measured'])})"


def interval_text(interval: tuple[float, float], form: str = ".3f") -> str:
    """Return the two ends of an interval."""
    return f"{number(interval[0], form)} to {number(interval[1], form)}"


def _reasons(messages: dict[str, int], count: int) -> dict[str, int]:
    """Return the messages of a kind of failure; those that the summary does not have are counted together."""
    rest = count - sum(messages.values())
    return messages | ({"other messages": rest} if rest and messages else {"": rest} if rest else {})


def _attempts(summary: Summary) -> str:
    return f" ({counted(summary.tasks, 'task')} x {summary.attempts} attempts)" if summary.attempts > 1 else ""
