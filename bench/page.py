"""The results as parts of Markdown pages, with plots: the summary, the tables of all measurements, and a short table.

A page marks each part with `<!-- NAME: begin -->` and `<!-- NAME: end -->`. Everything between these lines is generated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import Verdict
from bench.plot import draw_comparisons, draw_group
from bench.report import amount, counts, goal, spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.measure import Result
    from bench.report import Report

__all__ = ["HEADLINES", "Page", "replaced"]

HEADLINES = (
    ("trivial-tasks", "ProcessPoolExecutor"),
    ("trivial-tasks-ray", "ray.remote, one task each"),
    ("aworld-local", "AWorld 0.3.2 on local"),
    ("first-answer", "ProcessPoolExecutor, spawn"),
    ("remote-1024", "Ray actor"),
    ("remote-64", "AgentScope 0.1.6"),
    ("desktop_reset", "a boot per lease"),
    ("rollouts", "inspect_ai"),
    ("gateway-rate", "verifiers"),
    ("viewer_list", "inspect view"),
)
"""The measurements of the summary, each with the peer that it is compared with."""
_NAMED = 20
"""Up to this number, the measurements of a run that completes another one are named."""
_CLEARLY = 1.1
"""The factor from which on the summary names contenders that are better: more than medians of few samples vary."""


def replaced(text: str, name: str, part: str) -> str | None:
    """Return a page with a new text between the marks of a part, or None if it has no such marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, opening, rest = text.partition(begin)
    _, closing, after = rest.partition(end)
    return f"{before}{begin}\n{part}{end}{after}" if opening and closing else None


