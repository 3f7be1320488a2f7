"""How checks are joined, what FAIL means, and what hostile files cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import os
import sqlite3
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import openpyxl
import pytest
from openpyxl.formatting.rule import FormulaRule, Rule
from openpyxl.styles import PatternFill

from paragent._installation import install_command
from paragent.errors import ConfigError, MachineFailed, MissingExtra, UnknownName
from paragent.osworld.context import AttemptContext, MachineRefused
from paragent.osworld.controller import Controller
from paragent.osworld.coverage import missing
from paragent.osworld.evaluators import evaluate
from paragent.osworld.evaluators.evaluator import checks_of, evaluation_processes
from paragent.osworld.evaluators.registry import GETTERS, LEFT_OUT, METRICS
from paragent.subprocesses import SubprocessPool

NOBODY = cast("Controller", None)
"""These evaluators do not use the machine."""


def attempt(folder: Path, last_action: str | Mapping[str, Any] | None = "DONE", **more: Any) -> AttemptContext:
    folder.mkdir(exist_ok=True)
    return AttemptContext(NOBODY, folder, last_action=last_action, **more)


def score(evaluator: Mapping[str, Any], on: AttemptContext) -> float:
    return asyncio.run(asyncio.wait_for(evaluate(evaluator, on), 110))


def value(of: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": of}


def joined(conjunction: str | None, *likeness: float) -> dict[str, Any]:
    """Return an evaluator whose checks give these scores, in hundredths."""
    texts = [("a" * round(100 * one)).ljust(100, "b") for one in likeness]
    evaluator: dict[str, Any] = {
        "func": ["fuzzy_match"] * len(texts),
        "result": [value(text) for text in texts],
        "expected": [value({"expected": "a" * 100})] * len(texts),
    }
    return evaluator if conjunction is None else {**evaluator, "conj": conjunction}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conjunction", "scores", "wanted"),
    [
        (None, [1, 1], 1),
        (None, [1, 0.5], 0.75),
        ("and", [1, 0, 1], 0),
        ("and", [0.5, 0.5], 0.5),
        ("or", [0, 0.5, 0.25], 0.5),
        ("or", [0, 1, 0], 1),
        ("or", [0, 0], 0),
    ],
)
def test_checks_are_joined(tmp_path: Path, conjunction: str | None, scores: Sequence[float], wanted: float) -> None:
    assert score(joined(conjunction, *scores), attempt(tmp_path)) == pytest.approx(wanted)


@pytest.mark.parametrize(("said", "wanted"), [(math.nan, 0.0), (1.7, 1.0), (-0.2, 0.0), (True, 1.0)])
def test_scores_are_clipped_to_0_and_1(tmp_path: Path, said: float, wanted: float) -> None:
    class Said(SubprocessPool):
        async def call(self, function: str, *arguments: Any, limit: float, folder: Path | None = None) -> Any:
            return said

    assert asyncio.run(evaluate(joined(None, 1), attempt(tmp_path), processes=Said("none"))) == wanted


def test_and_or_stop_at_the_first_deciding_check(tmp_path: Path) -> None:
    """A later check that would raise is not reached."""
    on = attempt(tmp_path)
    gone = {"type": "vm_file", "path": "/x", "dest": "x"}  # there is no machine, so a request would raise
    for conjunction, first in (("and", "no"), ("or", "yes")):
        evaluator = {
            "func": ["exact_match", "exact_match"],
            "conj": conjunction,
            "result": [value(first), gone],
            "expected": [value({"expected": "yes"})] * 2,
        }
        assert score(evaluator, on) == (conjunction == "or")


def test_a_single_check_with_options(tmp_path: Path) -> None:
    evaluator = {
        "func": "literal_match",
        "result": value("Yes"),
        "expected": value("yes"),
        "options": {"ignore_case": True},
    }
    assert score(evaluator, attempt(tmp_path)) == 1
    assert score({**evaluator, "options": {}}, attempt(tmp_path)) == 0


def test_an_expectation_of_none_is_passed_to_the_metric(tmp_path: Path) -> None:
    evaluator = {"func": "literal_match", "result": value(None), "expected": value(None)}
    assert score(evaluator, attempt(tmp_path)) == 1


def test_known_bugs_of_osworld_are_corrected_on_request(tmp_path: Path) -> None:
    on = attempt(tmp_path / "attempt")
    paths = []
    for name in ("found", "gold"):
        path = on.folder / name
        path.write_text(f"FROM - Mon\nSubject: {name}\n")
        paths.append(value(str(path)))
    evaluator = {"func": "check_thunderbird_folder", "result": paths[0], "expected": paths[1]}
    assert score(evaluator, on) == 1
    assert asyncio.run(evaluate(evaluator, on, strict=True)) == 0


def test_lists_may_be_short_and_have_gaps() -> None:
    evaluator = {
        "func": ["one", "two", "three"],
        "result": [value(1), value(2), value(3)],
        "expected": [value(1), None, {}],
        "options": [{"a": 1}, None],
    }
    checks = checks_of(evaluator)
    assert [check.expected for check in checks] == [value(1), None, None]
    assert [check.options for check in checks] == [{"a": 1}, {}, {}]
    assert checks_of({"func": "infeasible"})[0].result is None


def test_a_metric_without_expectation_is_called_without_one(tmp_path: Path) -> None:
    line = "\n\n\n Time zone: UTC (UTC, +0000)"
    assert score({"func": "is_utc_0", "result": value(line)}, attempt(tmp_path)) == 1


INFEASIBLE = {"func": "infeasible"}
FEASIBLE = {"func": "exact_match", "result": value("x"), "expected": value({"expected": "x"})}


@pytest.mark.parametrize(
    ("evaluator", "action", "wanted"),
    [
        (INFEASIBLE, "FAIL", 1),
        (INFEASIBLE, {"action_type": "FAIL"}, 1),
        (INFEASIBLE, "DONE", 0),
        (INFEASIBLE, None, 0),
        (INFEASIBLE, {"action_type": "CLICK"}, 0),
        (FEASIBLE, "FAIL", 0),
        (FEASIBLE, {"action_type": "FAIL"}, 0),
        (FEASIBLE, "DONE", 1),
        (FEASIBLE, "pyautogui.write('FAIL')", 1),
    ],
)
def test_fail_solves_infeasible_tasks_only(
    tmp_path: Path, evaluator: Mapping[str, Any], action: Any, wanted: float
) -> None:
    assert score(evaluator, attempt(tmp_path, action)) == wanted


def test_postconfig_runs_first(tmp_path: Path) -> None:
    done: list[Any] = []

    async def steps(given: Sequence[Mapping[str, Any]], on: AttemptContext) -> None:
        done.extend(given)
        (on.folder / "out.txt").write_text("hello")

    evaluator = {
        "postconfig": [{"type": "sleep"}],
        "func": "check_list",
        "result": {"type": "cache_file", "path": "out.txt"},
        "expected": value({"expect": ["hello"]}),
    }
    assert score(evaluator, attempt(tmp_path, run_steps=steps)) == 1
    assert score({"postconfig": [{"type": "a"}], "func": "infeasible"}, attempt(tmp_path, "FAIL", run_steps=steps)) == 1
    assert done == [{"type": "sleep"}, {"type": "a"}]


def test_refusals_score_0_and_lost_machines_are_errors(tmp_path: Path) -> None:
    class Guest:
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def screen_size(self) -> tuple[int, int]:
            raise self.error

    async def steps(given: Sequence[Mapping[str, Any]], on: AttemptContext) -> None:
        raise cast("Guest", on.controller).error

    asking = {"func": "exact_match", "result": {"type": "vm_screen_size"}, "expected": value({"expected": "x"})}
    stepping = {
        "postconfig": [{"type": "open"}],
        "func": "exact_match",
        "result": value("x"),
        "expected": value({"expected": "x"}),
    }
    infeasible = {"postconfig": [{"type": "open"}], "func": "infeasible"}
    refusing, gone = (cast("Controller", Guest(kind("no"))) for kind in (MachineRefused, MachineFailed))
    for evaluator in (asking, stepping):
        assert score(evaluator, AttemptContext(refusing, tmp_path, last_action="DONE", run_steps=steps)) == 0
        with pytest.raises(MachineFailed):
            score(evaluator, AttemptContext(gone, tmp_path, last_action="DONE", run_steps=steps))
    assert score(infeasible, AttemptContext(refusing, tmp_path, last_action="FAIL", run_steps=steps)) == 1


def test_a_result_file_replaces_an_expected_file_of_its_name_unless_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "published").write_text("right")

    async def fetch(url: str, *_: Any) -> Path:
        return tmp_path / "published"

    class Guest:
        async def file(self, path: str) -> bytes:
            return b"wrong"

    monkeypatch.setattr("paragent.osworld.evaluators.getters.machine.fetch", fetch)
    evaluator = {
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": "/x", "dest": "same.txt"},
        "expected": {"type": "cloud_file", "path": "https://x", "dest": "same.txt"},
    }
    for strict, wanted in ((False, 1), (True, 0)):
        on = AttemptContext(cast("Controller", Guest()), tmp_path, last_action="DONE")
        assert asyncio.run(evaluate(evaluator, on, strict=strict)) == wanted
    evaluator["expected"] = {"type": "cloud_file", "path": "https://x", "dest": "other.txt"}
    assert score(evaluator, AttemptContext(cast("Controller", Guest()), tmp_path, last_action="DONE")) == 0


def test_a_missing_cache_file_scores_0_and_an_alternative_may_pass(tmp_path: Path) -> None:
    gone = {"type": "cache_file", "path": "nowhere"}
    assert score({"func": "check_list", "result": gone, "expected": value({"expect": []})}, attempt(tmp_path)) == 0
    either = {
        "func": ["check_list", "exact_match"],
        "conj": "or",
        "result": [gone, value("x")],
        "expected": [value({}), value({"expected": "x"})],
    }
    assert score(either, attempt(tmp_path)) == 1
    assert score({**either, "conj": "and"}, attempt(tmp_path)) == 0


def test_a_cache_file_must_be_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    evaluator = {"func": "check_list", "result": {"type": "cache_file", "path": "../secret"}, "expected": value({})}
    assert score(evaluator, attempt(tmp_path / "folder")) == 0


def test_missing_parts_are_reported_before_anything_runs(tmp_path: Path) -> None:
    touched: list[int] = []

    async def steps(_: Sequence[Mapping[str, Any]], __: AttemptContext) -> None:
        touched.append(1)

    on = attempt(tmp_path, run_steps=steps)
    with pytest.raises(UnknownName, match="compare_image_text"):
        score({"func": "compare_image_text", "result": value(1), "postconfig": [{}]}, on)
    with pytest.raises(UnknownName, match="telepathy"):
        score({"func": "exact_match", "result": {"type": "telepathy"}, "postconfig": [{}]}, on)
    assert not touched


@pytest.mark.slow
def test_an_unsupported_rule_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"a": 1}')
    rules = {"expect": [{"key": ["a"], "method": "likens", "ref": 1}]}
    with pytest.raises(ConfigError, match="check_json: unknown method 'likens' in a rule"):
        score({"func": "check_json", "result": kept("f.json"), "expected": value(rules)}, attempt(tmp_path))
    with pytest.raises(ConfigError, match="magic"):
        score(
            {"func": "compare_table", "result": kept("f.json"), "options": {"rules": [{"type": "magic"}]}},
            attempt(tmp_path),
        )


@pytest.mark.slow
def test_conditional_formats_are_computed_within_the_limits_of_the_child_process(tmp_path: Path) -> None:
    red = PatternFill("solid", bgColor="FFFF0000", fgColor="FFFF0000")

    def book(name: str, *conditions: Rule, painted: Sequence[int] = ()) -> None:
        workbook = openpyxl.Workbook()
        sheet = workbook.worksheets[0]
        for row in range(1, 9):
            sheet.cell(row=row, column=1).value = 45000 + row
        for row in painted:
            sheet.cell(row=row, column=1).fill = red
        for condition in conditions:
            sheet.conditional_formatting.add("A1:A8", condition)
        workbook.save(tmp_path / name)

    weekend = FormulaRule(["ISNUMBER(MATCH(WEEKDAY(A1),{1,7},0))"], fill=red)
    book("weekend.xlsx", weekend)
    book("painted.xlsx", painted=[3, 4])
    book("plain.xlsx")
    book("top.xlsx", weekend, Rule(type="top10", rank=2, dxf=weekend.dxf))
    rule = {"type": "style", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": ["bgcolor"]}

    def compared(found: str) -> float:
        sides = {"result": kept(found), "expected": kept("weekend.xlsx")}
        return score({"func": "compare_table", **sides, "options": {"rules": [rule]}}, attempt(tmp_path))

    assert [compared(name) for name in ("painted.xlsx", "plain.xlsx", "top.xlsx")] == [1, 0, 0]


def test_each_missing_part_is_reported_once_with_its_reason() -> None:
    assert missing(FEASIBLE) == missing(INFEASIBLE) == []
    found = missing(
        {
            "func": ["compare_image_text", "compare_image_text", "telepathy"],
            "result": [{"type": "googledrive_file"}, value(1), {"type": "crystal_ball"}],
        }
    )
    assert found == [
        f"metric compare_image_text: {LEFT_OUT['compare_image_text']}",
        "a Google account (getter googledrive_file)",
        "metric telepathy: unknown",
        "getter crystal_ball: unknown",
    ]


def test_a_missing_package_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise MissingExtra(f"the OSWorld metric {name!r}", "osworld", "openpyxl")

    monkeypatch.setattr(type(METRICS), "load", lambda _, name: load(name) if name == "compare_table" else None)
    found = missing({"func": "compare_table", "result": value(1)})
    assert found == [f"{install_command(['osworld'])} (metric compare_table needs openpyxl)"]


def test_every_registered_name_can_be_loaded() -> None:
    for registry in (GETTERS, METRICS):
        for name in registry.implementations:
            assert callable(registry.load(name)), name
    assert not set(LEFT_OUT) & {*GETTERS.implementations, *METRICS.implementations}


WITHOUT = """
import sys
for name in "openpyxl pandas formulas docx pptx PIL lxml cssselect bs4 pypdf tldextract yaml rapidfuzz playwright numpy".split():
    sys.modules[name] = None
