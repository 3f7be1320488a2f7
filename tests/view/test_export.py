"""Static exports: the files that the pages need, and nothing of the folder before is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paragent.errors import UsageError
from paragent.view.api import PageSettings
from paragent.view.export import ExportProgress, export_runs
from paragent.view.runs import RunFolder
from tests.view.recorded import PNG, fake_bundle, result, serving, trajectory, write_run

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "long " * 30_000, "images": ["step_0_a.png", "../../config.json", "fake.png"]},
    {"role": "assistant", "content": "Done"},
]
STEPS = [{"kind": "model", "turn": 1, "model": "m", "messages": 1, "response": {"id": "r"}}]


@pytest.fixture
def runs(tmp_path: Path) -> RunFolder:
    body = trajectory(*MESSAGES, steps=STEPS)
    files = {"step_0_a.png": PNG, "fake.png": b"<svg/>"}
    write_run(tmp_path / "runs", "one", [result("a", score=1.0, trajectory=body, files=files), result("b", score=0.0)])
    write_run(tmp_path / "runs", "two, too", [result("a", score=0.0)])
    return RunFolder(tmp_path / "runs")


def export(runs: RunFolder, target: Path) -> ExportProgress:
    bundle = target.parent / "bundle"
    if not bundle.exists():
        fake_bundle(bundle)
    return export_runs(runs.all(), target, PageSettings("1", "runs", static=True), bundle)


def test_an_export_has_the_pages_and_the_answers_of_the_server(runs: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "site"
    progress = export(runs, target)
    data = target / "data"
    assert (target / "index.html").exists()
    assert json.loads((data / "settings.json").read_text())["static"] is True
    assert progress.executions == progress.total == 3
    with serving(runs.folder) as (_, client):
        for path, file in {
            "runs": "runs.json",
            "runs/one": "runs/one/run.json",
            "runs/one/rollouts": "runs/one/rollouts.json",
            "runs/one/timeline?buckets=2000": "runs/one/timeline.json",
            "runs/one/executions/1": "runs/one/executions/1.json",
            "runs/one/executions/1/raw/1": "runs/one/executions/1/raw/1.json",
            "compare?runs=one&runs=two, too": "compare/one,two, too.json",
        }.items():
            exported = json.loads((data / file).read_text())
            assert exported == client.get(f"/api/{path}").json(), file
        assert (data / "runs/one/executions/1/text/0.txt").read_text() == MESSAGES[0]["content"]
        assert (data / "runs/one/images/1/step_0_a.png").read_bytes() == PNG
    assert sorted(path.name for path in (data / "runs/one/images/1").iterdir()) == ["step_0_a.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "runs-bundle", "bundle", "site"}


def test_an_earlier_export_is_replaced(runs: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "site"
    target.mkdir()
    export(runs, target)
    (target / "data" / "old.json").write_text("{}")
    export(runs, target)
    assert not (target / "data" / "old.json").exists()
    assert (target / "data" / "runs.json").exists()


def test_a_folder_with_other_content_is_refused(runs: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "home"
    target.mkdir()
    (target / "thesis.txt").write_text("important")
    with pytest.raises(UsageError, match="not empty"):
        export(runs, target)
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="no folder"):
        export_runs(runs.all(), tmp_path / "none" / "site", PageSettings("1", "runs", static=True), tmp_path / "bundle")


def test_a_run_that_cannot_be_read_is_listed(runs: RunFolder, tmp_path: Path) -> None:
    (runs.folder / "two, too" / "journal.sqlite").write_bytes(b"broken")
    export(runs, tmp_path / "site")
    rows = json.loads((tmp_path / "site" / "data" / "runs.json").read_text())["runs"]
    assert {row["name"]: row["state"] for row in rows} == {"one": "complete", "two, too": "unreadable"}
