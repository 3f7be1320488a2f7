"""Exports are read by the libraries of the tools that own the formats."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paragent.store import JOURNAL_FILE, Journal
from paragent.store.formats import export
from paragent.store.formats.importing import import_files
from paragent.testing.export_contract import sample_rollouts, sample_run, write_run

pytestmark = [pytest.mark.slow, pytest.mark.integration]

REPOSITORY = Path(__file__).parents[2]


def read(kind: str, target: Path) -> Any:
    """Return what the library of a format reads."""
    python = REPOSITORY / ".venv-formats/bin/python"
    command = [str(python), str(Path(__file__).with_name("read_exports.py")), kind, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_harbor_accepts_every_trajectory(tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "atif", tmp_path / "atif")
    errors = read("atif", tmp_path / "atif")
    assert len(errors) == len(sample_rollouts(images=True))
    assert not any(errors.values()), errors


def test_inspect_opens_the_log(tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "inspect", tmp_path / "run.eval")
    found = read("inspect", tmp_path / "run.eval")
    log = found["log"]
    assert (log["status"], log["eval"]["model"], log["eval"]["config"]["epochs"]) == ("success", "small", 2)
    samples = {(one["id"], one["epoch"]): one for one in log["samples"]}
    expected = {(result.task, result.attempt): result for _, result in sample_rollouts(images=True)}
    assert samples.keys() == expected.keys()
    assert len(found["summaries"]) == len(set(found["uuids"])) == len(expected)
    sample = samples["a", 1]
    assert [message["role"] for message in sample["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert sample["messages"][2]["tool_calls"][0]["arguments"] == {"a": 40, "b": 2}
    assert sample["messages"][2]["content"][0]["reasoning"] == "I add."
    assert sample["scores"]["exact"]["value"] == 1.0
    assert sample["model_usage"]["small"]["total_tokens"] == 42
    assert (sample["total_time"], sample["working_time"]) == (3.0, 2.5)
    assert [event["event"] for event in sample["events"]] == ["model", "tool", "model", "tool", "info"]
    assert [len(event["input"]) for event in sample["events"] if event["event"] == "model"] == [2, 4]
    assert samples["failed", 1]["error"]["message"] == "ValueError: no"
    assert samples["out of turns", 1]["limit"]["type"] == "turn"


def test_inspect_shows_the_messages_of_branches_and_images(tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "inspect", tmp_path / "run.eval")
    samples = {(one["id"], one["epoch"]): one for one in read("inspect", tmp_path / "run.eval")["log"]["samples"]}
    events = samples["branches", 1]["events"]
    [branched] = [one for one in events if one["metadata"]["paragent"].get("branch") == 1]
    assert [message["content"] for message in branched["input"]] == ["Answer.", "What is 40 + 2?", "Again."]
    parts = samples["image", 1]["messages"][3]["content"]
    assert [part["type"] for part in parts] == ["image", "text"]
    assert parts[0]["image"].startswith("data:image/png;base64,")


def test_an_empty_run_is_a_log_without_samples(tmp_path: Path) -> None:
    with write_run(tmp_path / "run", []) as journal:
        export(journal, "inspect", tmp_path / "run.eval")
    assert not read("inspect", tmp_path / "run.eval")["log"]["samples"]


def test_a_log_that_inspect_wrote_is_imported(tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "inspect", tmp_path / "run.eval")
        written = Path(read("rewrite", tmp_path / "run.eval"))
        import_files([written], tmp_path / "imported")
        with Journal(tmp_path / "imported" / JOURNAL_FILE, read_only=True) as found:
            assert {(one.task, one.attempt, one.score) for one in found.results()} == {
                (one.task, one.attempt, one.score) for one in journal.results()
            }
