"""Reports of benchmark runs: as a table for the terminal and as JSON, and how several runs are combined."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.machine import Machine
from bench.measure import Result, Target, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

__all__ = [
    "Report",
    "amount",
    "as_table",
    "counts",
    "from_json",
    "goal",
    "marks",
    "newest",
    "same_state",
    "spread",
    "to_json",
]

_COLOURS = {Verdict.PASS: "green", Verdict.MISS: "bold red", Verdict.OPEN: "yellow"}


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark."""

    machine: Machine
    taken: str
    """When it began, as ISO 8601."""
    rounds: int
    quick: bool
    results: list[Result]
    code: str = ""
    """The measured state of the repository, see `bench.machine.code_state`."""

    @property
    def seconds(self) -> float:
        """How long all its measurements took."""
        return sum(result.seconds for result in self.results)


def amount(value: float | None) -> str:
    """Return a number as text: without decimals from 100 on, otherwise with three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(samples: list[float]) -> str:
    """Return the range of samples as text."""
    return f"{amount(min(samples))} to {amount(max(samples))}" if len(samples) > 1 else "one sample"


def goal(result: Result, target: Target) -> str:
    """Return a target as text; a target relative to a peer says how many times better the subject has to be."""
    if not target.times:
        return f"{target.direction} {amount(target.bound)} {result.unit}"
    if result.prefers_higher:
        return f"{target.direction} {amount(target.bound)} x"
    return f"{'at least' if target.direction == 'at most' else 'at most'} {amount(1 / target.bound)} x"


def marks(result: Result, contender: str) -> list[tuple[str, Verdict | None]]:
    """Return the last column of a contender's row: how many times better paragent is, the targets and their verdicts."""
    about = contender if contender != result.subject else ""
    times = result.advantage(contender) if about in result.peers() else None
    ratio = [] if times is None else [f"{amount(times)} x"]
    judged = [j for j in result.judgements() if j.target.times == about]
    if ratio and not judged:
        return [(ratio[0], None)]
    return [(", ".join([*ratio, f"target {goal(result, j.target)}"]), j.verdict) for j in judged]


def _rows(result: Result) -> list[tuple[str, str, str, list[tuple[str, Verdict | None]]]]:
    """Return contender, median, range and marks, the subject first."""
    rows = []
    for contender in dict.fromkeys([result.subject, *result.samples, *result.absent]):
        samples = result.samples.get(contender)
        if samples:
            median, width = f"{amount(result.median(contender))} {result.unit}", spread(samples)
        else:
            median, width = "-", result.absent.get(contender, "no sample")
        rows.append((contender, median, width, marks(result, contender)))
    return rows


def _caption(report: Report) -> list[str]:
    lines = [*report.machine.lines(), f"{report.taken}, medians of {report.rounds} rounds, contenders taking turns"]
    if report.quick:
        lines.append("quick: small sizes; the targets are for full sizes")
    return lines


def as_table(report: Report) -> RenderableType:
    """Return the table for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title="\n".join(_caption(report)), title_justify="left", title_style="")
    for heading, justify in (("contender", "left"), ("median", "right"), ("range", "right"), ("paragent", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for result in report.results:
        table.add_section()
        table.add_row(Text(f"{result.name}: {result.question}", style="bold"))
        for contender, median, width, beside in _rows(result):
            verdicts = Text("\n").join(
                Text.assemble(text, ("  " + verdict, _COLOURS[verdict])) if verdict else Text(text)
                for text, verdict in beside
            )
            table.add_row("  " + contender, median, width, verdicts)
    return Group(table, counts([report]))


def counts(reports: Iterable[Report]) -> str:
    """Return how many targets pass, miss and are not measured."""
    verdicts = [j.verdict for report in reports for result in report.results for j in result.judgements()]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)


def same_state(reports: Iterable[Report], code: str, machine: Machine) -> list[Report]:
    """Return the reports of full sizes about the same code on the same host, so that their results can be combined."""
    return [
        report
        for report in reports
        if not report.quick
        and report.code == code
        and (report.machine.cpu, report.machine.cores) == (machine.cpu, machine.cores)
    ]


def newest(reports: Iterable[Report]) -> list[Report]:
    """Return the reports, the latest first, without results that a later report also has; empty reports are left out."""
    kept, seen = [], set[str]()
    for report in sorted(reports, key=lambda report: report.taken, reverse=True):
        results = [result for result in report.results if result.name not in seen]
        seen.update(result.name for result in results)
        if results:
            kept.append(replace(report, results=results))
    return kept


def to_json(report: Report) -> str:
    """Return the report as JSON: all samples, and the medians and verdicts that are computed from them."""
    document = asdict(report)
    for result, written in zip(report.results, document["results"], strict=True):
        written["medians"] = {contender: result.median(contender) for contender in result.samples}
        written["judgements"] = [asdict(judgement) for judgement in result.judgements()]
    return json.dumps(document, indent=2) + "\n"


def from_json(text: str) -> Report:
    """Return the report that `to_json` wrote."""
    document = json.loads(text)
    machine, results = Machine(**document.pop("machine")), map(_result, document.pop("results"))
    return Report(machine=machine, results=list(results), **document)


def _result(written: dict[str, Any]) -> Result:
    targets = [Target(**target) for target in written["targets"]]
    kept = {key: value for key, value in written.items() if key not in {"medians", "judgements", "targets"}}
    return Result(**kept, targets=targets)
