"""`paragent osworld check`: same score, another score or none, by exit status, table and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paragent.cli import main
from paragent.errors import BadData, ConfigError, MissingExtra
from paragent.osworld.coverage import DIFFERENCES, coverage_of
from paragent.osworld.evaluators.registry import GETTERS, METRICS
from paragent.osworld.formats import read_tasks

RULE = {"type": "rule", "rules": {"expected": "x"}}
PLAIN = {"func": "exact_match", "result": RULE, "expected": RULE}


def task(name: str, evaluator: Mapping[str, Any] = PLAIN, **more: Any) -> dict[str, Any]:
    return {"id": name, "instruction": "Do it.", "evaluator": dict(evaluator), **more}


TASKS = {
    "os": [
        task("good", config=[{"type": "sleep", "parameters": {"seconds": 1}}]),
        task(
            "likeness", PLAIN | {"func": ["exact_match", "compare_pdfs"], "result": [RULE] * 2, "expected": [RULE] * 2}
        ),
        task("recording", PLAIN | {"func": "compare_image_text"}),
    ],
    "chrome": [
        task("proxied", proxy=True),
        task(
            "drive",
            PLAIN | {"result": {"type": "googledrive_file"}},
            config=[{"type": "googledrive", "parameters": {}}],
        ),
        task("both", PLAIN | {"func": "compare_image_text"}, proxy=True),
        task("odd", PLAIN | {"postconfig": [{"type": "levitate", "parameters": {}}]}),
    ],
}


@pytest.fixture
def index(tmp_path: Path) -> Callable[..., Path]:
    """Write an index with its folder of examples."""

    def write(tasks: Mapping[str, list[dict[str, Any]]]) -> Path:
        for domain, members in tasks.items():
            folder = tmp_path / "examples" / domain
            folder.mkdir(parents=True, exist_ok=True)
            for one in members:
                (folder / f"{one['id']}.json").write_text(json.dumps(one))
        path = tmp_path / "all.json"
        path.write_text(json.dumps({domain: [one["id"] for one in members] for domain, members in tasks.items()}))
        return path

    return write


def test_each_task_has_one_verdict(index: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osworld", "check", "--data", str(index(TASKS)), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    counts = {"same score": 2, "differs": 1, "cannot be scored": 4}
    assert reported["total"] == {"tasks": 7, **counts, "need a proxy": 1}
    counts = {"same score": 1, "differs": 1, "cannot be scored": 1}
    assert reported["domains"]["os"] == {"tasks": 3, **counts, "need a proxy": 0}
    verdicts = {one["id"]: one["verdict"] for one in reported["tasks"]}
    assert [name for name, verdict in verdicts.items() if verdict == "same score"] == ["good", "proxied"]
    assert [name for name, verdict in verdicts.items() if verdict == "differs"] == ["likeness"]
    reasons = {one["id"]: one["reasons"] for one in reported["tasks"]}
    assert reasons["good"] == []
    assert "pypdf" in reasons["likeness"][0]
    assert reasons["drive"] == ["a Google account"]
    needs = {need["what"]: (need["tasks"], need["unlocks"]) for need in reported["needs"]}
    assert sorted(needs.values()) == [(1, 1), (1, 1), (2, 1), (2, 1)]
    assert needs["a Google account"] == (1, 1)
    assert {one["id"]: one["covered"] for one in reported["tasks"]} == {
        "good": True,
        "likeness": True,
        "recording": False,
        "proxied": False,
        "drive": False,
        "both": False,
        "odd": False,
    }
    assert "levitate" in next(one["missing"][0] for one in reported["tasks"] if one["id"] == "odd")


def test_the_tables_have_each_task_and_what_is_missing(
    index: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["osworld", "check", "--data", str(index(TASKS))]) == 1
    reported = capsys.readouterr().out
    for words in ("chrome", "metric compare_image_text", "a Google account", "a proxy", "levitate", "unlocks"):
        assert words in reported
    [line] = [line for line in reported.splitlines() if "likeness" in line and "differs" in line]
    assert "compare_pdfs" in line
    assert main(["osworld", "check", "--data", str(index(TASKS)), "--summary"]) == 1
    short = capsys.readouterr().out
    assert "likeness" not in short
    assert "same score" in short


def test_every_reason_for_a_difference_belongs_to_a_metric_or_a_getter() -> None:
    assert set(DIFFERENCES) <= {*METRICS.implementations, *GETTERS.implementations}
    assert not set(METRICS.implementations) & set(GETTERS.implementations)


def test_accounts_and_proxies_do_not_fail_the_check(
    index: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fine = {"os": [TASKS["os"][0]], "chrome": [TASKS["chrome"][0], TASKS["chrome"][1]]}
    assert main(["osworld", "check", "--data", str(index(fine))]) == 0
    assert main(["osworld", "check", "--data", str(index({"os": [TASKS["os"][0]]}))]) == 0
    assert "missing requirements" not in capsys.readouterr().out.rpartition("scores compared")[2]


def test_malformed_task_files_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osworld", "check", "--data", str(tmp_path / "none.json")]) == 2
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text('{"os": ["gone"]}')
    assert main(["osworld", "check", "--data", str(tmp_path / "bad.json")]) == 2
    assert "gone.json" in capsys.readouterr().err


def test_every_format_of_task_files_is_read(tmp_path: Path, index: Callable[..., Path]) -> None:
    one = tmp_path / "one.json"
    one.write_text(json.dumps(task("a")))
    assert [found["id"] for found in read_tasks(one)] == ["a"]
    one.write_text(json.dumps([task("a"), task("b")]))
    assert [found["id"] for found in read_tasks(one)] == ["a", "b"]
    one.write_text(f"{json.dumps(task('a'))}\n\n{json.dumps(task('b'))}\n")
    assert [found["id"] for found in read_tasks(one)] == ["a", "b"]
    one.write_text(json.dumps({"items": [task("a")]}))
    assert [found["id"] for found in read_tasks(one)] == ["a"]
    assert [(found["domain"], found["id"]) for found in read_tasks(index(TASKS))][:2] == [
        ("os", "good"),
        ("os", "likeness"),
    ]
    in_lines = f"{json.dumps(task('a'))}\nno JSON"
    for broken in (
        in_lines,
        "[",
        "[3]",
        '[{"id": "a"}]',
        '{"os": "x"}',
        '{"os": ["../../etc/passwd"]}',
        '{"..": ["x"]}',
    ):
        one.write_text(broken)
        with pytest.raises(BadData):
            read_tasks(one)
    with pytest.raises(ConfigError):
        read_tasks(tmp_path / "nowhere.json")


def test_a_malformed_evaluator_is_reported() -> None:
    [found] = coverage_of([task("a", {"result": RULE})]).tasks
    assert "a valid `config` and `evaluator` (KeyError: 'func')" in found.missing[0]


def test_install_commands_are_printed_unchanged(index: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osworld", "check", "--data", str(index({"[os]": [task("a", PLAIN | {"func": "[/strange]"})]}))]) == 1
    shown = capsys.readouterr().out
    assert "[os]" in shown
    assert "metric [/strange]" in shown


def test_a_list_of_tasks_has_no_domains() -> None:
    assert [found.domain for found in coverage_of([task("a"), task("b", snapshot="vlc")]).tasks] == ["", "vlc"]


def test_a_missing_extra_is_one_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any, name: str) -> Any:
        raise MissingExtra(name, extra="osworld", missing="PIL")

    monkeypatch.setattr(type(METRICS), "load", refuse)
    both = {"func": ["compare_images", "compare_pdfs"], "result": [RULE] * 2, "expected": [RULE] * 2}
    tasks = [task("a", PLAIN | {"func": "compare_images"}), task("b", both)]
    [need] = coverage_of(tasks).needs()
    assert (need.what, need.tasks, need.unlocks) == ("pip install 'paragent[osworld]'", 2, 2)
