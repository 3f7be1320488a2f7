"""Compare paragent's metrics with OSWorld's and fail unless exactly the cases in `allowed.json` differ.

python -m bench.osworld_parity                      install OSWorld's package if it is missing, and compare
python -m bench.osworld_parity --metric check_json  compare one metric and show the cases that differ
python -m bench.osworld_parity --tree T --allowed A compare with the sources in T, and with the table A
python -m bench.osworld_parity --write              write the cases that differ into the table

The two sides agree on a case if they have the same score, or if both raise an exception.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.osworld_parity.cases import generate
from bench.osworld_parity.ours import score_of
from paragent.osworld.evaluators.supported import UnsupportedCheck

if TYPE_CHECKING:
    from bench.osworld_parity.cases.case import Case

HERE = Path(__file__).parent
ALLOWED = HERE / "allowed.json"
ENVIRONMENT = HERE.parent / "peers" / "desktop_env"
VERSION = "desktop-env==1.0.2"
REQUIREMENTS = HERE / "requirements.txt"
SAME = 1e-6
DIFFER, WE_RAISE, OSWORLD_RAISES = KINDS = ("differ", "we_raise", "osworld_raises")
"""How a case can differ: in its score; or only one side raises and the other scores 0, which an evaluation counts as 0 too."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", action="append", help="only cases of this module; may be given several times")
    parser.add_argument("--metric", action="append", help="only this one; may be given several times")
    parser.add_argument("--every", type=int, default=1, help="run only every N-th case, for a quick check")
    parser.add_argument("--python", help="the interpreter of an environment that has what the reference needs")
    parser.add_argument("--tree", help="a folder with the reference's sources, instead of the package from PyPI")
    parser.add_argument("--allowed", type=Path, default=ALLOWED, help="the table of cases that differ")
    parser.add_argument("--write", action="store_true", help="write the cases that differ to the table")
    chosen = parser.parse_args(arguments)
    partial = bool(chosen.subject or chosen.metric or chosen.every > 1)
    if chosen.write and partial:
        parser.error("--write needs all cases")
    python = shutil.which(chosen.python) if chosen.python else str(_install())
    if python is None:
        parser.error(f"--python: {chosen.python} is not an interpreter")
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary, "files")
        generated = generate(files, chosen.subject)
        cases = [case for case in generated if not chosen.metric or case.metric in chosen.metric][:: chosen.every]
        if not cases:
            parser.error("there are no such cases")
        theirs = _reference(cases, python, chosen.tree, Path(temporary))
        outcomes = [
            Outcome(case, id_of(case, files), score_of(case), reference)
            for case, reference in zip(cases, theirs, strict=True)
        ]
    if chosen.write:
        write_table(chosen.allowed, outcomes)
    return report(outcomes, read_table(chosen.allowed), partial=partial, shown=bool(chosen.metric))


def _install() -> Path:
    """Create an environment with OSWorld's package and the packages that its metrics import; return its interpreter."""
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "ready"
    wanted = f"{REQUIREMENTS.read_text()}{VERSION}\n"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"==> installing {VERSION} into {ENVIRONMENT} (some minutes, once)")
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)
        subprocess.run([*pip, "--no-deps", VERSION], check=True)  # last, because of its missing dependencies
        ready.write_text(wanted)
    return python


def _reference(cases: list[Case], python: str, tree: str | None, folder: Path) -> list[float | str | None]:
    asked, answered = folder / "cases.jsonl", folder / "results.jsonl"
    asked.write_text("".join(f"{json.dumps(dataclasses.asdict(case))}\n" for case in cases))
    sources = "" if tree is None else str(Path(tree).absolute())
    environment = {**os.environ, "PYTHONPATH": sources, "PYTHONWARNINGS": "ignore"}
    # the path stays a link: an interpreter finds its environment by the link that starts it
    command = [str(Path(python).absolute()), str(HERE / "reference.py"), str(asked), str(answered)]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    return [json.loads(line) for line in answered.read_text().splitlines()]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a case: scores, or names of exceptions; the reference's is None if it does not have the metric."""

    case: Case
    id: str
    ours: float | str
    theirs: float | str | None

    @property
    def kind(self) -> str:
        """One of `KINDS`; empty if both sides agree, or if the reference does not have the metric."""
        ours, theirs = self.ours, self.theirs
        if theirs is None or (isinstance(ours, str) and isinstance(theirs, str)):
            return ""
        if ours == UnsupportedCheck.__name__:
            return DIFFER  # the task has a score in OSWorld only
        if isinstance(ours, str):
            return WE_RAISE if theirs == 0 else DIFFER
        if isinstance(theirs, str):
            return OSWORLD_RAISES if ours == 0 else DIFFER
        limited = 0.0 if math.isnan(theirs) else min(max(theirs, 0.0), 1.0)
        return DIFFER if abs(ours - limited) > SAME else ""

    def __str__(self) -> str:
        return f"{self.id}: ours {self.ours}, OSWorld {self.theirs}: {self.case.arguments} {self.case.options}"