class Page:
    """The combined results of runs that measured the same code on the same host.

    Args:
        reports: the runs, the latest first; no measurement is in two of them.
        order: names of measurements in the order of the page.
    """

    def __init__(self, reports: Sequence[Report], order: Sequence[str] = ()) -> None:
        self._reports = reports
        self._missing = [name for name in order if not any(name == one.name for run in reports for one in run.results)]
        known = {result.name: result for report in reports for result in report.results}
        self._groups: dict[str, list[Result]] = {}
        for name in dict.fromkeys([*(name for name in order if name in known), *known]):
            self._groups.setdefault(known[name].group, []).append(known[name])
        self._headlines = [
            (known[name], peer) for name, peer in HEADLINES if name in known and known[name].advantage(peer) is not None
        ]

    def write_plots(self, folder: Path) -> list[Path]:
        """Write all plots and return their paths."""
        drawn = {"summary": draw_comparisons("paragent and its peers", self._headlines)}
        drawn |= {_slug(name): draw_group(name, results) for name, results in self._groups.items()}
        written = []
        for name, svg in drawn.items():
            if svg:
                written.append(folder / f"benchmarks_{name}.svg")
                written[-1].write_text(svg)
        return written

    def summary(self) -> str:
        """Return where and when the results were measured, the most important ones, and what paragent does not reach."""
        latest = self._reports[0]
        host = f"{latest.machine.cpu} with {latest.machine.cores} cores"
        lines = [
            f"Measured on {latest.taken[:10]} on {host}. Targets: {counts(self._reports)}. [All results](#results) are below.",
            "",
            *_image("summary", "How many times better paragent is than its peers, in ten measurements"),
            *self._headline_table(),
            "",
            "Missed targets:",
            "",
            *(self._misses() or ["- none"]),
            "",
            f"Contenders that are better than paragent by more than {_CLEARLY - 1:.0%}:".replace("%", " %"),
            "",
            *(self._better_peers() or ["- none"]),
        ]
        return "\n".join([*lines, ""])

    def short_table(self) -> str:
        """Return the table of the summary alone."""
        return "\n".join([*self._headline_table(), ""])

    def results(self) -> str:
        """Return the description of the runs, and the plot and the table of each group."""
        lines = []
        if len(self._reports) > 1:
            lines += [f"The results are from {len(self._reports)} runs of the same code on the same host.", ""]
        lines += [line for report in self._reports for line in (*_description(report, self._reports), "")]
        if self._missing:
            lines += [f"Not measured: {', '.join(self._missing)}.", ""]
        for name, results in self._groups.items():
            lines += [f"### {name}", "", *_image(_slug(name), f"Plot of the results: {name.lower()}")]
            lines += ["<details markdown>", "<summary>All values, with the lowest and highest sample</summary>", ""]
            lines += ["| measurement | contender | median | range | ratio | target |", "|---|---|---:|---:|---:|---|"]
            lines += [row for result in results for row in _rows(result)]
            lines += ["", "</details>", ""]
        return "\n".join(lines[:-1]) + "\n"

    def _headline_table(self) -> list[str]:
        lines = ["| | paragent | peer | ratio | target |", "|---|---:|---|---:|---|"]
        for result, peer in self._headlines:
            judged = [result.judge(target) for target in result.targets if target.times == peer]
            cells = [
                result.title,
                _value(result, result.subject),
                f"{peer}: {_value(result, peer)}",
                f"**{amount(result.advantage(peer))} x**",
                ", ".join(f"{goal(result, judgement.target)}: {_shown(judgement.verdict)}" for judgement in judged),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return lines

    def _misses(self) -> list[str]:
        return [
            f"- {result.group}, {result.title}: {_reached(result, judgement.target.times)}, "
            f"target {goal(result, judgement.target)}"
            for results in self._groups.values()
            for result in results
            for judgement in result.judgements()
            if judgement.verdict is Verdict.MISS
        ]

    def _better_peers(self) -> list[str]:
        return [
            f"- {result.group}, {result.title}: {peer}, {amount(1 / times)} times"
            for results in self._groups.values()
            for result in results
            for peer in result.peers()
            if (times := result.advantage(peer)) and times < 1 / _CLEARLY
        ]


def _reached(result: Result, peer: str) -> str:
    return f"{amount(result.advantage(peer))} x ({peer})" if peer else _value(result, result.subject)


def _value(result: Result, contender: str) -> str:
    return f"{amount(result.median(contender))} {result.unit}"


def _slug(group: str) -> str:
    return group.lower().replace(" ", "_")


def _image(name: str, description: str) -> list[str]:
    return [f"![{description}](images/benchmarks_{name}.svg)", ""]


def _description(report: Report, all_reports: Sequence[Report]) -> list[str]:
    """Return the host, the versions and the rounds of a run, and what it measured if it is only a part of the results."""
    number, part = len(report.results), len(all_reports) > 1 and len(report.results) <= _NAMED
    names = f": {', '.join(result.name for result in report.results)}" if part else ""
    code = f", code of commit {report.code}" if report.code else ""
    measured = f"{number} measurements in {report.seconds / 60:.0f} minutes{names}"
    return [
        f"- {report.taken}{code}; medians of {report.rounds} rounds; {measured}",
        *(f"- {line}" for line in report.machine.lines()),
    ]


def _rows(result: Result) -> list[str]:
    """Return a row for the subject and for each contender, and further rows for further targets."""
    rows = []
    first = f"{result.title}<br>`{result.name}`"
    for contender in dict.fromkeys([result.subject, *result.samples, *result.absent]):
        samples = result.samples.get(contender)
        about = "" if contender == result.subject else contender
        times = result.advantage(contender) if contender in result.peers() else None
        judged = [judgement for judgement in result.judgements() if judgement.target.times == about]
        cells = [
            first,
            contender,
            _value(result, contender) if samples else "-",
            spread(samples) if samples else _cell(result.absent.get(contender, "no sample")),
            "" if times is None else f"{amount(times)} x",
            "<br>".join(f"{goal(result, judgement.target)}: {_shown(judgement.verdict)}" for judgement in judged),
        ]
        rows.append(f"| {' | '.join(cells)} |")
        first = ""
    return rows


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shown(verdict: Verdict) -> str:
    return "pass" if verdict is Verdict.PASS else f"**{verdict}**"