from paragent.osworld.coverage import missing
from paragent.osworld.evaluators import GETTERS, METRICS
rule = {"type": "rule", "rules": {}}
for name, member in METRICS.implementations.items():
    found = missing({"func": name, "result": rule})
    assert bool(found) == (member.extra is not None), (name, found)
    assert all("[osworld]' (metric" in one for one in found), found
for name, member in GETTERS.implementations.items():
    found = missing({"func": "exact_match", "result": {"type": name, "rules": {"relativeTime": {"from": "tomorrow"}}}})
    assert bool(found) == (member.extra is not None), (name, found)
from paragent.osworld.evaluators.metrics.matching import ratio
assert ratio("abcd", "abcx") == 0.75
"""
"""A program for an interpreter in which nothing of the extra is installed."""


def test_without_the_extra_the_core_works_and_the_rest_is_reported() -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=60)


def test_loading_the_registries_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from paragent.osworld.evaluators import GETTERS, METRICS; "
        "[registry.load(name) for registry in (GETTERS, METRICS) for name in registry.implementations]; "
        "print({'pandas', 'openpyxl', 'docx', 'pptx', 'lxml', 'PIL', 'numpy', 'pypdf', 'playwright', 'bs4'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


# --- hostile files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A zip archive that unpacks to a hundred times its size, and to more than any document has."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as package:
        for number in range(33):
            package.writestr(f"part{number}", b"\0" * (8 << 20))
    return data.getvalue()


LAUGHS = '<!DOCTYPE x [<!ENTITY a0 "ha">{}]><x>&a30;</x>'.format(
    "".join(f'<!ENTITY a{number} "&a{number - 1};&a{number - 1};">' for number in range(1, 31))
)
HOSTILE = {
    "empty": b"",
    "garbage": os.urandom(4096),
    "cut off": b"PK\x03\x04" + b"\0" * 100,
    "xml": LAUGHS.encode(),
    "pdf": b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 1 0 R>>endobj trailer<</Root 1 0 R>>",
}
SUFFIXES = {
    "compare_table": "xlsx",
    "compare_docx_files": "docx",
    "compare_pptx_files": "pptx",
    "compare_pdfs": "pdf",
    "compare_images": "png",
    "compare_zip_files": "zip",
    "compare_archive": "tar.gz",
    "compare_epub": "epub",
    "check_presenter_console_disable": "xcu",
}


def kept(name: str) -> dict[str, Any]:
    return {"type": "cache_file", "path": name}


@pytest.mark.slow
@pytest.mark.parametrize("metric", SUFFIXES)
def test_malformed_files_score_0(tmp_path: Path, metric: str) -> None:
    on, suffix = attempt(tmp_path), SUFFIXES[metric]
    rules = {"options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}}

    async def all_of_them() -> list[float]:
        async with evaluation_processes() as helpers:
            found = []
            for kind, data in HOSTILE.items():
                (tmp_path / f"{kind}.{suffix}").write_bytes(data)
                side = kept(f"{kind}.{suffix}")
                evaluator = {"func": metric, "result": side, **({} if suffix == "xcu" else {"expected": side}), **rules}
                found.append(await asyncio.wait_for(evaluate(evaluator, on, processes=helpers), 60))
            return found

    scores = asyncio.run(asyncio.wait_for(all_of_them(), 110))
    assert set(scores) <= {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["compare_table", "compare_docx_files", "compare_pptx_files", "compare_zip_files"])
def test_an_archive_bomb_is_not_unpacked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bomb: bytes, metric: str
) -> None:
    name = f"b.{SUFFIXES[metric]}"
    (tmp_path / name).write_bytes(bomb)
    evaluator = {
        "func": metric,
        "result": kept(name),
        "expected": kept(name),
        "options": {"rules": [{"type": "sheet_name"}]},
    }
    with caplog.at_level(logging.INFO):
        assert score(evaluator, attempt(tmp_path)) == 0
    assert "TooLarge" in caplog.text


@pytest.mark.slow
def test_a_metric_without_end_or_memory_limit_is_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paragent.osworld.evaluators import evaluator as module

    monkeypatch.setattr(module, "PARSE_SECONDS", 3.0)
    (tmp_path / "slow").write_text("a" * 40)
    slow = {"func": "check_list", "result": kept("slow"), "expected": value({"expect": ["(a+)+b"]})}
    with caplog.at_level(logging.INFO):
        assert score(slow, attempt(tmp_path)) == 0
    assert "was stopped after 3 s" in caplog.text
    caplog.clear()
    monkeypatch.setattr(module, "PARSE_SECONDS", 100.0)
    greedy = {"func": "literal_match", "result": value("x"), "expected": value("x"), "options": {"type": "list"}}
    helpers = SubprocessPool("paragent.osworld.evaluators.registry", most=1, memory=200 << 20)

    async def both() -> tuple[float, float]:
        try:
            text = "x" * (80 << 20)
            first = await evaluate({"func": "exact_match", "result": value(text)}, attempt(tmp_path), processes=helpers)
            return first, await evaluate(greedy, attempt(tmp_path), processes=helpers)
        finally:
            await helpers.close()

    assert asyncio.run(asyncio.wait_for(both(), 110)) == (0, 0)


def test_the_event_loop_is_not_blocked_by_a_metric(tmp_path: Path) -> None:
    async def both() -> tuple[float, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        (tmp_path / "f").write_text("x\n" * 50_000)
        evaluator = {
            "func": "check_list",
            "result": kept("f"),
            "expected": value({"expect": ["x"], "unexpect": ["y"] * 10}),
        }
        found = await evaluate(evaluator, attempt(tmp_path))
        ticking.cancel()
        return found, ticks

    found, ticks = asyncio.run(asyncio.wait_for(both(), 110))
    assert found == 1
    assert ticks > 3


# --- hostile task files ----------------------------------------------------------------------------------------------------


def reading(path: Any, metric: str = "file_contains", expected: Any = None) -> dict[str, Any]:
    """Return an evaluator of a task file that names a file of the host."""
    return {"func": metric, "result": value(path), "expected": value(expected or {"expected": ["private"]})}


@pytest.mark.slow
def test_a_task_cannot_read_files_outside_the_attempts_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("private\n")
    on = attempt(tmp_path / "attempt")
    (on.folder / "own.txt").write_text("private\n")
    (on.folder / "link.txt").symlink_to(secret)
    monkeypatch.chdir(tmp_path)
    assert score(reading(str(on.folder / "own.txt")), on) == 1
    for path in (
        str(secret),
        "secret.txt",
        "../secret.txt",
        str(on.folder / "../secret.txt"),
        str(on.folder / "link.txt"),
    ):
        assert score(reading(path), on) == 0, path
    both = {"func": "compare_text_file", "result": value(str(secret)), "expected": value(str(secret))}
    assert score(both, on) == 0
    assert score(reading("/etc/passwd", expected={"expected": ["root"]}), on) == 0


@pytest.mark.slow
def test_a_task_cannot_list_folders_of_the_host(tmp_path: Path) -> None:
    on = attempt(tmp_path / "attempt")
    with zipfile.ZipFile(on.folder / "a.zip", "w") as package:
        package.writestr("x", "x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "private.txt").write_text("x")
    evaluator = {"func": "compare_archive", "result": kept("a.zip"), "expected": kept("a.zip")}
    assert score(evaluator, on) == 1
    assert score({**evaluator, "options": {"file_path": str(tmp_path / "other")}}, on) == 0


@pytest.mark.slow
def test_a_task_cannot_write_files_of_the_host_with_a_query(tmp_path: Path) -> None:
    on, target = attempt(tmp_path / "attempt"), tmp_path / "written"
    with contextlib.closing(sqlite3.connect(on.folder / "a.db")) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES ('echo')")
    counted = {"func": "run_sqlite3", "result": kept("a.db"), "expected": value({"sql": "SELECT COUNT(*) FROM t"})}
    assert score(counted, on) == 1
    for path in (target, on.folder / "written"):
        for query in (f"VACUUM INTO '{path}'", f"ATTACH '{path}' AS other", "PRAGMA journal_mode=DELETE"):
            assert score({**counted, "expected": value({"sql": query})}, on) == 0
            assert not path.exists()
