"""The commands for stored runs, and their error messages."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from paragent.cli import main
from paragent.store import Journal, RolloutResult, RolloutStatus, RunDirectory, summarise
from paragent.store.records import pack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing.export_contract import sample_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def made_run(folder: Path, results: Sequence[RolloutResult]) -> Path:
    """Store a run with these results."""
    with RunDirectory(folder) as directory:
        directory.open({"mode": "math"}, "an identity")
        directory.journal.add_tasks(
            BenchmarkTask(task, "?", "4") for task in dict.fromkeys(one.task for one in results)
        )
        directory.journal.record(results)
    return folder


def scored(task: str, score: float | None, **more: float) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.COMPLETED, score=score, scores={"math": score, **more}, answer="4")


def failed(task: str) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.FAILED, kind="ValueError", error="ValueError: [/tmp/x] is no file")


def test_compare_ignores_unscored_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made_run(tmp_path / "a", [scored("1", 1.0), scored("2", None), failed("3")])
    b = made_run(tmp_path / "b", [scored("1", 0.0, f1=0.5), scored("2", 1.0), scored("3", 1.0)])
    assert main(["compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pairs"], found["mean_a"], found["mean_b"], found["only_b"]) == (2, 0.5, 0.5, 1)
    assert main(["compare", str(b), str(a), "--metric", "f1"]) == 2
    assert "has no scores by 'f1'; it has: math" in capsys.readouterr().err


def test_rescore_updates_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored("1", 0.0), failed("2")])
    assert main(["rescore", str(run), "--metric", "exact_match"]) == 0
    assert "exact_match: mean 1.000 of 1 answer;" in capsys.readouterr().out
    assert json.loads((run / "summary.json").read_text())["means"] == {"exact_match": 1.0, "math": 0.0}


def test_rescore_says_why_nothing_was_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({"mode": "math"}, "an identity")
        directory.journal.add_tasks([BenchmarkTask("1", "?", None)])
        directory.journal.record([scored("1", None)])
    assert main(["rescore", str(tmp_path / "run"), "--metric", "contains"]) == 0
    assert capsys.readouterr().out == "contains: no score for 1 answer: no task has an expected answer\n"
    run = made_run(tmp_path / "words", [scored("1", None)])
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.answer', 'four')""")
    assert main(["rescore", str(run), "--metric", "numeric"]) == 0
    assert "the scorer had nothing to compare" in capsys.readouterr().out


def test_runs_lists_a_folder_and_names_subfolders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in results; `paragent runs DIR` lists those of another folder\n"
    made_run(tmp_path / "results" / "demo" / "first", [scored("1", 1.0)])
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in results; more runs: `paragent runs results/demo`\n"
    assert main(["runs", "results/demo"]) == 0
    assert "first" in capsys.readouterr().out
    made_run(tmp_path / "results" / "second", [scored("1", 1.0)])
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.endswith("more runs: `paragent runs results/demo`\n")


def test_show_prints_how_many_results_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [*(scored(str(number), 1.0) for number in range(30)), failed("last")])
    assert main(["show", str(run)]) == 0
    assert "11 more; show all with --limit 31" in capsys.readouterr().out
    assert main(["show", str(run), "--status", "failed"]) == 0
    assert "more" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["show", str(run), "--status", "faild"])
    assert "'faild' is not one of completed, failed" in capsys.readouterr().err


def test_texts_are_not_interpreted_as_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made_run(tmp_path / "[red]a", [scored("[/b] 1", 0.0), failed("[bold]2")])
    b = made_run(tmp_path / "b", [scored("[/b] 1", 1.0), failed("[bold]2")])
    for arguments in (["show", str(a)], ["compare", str(a), str(b)], ["runs", "--output-dir", str(tmp_path)]):
        assert main(arguments) == 0
        assert "[red]a" in capsys.readouterr().out
    assert main(["compare", str(a), str(b)]) == 0
    assert "better [/b] 1" in capsys.readouterr().out


