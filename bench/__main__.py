"""`python -m bench`: measure, print one table, write `bench/out`."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.machine import describe
from bench.measure import measure
from bench.plot import draw
from bench.registry import measurements
from bench.report import Report, as_markdown, as_table, from_json, newest, to_json

_OUT = Path(__file__).parent / "out"
_DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
_PIPE_WIDTH = 150
"""Columns of the table if standard output is not a terminal: enough for its longest row."""


def main() -> int:
    """Run the command line; return the exit status."""
    options = _options()
    if options.docs:
        return _write_document()
    try:
        chosen = measurements(options.only.split(",") if options.only else None)
    except KeyError as problem:
        return _refuse(problem.args[0])
    if options.list:
        for measurement in chosen:
            print(f"{measurement.name:18} {measurement.question}")
        return 0
    rounds = options.rounds or (2 if options.quick else 5)
    report = Report(
        machine=describe(),
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        rounds=rounds,
        quick=options.quick,
        results=[],
    )
    for measurement in chosen:
        print(f"==> {measurement.name}: {measurement.question}", file=sys.stderr, flush=True)
        report.results.append(measure(measurement, rounds=rounds, quick=options.quick))
        _keep(report)
    _show(report)
    failed = any(reason.startswith("failed") for result in report.results for reason in result.absent.values())
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure paragent and its peers.")
    parser.add_argument("--list", action="store_true", help="list the measurements and exit")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="run only these measurements")
    parser.add_argument("--quick", action="store_true", help="small sizes and two rounds, for a first try")
    parser.add_argument("--rounds", type=_whole, metavar="N", help="samples of each contender (default: 5)")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="measure nothing; write the newest result of each measurement to docs/benchmarks.md",
    )
    return parser.parse_args()


def _whole(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _keep(report: Report) -> None:
    """Write the results so far: a run takes long and may be interrupted."""
    _OUT.mkdir(exist_ok=True)
    for name in ("results", f"run-{report.taken.replace(':', '')}"):
        (_OUT / f"{name}.json").write_text(to_json(report))


def _show(report: Report) -> None:
    draw(report, _OUT / "results.png")
    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    console.print(as_table(report))
    print(f"written: {_OUT / 'results.json'}, {_OUT / 'results.png'}")


def _write_document() -> int:
    runs = [from_json(source.read_text()) for source in _OUT.glob("run-*.json")]
    runs = [run for run in runs if not run.quick]
    if not runs:
        return _refuse("there are no results of full sizes yet; run 'make bench' first")
    before, begin, rest = _DOCUMENT.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        return _refuse(f"{_DOCUMENT} does not say where results go: add the lines '{_BEGIN}' and '{_END}'")
    _DOCUMENT.write_text(f"{before}{begin}\n{as_markdown(newest(runs))}{end}{after}")
    print(f"written: {_DOCUMENT}")
    return 0


def _refuse(reason: str) -> int:
    print(f"bench: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
