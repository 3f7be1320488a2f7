"""`paragent osworld check`: same score, another score or none, by exit status, table and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paragent._internal.registry import Registry
from paragent.cli import main
from paragent.errors import BadData, ConfigError, MissingExtra, MissingProgram
from paragent.osworld.coverage import coverage_of
from paragent.osworld.evaluators.registry import METRICS
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


def test_with_pymupdf_installed_pdf_files_get_the_same_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts() -> list[str]:
        archived = PLAIN | {"func": "compare_archive", "options": {"file_type": "pdf"}}
        return [
            found.verdict
            for found in coverage_of([task("a", PLAIN | {"func": "compare_pdfs"}), task("b", archived)]).tasks
        ]

    monkeypatch.setattr("paragent.osworld.evaluators.metrics.archives._pymupdf", lambda: None)
    assert verdicts() == ["differs", "differs"]
    monkeypatch.setattr("paragent.osworld.evaluators.metrics.archives._pymupdf", object)
    assert verdicts() == ["same score", "same score"]


def test_only_archives_with_pdf_files_can_differ() -> None:
    archived = PLAIN | {"func": "compare_archive", "options": {"file_type": "image"}}
    assert [found.verdict for found in coverage_of([task("a", archived)]).tasks] == ["same score"]


PAIR = {"sheet_idx0": 0, "sheet_idx1": "EI0"}
UNSUPPORTED: list[tuple[str, Any, Any, str]] = [
    ("compare_videos", {}, ["x"], "the options are not an object: ['x']"),
    ("exact_match", {}, "x", "the options are not an object: 'x'"),
    ("check_json", {"expect": [{"key": ["a"], "method": "likens", "ref": 1}]}, {}, "unknown method 'likens'"),
    ("check_json", {"unexpect": [{"key": ["a"], "method": "range.xx", "ref": 1}]}, {}, "unknown method 'range.xx'"),
    ("check_json", {"expect": [{"key": ["a"], "method": "re", "ref": "("}]}, {}, "malformed rules"),
    ("check_json", {"expect": [{"key": ["a"], "ref": 1}]}, {}, "KeyError: 'method'"),
    ("check_mp3_meta", {"title": {"method": "likens", "ref": "x"}}, {}, "unknown method 'likens'"),
    ("check_thunderbird_prefs", {"expect": {"a": {"method": "likens", "ref": 1}}}, {}, "unknown method 'likens'"),
    ("check_thunderbird_prefs", {"unexpect": {"a": {"method": "likens", "ref": 1}}}, {}, "unknown method 'likens'"),
    ("compare_table", {}, {}, "malformed rules or options"),
    ("compare_table", {}, {"rules": [{"type": "magic"}]}, "unknown rule 'magic' about workbooks"),
    ("compare_table", {}, {"rules": [{"type": "style", **PAIR, "props": ["shoe"]}]}, "no style property 'shoe'"),
    (
        "compare_table",
        {},
        {"rules": [{"type": "freeze", "sheet_idx0": "X1", "sheet_idx1": 0}]},
        "'X1' is not a reference",
    ),
    ("compare_table", {}, {"rules": [{"type": "zoom", "sheet_idx": 0, "method": "x", "ref": 1}]}, "unknown method 'x'"),
    (
        "compare_table",
        {},
        {"rules": [{"type": "check_cell", "sheet_idx": 0, "props": {"shoe": {"method": "eq", "ref": 1}}}]},
        "no style property 'shoe'",
    ),
    (
        "compare_table",
        {},
        {"rules": [{"type": "data_validation", "sheet_idx": 0, "dv_props": [{"type": {"method": "x", "ref": 1}}]}]},
        "unknown method 'x'",
    ),
    (
        "compare_table",
        {},
        {"rules": [{"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A1"], "type": "x"}]}]},
        "unknown rule 'x' about cells",
    ),
    ("compare_archive", {}, {"file_type": "scroll"}, "files of the type 'scroll'"),
    ("compare_archive", {}, {"file_type": "table", "rules": [{"type": "magic"}]}, "unknown rule 'magic'"),
    ("literal_match", "x", {"type": "dict"}, "values of the type 'dict'"),
    ("check_pdf_pages", {"relation": "about", "ref_value": 1}, {}, "unknown rule 'about'"),
    ("check_font_size", {"type": "round"}, {}, "unknown rule 'round'"),
    ("is_cookie_deleted", {"type": "round"}, {}, "unknown rule 'round'"),
    ("is_expected_bookmarks", {"type": "round"}, {}, "unknown rule 'round'"),
    ("check_history_deleted", {"type": "round"}, {}, "unknown rule 'round'"),
    ("is_shortcut_on_desktop", {"type": "round"}, {}, "unknown rule 'round'"),
    ("is_extension_installed", {"type": "round"}, {}, "unknown rule 'round'"),
    ("check_accessibility_tree", [{"text": "x"}], {}, "needs xpath or selectors"),
]


@pytest.mark.parametrize(("metric", "rules", "options", "reason"), UNSUPPORTED)
def test_rules_that_no_metric_supports_cannot_be_scored(metric: str, rules: Any, options: Any, reason: str) -> None:
    evaluator = {"func": metric, "result": RULE, "expected": {"type": "rule", "rules": rules}, "options": options}
    [found] = coverage_of([task("a", evaluator)]).tasks
    assert found.verdict == "cannot be scored"
    assert found.reasons[0].startswith(f"metric {metric}: ")
    assert reason in found.reasons[0]


def test_a_program_for_the_files_of_archives_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    load = type(METRICS).load

    def refuse(registry: Registry, name: str) -> Any:
        if name == "compare_audios":
            raise MissingProgram("comparing sounds", "there is no ffmpeg here", "install ffmpeg")
        return load(registry, name)

    monkeypatch.setattr(type(METRICS), "load", refuse)
    archived = PLAIN | {"func": "compare_archive", "options": {"file_type": "audio"}}
    [found] = coverage_of([task("a", archived)]).tasks
    assert found.reasons == ("install ffmpeg (metric compare_archive: there is no ffmpeg here)",)


@pytest.mark.parametrize(
    ("getter", "reason"),
    [
        ({"type": "rule_relativeTime", "rules": {"relativeTime": {"from": "some day"}}}, "unknown date 'some day'"),
        ({"type": "content_from_vm_file", "file_type": "ods", "file_content": "last_row"}, "of the type 'ods'"),
    ],
)
def test_getters_that_cannot_answer_are_reported(getter: dict[str, Any], reason: str) -> None:
    [found] = coverage_of([task("a", PLAIN | {"expected": getter})]).tasks
    assert found.verdict == "cannot be scored"
    assert reason in found.reasons[0]


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


@pytest.mark.parametrize(
    "command",
    [
        "pip install '.[osworld]'",
        "/my envs/one/bin/python -m pip install 'paragent[osworld]'",
        "uv pip install --python .venv/bin/python 'paragent[osworld] @ git+https://example.org/p.git@main'",
    ],
)
def test_a_missing_extra_is_one_requirement(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any, name: str) -> Any:
        raise MissingExtra(name, extra="osworld", missing="PIL", command=command)

    monkeypatch.setattr(type(METRICS), "load", refuse)
    both = {"func": ["compare_images", "compare_pdfs"], "result": [RULE] * 2, "expected": [RULE] * 2}
    tasks = [task("a", PLAIN | {"func": "compare_images"}), task("b", both)]
    [need] = coverage_of(tasks).needs()
    assert (need.what, need.tasks, need.unlocks) == (command, 2, 2)