def test_os_errors_are_printed_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored("1", 1.0)])
    assert main(["export", str(run), "--output", str(run / "config.json" / "out.jsonl")]) == 1
    assert "config.json: File exists; choose a path" in capsys.readouterr().err


def test_a_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", [scored("1", 1.0)])
    for arguments in (["show", str(run)], ["compare", str(run), str(run), "--json"]):
        command = [sys.executable, "-m", "paragent", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 1


def cancelled(task: str) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.CANCELLED, kind="cancelled", error="cancelled by a user")


def test_cancelled_rollouts_count_in_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored("1", 1.0), scored("2", 0.0), cancelled("3")])
    with Journal(run / "journal.sqlite", read_only=True) as journal:
        summary = summarise(journal, 1)
    assert (summary.mean, summary.mean_without_infrastructure, summary.done, summary.pending) == (0.5, 0.5, 3, 0)
    assert (summary.failures, summary.reasons, summary.statuses["cancelled"]) == ({}, {}, 1)
    assert main(["show", str(run), "--status", "cancelled"]) == 0
    assert "cancelled by a user" in capsys.readouterr().out
    other = made_run(tmp_path / "other", [scored("1", 1.0), scored("2", 1.0), scored("3", 1.0)])
    assert main(["compare", str(run), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 2
    assert main(["export", str(run), "--format", "osworld", "--output", str(tmp_path / "o")]) == 0
    assert "2 results" in capsys.readouterr().out


def test_a_cancelled_attempt_does_not_count_for_pass_at_k(tmp_path: Path) -> None:
    results = [scored("1", 1.0), cancelled("1"), scored("2", 1.0), scored("2", 0.0)]
    results[1].attempt = results[3].attempt = 2
    run = made_run(tmp_path / "run", results)
    with Journal(run / "journal.sqlite", read_only=True) as journal:
        assert summarise(journal, 2).pass_at == {1: 0.5, 2: 1.0}, "only the task with two results is counted"


def test_show_prints_reasoning_and_branches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample_run(tmp_path / "run").close()
    assert main(["show", str(tmp_path / "run"), "a"]) == 0
    assert "reasoning I add.\nassistant" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "run"), "branches"]) == 0
    assert "branch 1: shares 2 messages with branch 0\nuser Again.\nassistant 43" in capsys.readouterr().out


def test_show_prints_the_kind_of_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [failed("1")])
    assert main(["show", str(run), "1"]) == 0
    assert "1 attempt 1: failed, score unknown, ValueError\n" in capsys.readouterr().out


def test_show_prints_the_answer_and_the_reason_of_its_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "It is 5."}]
    noted = [{"kind": "score", "metric": "passed", "note": "AssertionError: [5]"}]
    results = [scored("1", 0.0), scored("1", 0.0)]
    results[0].trajectory = results[1].trajectory = pack_trajectory({"messages": said, "tools": [], "steps": noted})
    results[0].answer, results[1].answer, results[1].attempt = "5", "It is 5.", 2
    run = made_run(tmp_path / "run", results)
    assert main(["show", str(run), "1"]) == 0
    assert "assistant It is 5.\nanswer 5\nscore 0.000 passed: AssertionError: [5]\n" in capsys.readouterr().out
    assert main(["show", str(run), "1#2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1 attempt 2: completed")
    assert "assistant It is 5.\nscore 0.000" in shown, "the answer is the last message"
    assert main(["show", str(run), "1#3"]) == 2
    assert "no result for attempt 3 at task '1'" in capsys.readouterr().err


def test_import_of_another_file_names_what_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    assert main(["import", str(tmp_path / "tasks.jsonl"), "--output-dir", str(tmp_path)]) == 2
    assert "name ATIF trajectories (.json), logs of inspect (.eval, .json)" in capsys.readouterr().err
