"""The live display of a rollout run; plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from paragent.cli.tables import console, number, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.rollout.live_status import Tally
    from paragent.rollout.session import Session

__all__ = ["clock", "open_display"]

_LINE_INTERVAL = 5.0
"""Seconds between two lines where there is no terminal."""
_SLOWEST = 8
"""Rollouts that are shown."""


@contextlib.contextmanager
def open_display(session: Session) -> Iterator[None]:
    """Show a session while it plays."""
    if not session.owed:
        yield
    elif sys.stderr.isatty():
        from rich.live import Live

        with Live(console=console(stderr=True), refresh_per_second=4, transient=True) as live:
            session.watch(lambda tally: live.update(picture(tally)))
            yield
    else:
        lines = _Lines()
        session.watch(lines.show)
        yield
        lines.last(session.tally)


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._note = ""

    def show(self, tally: Tally) -> None:
        if time.monotonic() - self._shown >= _LINE_INTERVAL or tally.note != self._note:
            self.last(tally)

    def last(self, tally: Tally) -> None:
        self._shown, self._note = time.monotonic(), tally.note
        sys.stderr.write(line(tally) + "\n")
        sys.stderr.flush()


def line(tally: Tally) -> str:
    """Return how far a run is, in one line."""
    parts = [
        f"{tally.run}: {tally.done} of {tally.total} done",
        f"{tally.under_way} under way" + _waits(tally),
        f"score {number(tally.mean)}",
        *(f"{count} {kind}{_reason(tally, kind)}" for kind, count in tally.failures.items()),
        *([_machines(tally)] if tally.machines else []),
        *([_requests(tally)] if tally.sighting.may_be_in_flight else []),
        f"{clock(tally.seconds)} elapsed",
    ]
    if tally.seconds_left:
        parts.append(f"{clock(tally.seconds_left)} left")
    return " ".join((", ".join(parts) + (f"; {tally.note}" if tally.note else "")).split())


def picture(tally: Tally) -> Any:
    """Return a run at this moment for a terminal."""
    from rich.console import Group
    from rich.markup import escape
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1))
    left = "" if tally.seconds_left is None else f"{clock(tally.seconds_left)} left"
    head.add_row(
        f"[bold]{escape(tally.run)}[/]",
        ProgressBar(total=tally.total, completed=tally.done, width=40),
        f"{tally.done}/{tally.total}",
        f"{clock(tally.seconds)} elapsed",
        left,
    )
    seen = tally.sighting
    facts = f"score [bold]{number(tally.mean)}[/]   under way {tally.under_way}   "
    facts += f"tokens {number(tally.prompt_tokens, ',')} in, {number(tally.completion_tokens, ',')} out"
    if tally.replays:
        facts += f"   played again {tally.replays}"
    parts: list[Any] = [head, Text.from_markup(facts)]
    held = [_machines(tally)] if tally.machines else []
    held += [_requests(tally)] if seen.may_be_in_flight else []
    if held:
        parts.append(Text("   ".join(held)))
    if tally.failures:
        kinds = "   ".join(f"{kind} {count}{_reason(tally, kind)}" for kind, count in tally.failures.most_common())
        parts.append(Text.from_markup(f"[red]failed[/] {escape(kinds)}"))
    if seen.rollouts:
        parts.append(_slowest(tally))
    if tally.note:
        parts.append(Text(tally.note, style="yellow"))
    return Group(*parts)


def _waits(tally: Tally) -> str:
    """Return how many rollouts wait, and what most of them wait for."""
    waits = Counter(what for _, what, *_ in tally.sighting.rollouts if _is_wait(what))
    if not waits:
        return ""
    [(what, _)] = waits.most_common(1)
    longest = max((until or 0.0 for _, one, _, until, _ in tally.sighting.rollouts if one == what), default=0.0)
    return f" ({waits.total()} waiting: {_doing(what, longest or None)})"


def _reason(tally: Tally, kind: str) -> str:
    return f" ({reason})" if (reason := tally.reasons.get(kind)) else ""


def _slowest(tally: Tally) -> Any:
    from rich.markup import escape

    table = plain_table("", "slowest", "doing", "for", "work")
    table.title = None
    for label, what, since, until, worked in tally.sighting.rollouts[:_SLOWEST]:
        doing = _doing(what, until)
        colour = "yellow" if _is_wait(what) else "cyan"
        table.add_row(escape(label), f"[{colour}]{escape(doing)}[/]", clock(since), clock(worked))
    return table


def _doing(what: str, until: float | None) -> str:
    """Return what a rollout does, with the time that a wait still takes where that is known."""
    if until is None or round(until) == 0:
        return what
    return f"{what} in {clock(until)}" if what.startswith("retrying") else f"{what}, {clock(until)} at least"


def _requests(tally: Tally) -> str:
    return f"requests {tally.sighting.in_flight} / {tally.sighting.may_be_in_flight}"


def _machines(tally: Tally) -> str:
    seen = tally.machines
    if seen is None:
        return ""
    booting = f", {seen.booting} booting" if seen.booting else ""
    return f"machines {seen.in_use} in use, {seen.resetting} resetting{booting} / {seen.total}"


def _is_wait(what: str) -> bool:
    return what.startswith(("waiting", "retrying"))


def clock(seconds: float) -> str:
    """Return a time as people read it: `0:45`, `1:02:03`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