def id_of(case: Case, folder: Path) -> str:
    """Return a digest of the call, with the names of its files but not their folder."""
    call = json.dumps(dataclasses.asdict(case)).replace(str(folder), "")
    return hashlib.sha256(call.encode()).hexdigest()[:8]


def write_table(path: Path, outcomes: list[Outcome]) -> None:
    """Write the ids of the cases that differ, by metric and kind; reasons for metrics that the table has are kept."""
    previous = read_table(path)
    table = {}
    for metric in sorted({outcome.case.metric for outcome in outcomes if outcome.kind}):
        ids = {kind: _ids(outcomes, metric, kind) for kind in KINDS}
        table[metric] = {kind: " ".join(sorted(found)) for kind, found in ids.items() if found}
        if ids[DIFFER]:
            table[metric]["why"] = previous.get(metric, {}).get("why", "?")
    path.write_text(json.dumps(table, indent=2) + "\n")


def read_table(path: Path) -> dict[str, dict[str, str]]:
    """Return a table; an empty one if the file does not exist."""
    table: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    return table


def _ids(outcomes: list[Outcome], metric: str, kind: str) -> set[str]:
    return {outcome.id for outcome in outcomes if (outcome.case.metric, outcome.kind) == (metric, kind)}


def report(outcomes: list[Outcome], table: dict[str, dict[str, str]], *, partial: bool, shown: bool) -> int:
    """Print the differences of each metric and what changed since the table was written; return 1 if anything did.

    Args:
        outcomes: of the cases that ran.
        table: as `read_table` returns it.
        partial: only some cases ran, so the others of the table have not gone away.
        shown: print every case that differs.
    """
    by_metric: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.theirs is not None:
            by_metric[outcome.case.metric].append(outcome)
    changed = []
    print(f"{'metric':50} {'cases':>6} {'differ':>7} {'we raise':>9} {'OSWorld raises':>15}")
    for metric in sorted(by_metric.keys() | (() if partial else table)):
        found, allowed = by_metric[metric], table.get(metric, {})
        counts = [sum(outcome.kind == kind for outcome in found) for kind in KINDS]
        why = allowed.get("why", "") if counts[0] else ""
        print(f"{metric:50} {len(found):6} {counts[0]:7} {counts[1]:9} {counts[2]:15}  {why}")
        if _print_changes(found, allowed, partial=partial):
            changed.append(metric)
        for outcome in found if shown else ():
            if outcome.kind:
                print(f"    {outcome.kind} {outcome}")
    _print_total(by_metric, outcomes)
    if changed:
        print(f"the cases that differ are not those of the table: {', '.join(changed)}")
    return 1 if changed else 0


def _print_changes(found: list[Outcome], allowed: dict[str, str], *, partial: bool) -> bool:
    """Print the cases that differ and are not in the table, and those of the table that do not; return whether there are any."""
    ran = {outcome.id: outcome for outcome in found}
    any_change = False
    for kind in KINDS:
        now = {outcome.id for outcome in found if outcome.kind == kind}
        before = {one for one in allowed.get(kind, "").split() if not partial or one in ran}
        for change, ids in (("new", now - before), ("gone", before - now)):
            if ids:
                any_change = True
                print(f"    {change} in {kind!r}: {len(ids)}")
                print(*(f"      {ran.get(one, f'{one}: no such case')}" for one in sorted(ids)[:3]), sep="\n")
    return any_change


def _print_total(by_metric: dict[str, list[Outcome]], outcomes: list[Outcome]) -> None:
    kinds = Counter(outcome.kind for found in by_metric.values() for outcome in found)
    print(
        f"{kinds.total():,} results of {len(by_metric)} metrics: {kinds['']:,} the same, {kinds[DIFFER]:,} differ; counted as 0 "
        f"on both sides: {kinds[WE_RAISE]:,} where only paragent raises, {kinds[OSWORLD_RAISES]:,} where only OSWorld raises"
    )
    if absent := sorted({outcome.case.metric for outcome in outcomes if outcome.theirs is None}):
        print(f"not in the reference: {', '.join(absent)}")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.exit(main())
