"""`python -m bench`: measure, print one table, write `bench/out`; `--docs` writes the results to the documentation."""

from __future__ import annotations

import argparse
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.machine import code_state, describe
from bench.measure import Measurement, measure
from bench.page import Page, replaced
from bench.registry import measurements
from bench.report import Report, as_table, from_json, newest, same_state, to_json

_OUT = Path(__file__).parent / "out"
_REPOSITORY = Path(__file__).parent.parent
_ROUNDS = 3
"""Samples of each contender, so that all measurements take about half an hour on two cores."""
_PIPE_WIDTH = 150
"""Columns of the table if standard output is not a terminal: enough for its longest row."""
_INTERRUPTED = 130


def main() -> int:
    """Run the command line; return the exit status."""
    options = _options()
    if options.docs:
        return write_documents(_OUT, _REPOSITORY)
    try:
        chosen = measurements(options.only.split(",") if options.only else None)
    except KeyError as problem:
        return _refuse(problem.args[0])
    if options.list:
        for measurement in chosen:
            print(f"{measurement.name:22} {measurement.question}")
        return 0
    report = Report(
        machine=describe(),
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        rounds=options.rounds or (2 if options.quick else _ROUNDS),
        quick=options.quick,
        results=[],
        code=code_state(),
    )
    if options.resume:
        done = measured(same_state(_runs(_OUT), report.code, report.machine))
        chosen = [measurement for measurement in chosen if measurement.name not in done]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run(chosen, report, _OUT)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure paragent and its peers.")
    parser.add_argument("--list", action="store_true", help="list the measurements and exit")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="run only these measurements")
    parser.add_argument("--quick", action="store_true", help="small sizes and two rounds, for a first try")
    parser.add_argument("--rounds", type=_whole, metavar="N", help=f"samples of each contender (default: {_ROUNDS})")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out what earlier runs have measured of the same code on this host",
    )
    parser.add_argument(
        "--docs",
        action="store_true",
        help="measure nothing; write the results of the latest code that was measured to the documentation",
    )
    return parser.parse_args()


def _whole(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def run(chosen: list[Measurement], report: Report, out: Path) -> int:
    """Measure, write the report after each measurement and print it; return 0 if no contender failed."""
    try:
        _measure_all(chosen, report, out)
    except KeyboardInterrupt:
        _show(report, out)
        print("bench: interrupted; 'python -m bench --resume' measures the rest", file=sys.stderr)
        return _INTERRUPTED
    _show(report, out)
    return 1 if any(_failed(reason) for result in report.results for reason in result.absent.values()) else 0


def _measure_all(chosen: list[Measurement], report: Report, out: Path) -> None:
    for number, measurement in enumerate(chosen, 1):
        print(f"==> {number}/{len(chosen)} {measurement.name}: {measurement.question}", file=sys.stderr, flush=True)
        result = measure(measurement, rounds=report.rounds, quick=report.quick)
        report.results.append(result)
        _keep(report, out)
        for contender, reason in result.absent.items():
            print(f"    {contender}: {reason}", file=sys.stderr)
        print(f"    {result.seconds:.0f} s", file=sys.stderr, flush=True)


def _keep(report: Report, out: Path) -> None:
    """Write the results so far: a run takes long and may be interrupted."""
    out.mkdir(exist_ok=True)
    for name in ("results", f"run-{report.taken.replace(':', '')}"):
        unfinished = out / f"{name}.new"
        unfinished.write_text(to_json(report))
        unfinished.replace(out / f"{name}.json")


def _show(report: Report, out: Path) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    console.print(as_table(report))
    if report.results:
        plots = Page([report]).write_plots(out)
        print(f"written: {', '.join(map(str, [out / 'results.json', *plots]))}")


def _runs(folder: Path) -> list[Report]:
    return [from_json(path.read_text()) for path in folder.glob("run-*.json")]


def measured(runs: list[Report]) -> set[str]:
    """Return the names of the measurements in which no contender failed."""
    results = [result for run in runs for result in run.results]
    return {result.name for result in results if not any(map(_failed, result.absent.values()))}


def _failed(reason: str) -> bool:
    return reason.startswith("failed")


def write_documents(out: Path, repository: Path) -> int:
    """Write the plots and all generated parts of the documentation from the runs in `out`; return the exit status."""
    runs = [run for run in _runs(out) if not run.quick]
    if not runs:
        return _refuse("there are no results of full sizes yet; run 'make bench' first")
    latest = max(runs, key=lambda run: run.taken)
    page = Page(newest(same_state(runs, latest.code, latest.machine)), [one.name for one in measurements()])
    document = repository / "docs" / "benchmarks.md"
    text: str | None = document.read_text()
    for name, part in (("summary", page.summary()), ("results", page.results())):
        text = replaced(text, name, part) if text else None
        if text is None:
            return _refuse(
                f"{document} does not say where the {name} goes: add '<!-- {name}: begin -->' and '... end -->'"
            )
    document.write_text(text or "")
    written = [document, *page.write_plots(repository / "docs" / "images")]
    for other in (repository / "README.md", repository / "docs" / "peers.md"):
        changed = replaced(other.read_text(), "benchmarks", page.short_table()) if other.exists() else None
        if changed is not None:
            other.write_text(changed)
            written.append(other)
    print(f"written: {', '.join(str(path.relative_to(repository)) for path in written)}")
    return 0


def _refuse(reason: str) -> int:
    print(f"bench: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
