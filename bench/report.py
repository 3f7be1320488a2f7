"""Results of a benchmark run as a table for the terminal, as JSON and as Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.machine import Machine
from bench.measure import Result, Target, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from bench.measure import Judgement

__all__ = ["Report", "amount", "as_markdown", "as_table", "from_json", "marks", "newest", "to_json"]

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


def amount(value: float | None) -> str:
    """Return a number as text: without decimals from 100 on, otherwise with three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def marks(result: Result, contender: str) -> list[tuple[str, Verdict | None]]:
    """Return the last column of a contender's row: the ratio to it and the targets relative to it, with their verdicts."""
    about = contender if contender != result.subject else ""
    judged = [(_sentence(j, result.unit), j.verdict) for j in result.judgements() if j.target.times == about]
    if about and not judged and result.ratio(contender) is not None:
        return [(f"{amount(result.ratio(contender))} x", None)]
    return list(judged)


def _sentence(judgement: Judgement, unit: str) -> str:
    target = judgement.target
    if not target.times:
        return f"target {target.direction} {amount(target.bound)} {unit}"
    return f"{amount(judgement.reached)} x, target {target.direction} {amount(target.bound)} x"


def _rows(result: Result) -> list[tuple[str, str, str, list[tuple[str, Verdict | None]]]]:
    """Return contender, median, range and marks, the subject first."""
    rows = []
    for contender in dict.fromkeys([result.subject, *result.samples, *result.absent]):
        samples = result.samples.get(contender)
        if samples:
            median = f"{amount(result.median(contender))} {result.unit}"
            spread = f"{amount(min(samples))} to {amount(max(samples))}" if len(samples) > 1 else "one sample"
        else:
            median, spread = "-", result.absent.get(contender, "no sample")
        rows.append((contender, median, spread, marks(result, contender)))
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
        for contender, median, spread, beside in _rows(result):
            verdicts = Text("\n").join(
                Text.assemble(text, ("  " + verdict, _COLOURS[verdict])) if verdict else Text(text)
                for text, verdict in beside
            )
            table.add_row("  " + contender, median, spread, verdicts)
    return Group(table, _counts([report]))


def _counts(reports: Iterable[Report]) -> str:
    verdicts = [j.verdict for report in reports for result in report.results for j in result.judgements()]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)


def newest(reports: Iterable[Report]) -> list[Report]:
    """Return the reports, the latest first, without results that a later report also has; empty reports are left out."""
    kept, seen = [], set[str]()
    for report in sorted(reports, key=lambda report: report.taken, reverse=True):
        results = [result for result in report.results if result.name not in seen]
        seen.update(result.name for result in results)
        if results:
            kept.append(replace(report, results=results))
    return kept


def as_markdown(reports: Sequence[Report]) -> str:
    """Return the results of several runs as Markdown, each with the description of its host."""
    lines = [f"Targets: {_counts(reports)}."]
    for report in reports:
        lines += ["", *(f"- {line}" for line in _caption(report))]
        for result in report.results:
            lines += ["", f"**{result.name}**: {result.question}", "", "| contender | median | range | paragent |"]
            lines += ["|---|---:|---:|---|"]
            for contender, median, spread, beside in _rows(result):
                cell = "<br>".join(f"{text} **{verdict}**" if verdict else text for text, verdict in beside)
                lines.append(f"| {contender} | {median} | {spread} | {cell} |")
    return "\n".join([*lines, ""])


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
    return Report(
        machine=Machine(**document["machine"]),
        taken=document["taken"],
        rounds=document["rounds"],
        quick=document["quick"],
        results=[_result(written) for written in document["results"]],
    )


def _result(written: dict[str, Any]) -> Result:
    targets = [Target(**target) for target in written["targets"]]
    kept = {key: value for key, value in written.items() if key not in {"medians", "judgements", "targets"}}
    return Result(**kept, targets=targets)
