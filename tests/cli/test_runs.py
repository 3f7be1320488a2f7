"""The commands for stored runs, and their error messages."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from paragent.cli import main
from paragent.store import METRIC, Journal, RolloutResult, RolloutStatus, RunDirectory, summarise
from paragent.store.records import pack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing.export_contract import sample_run
from tests.children import BoundedPopen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def made_run(folder: Path, results: Sequence[RolloutResult], metric: str = "math") -> Path:
    """Store a run with these results."""
    with RunDirectory(folder) as directory:
        directory.open({"mode": "math", "model": "m", "data": "/some/where/tasks.jsonl"}, "an identity")
        directory.journal.set_meta(METRIC, metric)
        directory.journal.begin_session(1_700_000_000.0)
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
    assert "exact_match: mean 0.500; 1 answer scored," in capsys.readouterr().out, "the failure counts as 0"
    assert json.loads((run / "summary.json").read_text())["means"] == {"exact_match": 0.5, "math": 0.0}


def unscored(task: str) -> RolloutResult:
    result = RolloutResult(task, 1, RolloutStatus.UNSCORED, kind="scoring", error="the judge did not answer")
    result.answer = "4"
    return result


def test_rescore_completes_answers_whose_scorer_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored("1", 0.0), unscored("2"), failed("3")], metric="exact_match")
    assert main(["rescore", str(run), "--metric", "contains"]) == 0
    assert (
        "1 answer of failed scorers still without the score that counts; `--metric exact_match`"
        in capsys.readouterr().out
    )
    assert json.loads((run / "summary.json").read_text())["measured"] == 2, "another scorer's score does not count"
    assert main(["rescore", str(run), "--metric", "exact_match"]) == 0
    assert "still" not in capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["mean"], summary["measured"], summary["unscored"]) == (pytest.approx(1 / 3), 3, 0)
    assert (summary["statuses"]["completed"], summary["failures"]) == (2, {"ValueError": 1})
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [(line["status"], line["score"], line["error"]) for line in lines[1:2]] == [("completed", 1.0, "")]


def test_rescore_says_why_nothing_was_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({"mode": "math"}, "an identity")
        directory.journal.add_tasks([BenchmarkTask("1", "?", None)])
        directory.journal.record([scored("1", None)])
    assert main(["rescore", str(tmp_path / "run"), "--metric", "contains"]) == 1
    assert capsys.readouterr().out == "contains: no score for 1 answer: no task has an expected answer\n"
    run = made_run(tmp_path / "words", [scored("1", None)])
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.answer', 'four')""")
    assert main(["rescore", str(run), "--metric", "numeric"]) == 1
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


def test_show_lists_cut_replies_and_prints_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [scored("whole", 1.0), scored("cut", 0.0), scored("full", 0.0)]
    results[1].ending, results[2].ending = "answer cut", "context full"
    run = made_run(tmp_path / "run", results)
    assert main(["show", str(run), "--cut", "--limit", "1"]) == 0
    shown = capsys.readouterr().out
    assert "cut replies     │ 2: a limit of tokens, context or output was reached" in shown
    assert "[answer cut] 4" in shown
    assert "whole" not in shown
    assert "1 more; show all with --limit 2" in shown
    assert main(["show", str(run), "cut"]) == 0
    assert "reference 4\n" in capsys.readouterr().out


def test_runs_shows_when_with_what_and_how_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = scored("1", 1.0)
    cut.ending = "answer cut"
    made_run(tmp_path / "good", [cut, failed("2")])
    made_run(tmp_path / "wrong-key", [infrastructure("1")])
    assert main(["runs", str(tmp_path)]) == 0
    rows = {cells[1]: cells[2:-1] for line in capsys.readouterr().out.splitlines() if len(cells := columns(line)) > 3}
    assert rows["good"][0].startswith("2023-11-1")
    assert rows["good"][1:7] == ["m", "tasks.jsonl", "2/2", "0.500", "1", "1"]
    assert rows["wrong-key"][1:7] == ["m", "tasks.jsonl", "0/1", "none", "1", "0"]


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")]


def infrastructure(task: str) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.INFRASTRUCTURE, kind="endpoint", error="HTTP 503")


def test_a_run_that_measured_nothing_shows_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [infrastructure("1"), infrastructure("2")])
    assert main(["show", str(run)]) == 0
    rows = {cells[1]: cells[2] for line in capsys.readouterr().out.splitlines() if len(cells := columns(line)) > 3}
    assert (rows["rollouts"], rows["infrastructure"]) == ("0 of 2 done", "2 (pending)")
    assert rows["score"] == "none: nothing was measured"
    assert main(["ctl", str(run), "status"]) == 0
    assert "none: nothing was measured" in capsys.readouterr().out


def test_the_score_has_its_count_and_what_it_would_be_with_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [*(scored(str(number), 1.0) for number in range(6)), failed("f"), infrastructure("i"), unscored("u")]
    run = made_run(tmp_path / "run", results)
    assert main(["show", str(run)]) == 0
    rows = {cells[1]: cells[2] for line in capsys.readouterr().out.splitlines() if len(cells := columns(line)) > 3}
    assert rows["score"] == "0.857 (95 % interval 0.487 to 0.974, 7 measured)"
    assert rows["others as 0"] == "0.667 of all 9 rollouts"
    assert (rows["rollouts"], rows["math"]) == ("8 of 9 done", "0.857")


def test_compare_refuses_other_tasks_and_pairs_by_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stored(name: str, tasks: list[BenchmarkTask], score: float) -> str:
        with RunDirectory(tmp_path / name) as directory:
            directory.open({}, name)
            directory.journal.add_tasks(tasks)
            directory.journal.record([scored(task.id, score) for task in tasks])
        return str(tmp_path / name)

    maths = [BenchmarkTask(f"item_{number}", f"{number} + 1?", str(number + 1)) for number in range(12)]
    run = stored("run", maths, 0.0)
    other = stored("dates", [BenchmarkTask("item_1", "Which day?", "(A)")], 1.0)
    imported = stored("imported", [BenchmarkTask(task.id[5:], task.question, task.answer) for task in maths], 1.0)
    assert main(["compare", run, other]) == 2
    assert "no task of one has the question and the reference answer of a task of the other" in capsys.readouterr().err
    assert main(["compare", run, imported, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pairs"], found["difference"], found["only_a"], found["only_b"]) == (12, 1.0, 0, 0)
    assert [task for task, *_ in found["better"]] == [task.id for task in maths], "in the order of the tasks"


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
        with BoundedPopen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
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
    assert (summary.mean, summary.measured, summary.done, summary.pending) == (0.5, 2, 3, 0)
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
