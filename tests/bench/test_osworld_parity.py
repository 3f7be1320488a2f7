"""The comparison of OSWorld's metrics with ours: kinds of outcomes, the table of cases that differ, the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.osworld_parity.__main__ import (
    ALLOWED,
    REQUIREMENTS,
    VERSION,
    Outcome,
    id_of,
    main,
    read_table,
    report,
    write_table,
)
from bench.osworld_parity.cases.case import Case

ROOT = Path(__file__).parents[2]
CASE = Case("exact_match", ["a", {"expected": "a"}])


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (1.0, 1.0, ""),
        (0.5, 0.5 + 1e-9, ""),
        (1.0, 5.0, ""),
        (0.0, float("nan"), ""),
        (0.5, 0.6, "differ"),
        (0.0, None, ""),
        ("ValueError", "KeyError", ""),
        ("UnsupportedCheck", "KeyError", ""),
        ("ValueError", 0.0, "we_raise"),
        ("ValueError", 1.0, "differ"),
        ("UnsupportedCheck", 0.0, "differ"),
        (0.0, "KeyError", "osworld_raises"),
        (1.0, "KeyError", "differ"),
    ],
)
def test_an_exception_is_not_a_score_of_0(ours: float | str, theirs: float | str | None, kind: str) -> None:
    assert Outcome(CASE, "1", ours, theirs).kind == kind


def outcome(number: int, ours: float | str, theirs: float | str) -> Outcome:
    return Outcome(CASE, f"{number:08x}", ours, theirs)


BEFORE = [outcome(1, 1.0, 0.0), outcome(2, 1.0, 1.0), outcome(3, "ValueError", 0.0)]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (BEFORE, []),
        ([outcome(1, 1.0, 1.0), *BEFORE[1:]], ["gone in 'differ': 1"]),
        ([BEFORE[0], outcome(2, 0.0, 1.0), BEFORE[2]], ["new in 'differ': 1"]),
        ([outcome(1, 1.0, 1.0), outcome(2, 0.0, 1.0), BEFORE[2]], ["gone in 'differ': 1", "new in 'differ': 1"]),
        ([*BEFORE[:2], outcome(3, 0.0, 0.0)], ["gone in 'we_raise': 1"]),
        ([*BEFORE[:2], outcome(3, 0.0, "KeyError")], ["gone in 'we_raise': 1", "new in 'osworld_raises': 1"]),
        (BEFORE[1:], ["gone in 'differ': 1"]),
    ],
)
def test_new_and_vanished_differences_are_reported(
    now: list[Outcome], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "allowed.json", BEFORE)
    status = report(now, read_table(tmp_path / "allowed.json"), partial=False, shown=False)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert sorted(line for line in printed if line.startswith(("new in", "gone in"))) == said
    assert status == bool(said)


def test_cases_that_did_not_run_are_not_missed_in_a_partial_comparison(tmp_path: Path) -> None:
    write_table(tmp_path / "allowed.json", BEFORE)
    table = read_table(tmp_path / "allowed.json")
    assert report(BEFORE[1:], table, partial=True, shown=False) == 0
    assert report([outcome(1, 1.0, 1.0)], table, partial=True, shown=False) == 1
    assert report([], table, partial=True, shown=False) == 0
    assert report([], table, partial=False, shown=False) == 1


def test_reasons_are_kept_when_the_table_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "allowed.json"
    path.write_text(json.dumps({"exact_match": {"differ": "00000009", "why": "a reason"}}))
    write_table(path, BEFORE)
    assert read_table(path) == {"exact_match": {"differ": "00000001", "we_raise": "00000003", "why": "a reason"}}


def test_the_id_of_a_case_depends_on_the_call_and_not_on_the_folder() -> None:
    first, moved = Case("m", ["/a/x.txt"], {"k": 1}), Case("m", ["/b/c/x.txt"], {"k": 1})
    assert id_of(first, Path("/a")) == id_of(moved, Path("/b/c"))
    others = [Case("n", ["/a/x.txt"], {"k": 1}), Case("m", ["/a/y.txt"], {"k": 1}), Case("m", ["/a/x.txt"], {"k": 2})]
    assert len({id_of(case, Path("/a")) for case in (first, *others)}) == 4


def test_the_committed_table_has_a_reason_for_every_difference() -> None:
    table = read_table(ALLOWED)
    assert all(len(entry.get("why", "")) > 1 for entry in table.values() if "differ" in entry)
    assert all(
        len(one) == 8 for entry in table.values() for kind in entry.keys() - {"why"} for one in entry[kind].split()
    )


def test_the_packages_of_the_reference_are_pinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all("==" in line for line in [*lines, VERSION])


REFERENCE = """
def exact_match(found, rules):
    return float(found == rules["expected"])
"""


@pytest.mark.slow
def test_paths_of_the_reference_may_be_relative(tmp_path: Path) -> None:
    package = tmp_path / "sources/desktop_env/evaluators"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "metrics.py").write_text(REFERENCE)
    (tmp_path / "python").symlink_to(sys.executable)
    command = [sys.executable, "-m", "bench.osworld_parity", "--python", "./python", "--tree", "sources"]
    settings = ["--subject", "values", "--metric", "exact_match", "--every", "7", "--allowed", "none.json"]
    found = subprocess.run(
        [*command, *settings],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert found.returncode == 0
    assert b" 0 differ; " in found.stdout


def test_an_interpreter_that_does_not_exist_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--python", "no/such/python"])
    assert "--python: no/such/python is not an interpreter" in capsys.readouterr().err


@pytest.mark.parametrize("chosen", [["--subject", "none"], ["--subject", "text_files", "--metric", "none"]])
def test_names_without_cases_are_reported(chosen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--python", sys.executable, *chosen])
    assert "there are no such cases" in capsys.readouterr().err
