"""The commands for stored runs, and their error messages."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.text import Text

from paragent._internal.text import safe_console
from paragent.cli import main
from paragent.cli.tables import escape
from paragent.store import METRIC, PRICES, Journal, RolloutResult, RolloutStatus, RunDirectory, summarise
from paragent.store.records import WorkerEvent, pack_trajectory
from paragent.store.summary import STOPPED
from paragent.tasks import BenchmarkTask
from paragent.testing import Fault, OpenAIServer, Script
from paragent.testing.export_contract import sample_run
from tests.children import BoundedPopen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def made_run(folder: Path, results: Sequence[RolloutResult], metric: str = "math", **config: str) -> Path:
    """Store a run with these results."""
    with RunDirectory(folder) as directory:
        directory.open({"mode": "math", "model": "m", "data": "/some/where/tasks.jsonl", **config}, "an identity")
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
    assert (found["pairs"], found["mean_a"], found["mean_b"]) == (2, 0.5, 0.5)
    assert (found["only_a"], found["only_b"], found["unscored_a"], found["unscored_b"]) == (0, 0, 1, 0)
    assert main(["compare", str(b), str(a), "--metric", "f1"]) == 2
    assert "has no scores by 'f1'; it has: math" in capsys.readouterr().err


def test_compare_warns_of_tasks_without_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = [infrastructure(str(number)) for number in range(5)]
    cancelled = RolloutResult("5", 1, RolloutStatus.CANCELLED)
    ours = [*lost, cancelled, scored("6", None), scored("7", 1.0, f1=0.5)]
    a = made_run(tmp_path / "a", ours)
    with sqlite3.connect(a / "journal.sqlite") as database:
        database.execute("DELETE FROM results WHERE task = '4'")
    b = made_run(tmp_path / "b", [scored(str(number), 1.0, f1=0.5) for number in range(9)])
    assert main(["compare", str(a), str(b)]) == 0
    said = capsys.readouterr()
    assert "mean of 1 common task" in said.out
    assert "tasks in only one run: 0 and 1\n" in said.out
    assert said.err.startswith(
        "paragent: without a score in a: 7 of 8 common tasks (endpoint: 4, pending: 1, cancelled: 1, nothing to compare: 1). "
    )
    assert "without a score in b" not in said.err
    assert main(["compare", str(b), str(a), "--metric", "f1"]) == 0
    assert "without a score in a: 7 of 8" in capsys.readouterr().err
    assert main(["compare", str(b), str(b)]) == 0
    assert capsys.readouterr().err == ""


def test_compare_warns_of_different_scorers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made_run(tmp_path / "a", [scored("1", 1.0)])
    b = made_run(tmp_path / "b", [scored("1", 0.0)], metric="llm_judge")
    for more in ([], ["--json"]):
        assert main(["compare", str(a), str(b), *more]) == 0
        assert "different scorers: a by math, b by llm_judge." in capsys.readouterr().err
    for arguments in ([str(a), str(a)], [str(a), str(b), "--metric", "math"]):
        assert main(["compare", *arguments]) == 0
        assert "scorers" not in capsys.readouterr().err


def test_rescore_updates_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored("1", 0.0), failed("2")])
    assert main(["rescore", str(run), "--metric", "exact_match"]) == 0
    assert "exact_match: mean 0.500; 1 answer scored," in capsys.readouterr().out, "the failure counts as 0"
    assert json.loads((run / "summary.json").read_text())["means"] == {"exact_match": 0.5, "math": 0.0}


def test_rescore_names_the_answers_without_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored(str(number), 0.0) for number in range(9)])
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.answer', json('["seven"]')) WHERE id > '2'""")
    assert main(["rescore", str(run), "--metric", "numeric"]) == 0
    assert capsys.readouterr().out == (
        "numeric: mean 1.000; 3 of 9 answers scored, no rollout was executed again\n"
        "  no score for 6 answers: the reference has no number: 3, 4, 5, 6, 7, ...\n"
    )


def unscored(task: str) -> RolloutResult:
    result = RolloutResult(task, 1, RolloutStatus.UNSCORED, kind="scoring", error="the judge did not answer")
    result.answer = "4"
    return result


def test_rescore_completes_answers_whose_scorer_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [scored("1", 0.0), unscored("2"), failed("3")], metric="exact_match")
    assert main(["rescore", str(run), "--metric", "contains"]) == 0
    assert (
        "no exact_match score, which is the main score of the run, for 1 answer, because the scorer failed; "
        f"to try again: paragent rescore {run}\n" in capsys.readouterr().out
    )
    assert json.loads((run / "summary.json").read_text())["measured"] == 2, "another scorer's score does not count"
    assert main(["rescore", str(run), "--metric", "exact_match"]) == 0
    assert "main score" not in capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["mean"], summary["measured"], summary["unscored"]) == (pytest.approx(2 / 3), 3, 0)
    assert (summary["statuses"]["completed"], summary["failures"]) == (2, {"ValueError": 1})
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [(line["status"], line["score"], line["error"]) for line in lines[1:2]] == [("completed", 1.0, "")]


def test_new_scores_of_the_main_scorer_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        {"kind": "judge", "turn": 1, "request": [], "error": "expected JSON"},
        {"kind": "score", "metric": "llm_judge", "note": "the old reason"},
        {"kind": "score", "metric": "math", "note": "the answer was read as 4"},
    ]
    results = [scored(task, 1.0, llm_judge=1.0) for task in ("a", "b")]
    for result in results:
        result.trajectory = pack_trajectory({"messages": [{"role": "user", "content": "?"}], "steps": steps})
    run = made_run(tmp_path / "run", results, metric="llm_judge", judge_model="judge")
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.question', id)""")
    wrong, right = '{"reasoning": "not the same", "correct": false}', '{"reasoning": "same", "correct": true}'
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OpenAIServer(Script(answers={'"question": "b"': wrong}, default=right)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main(["rescore", str(run), "--metric", "llm_judge"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["mean"], summary["means"]["llm_judge"]) == (0.5, 0.5)
    capsys.readouterr()
    assert main(["show", str(run), "--wrong"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if " wrong " in line] == ["b"]
    assert main(["show", str(run), "b"]) == 0
    shown = capsys.readouterr().out
    assert "score 0.000 llm_judge: not the same" in shown
    assert "score 1.000 math: the answer was read as 4" in shown
    assert "the old reason" not in shown
    with Journal(run / "journal.sqlite", read_only=True) as journal:
        [judged] = [step for step in journal.trajectory(2)["steps"] if step["kind"] == "judge"]
    assert judged["metric"] == "llm_judge"
    assert judged["response"]["choices"][0]["message"]["content"] == wrong
    assert main(["show", str(run), "--wrong", "--metric", "math"]) == 0
    assert "no wrong answers" in capsys.readouterr().out
    assert main(["show", str(run), "--metric", "f1"]) == 2
    assert "has no scores by 'f1'; it has: llm_judge, math" in capsys.readouterr().err


def test_rescore_keeps_the_verdicts_of_a_judge_that_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [unscored(task) for task in ("a", "b", "c")]
    run = made_run(tmp_path / "run", results, metric="llm_judge", judge_model="judge")
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.question', id)""")
    verdict = '{"reasoning": "same", "correct": true}'
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OpenAIServer(Script(answers={'"question": "b"': "GRADE: C"}, default=verdict)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main(["rescore", str(run)]) == 0
        said = capsys.readouterr()
        assert "llm_judge: mean 1.000; 2 answers scored" in said.out
        assert "the scorer failed for 1 answer:\n  b: " in said.err
        assert "expected JSON with `correct`, the last was 'GRADE: C'" in said.err
        assert json.loads((run / "summary.json").read_text())["statuses"]["unscored"] == 1
        asked = server.seen.requests
        assert main(["rescore", str(run)]) == 1, "nothing could be scored"
        assert server.seen.requests == asked + 3, "only the unscored answer is judged again"
        assert "llm_judge: no answer could be scored" in capsys.readouterr().out
    with OpenAIServer(Script(default=verdict)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main(["rescore", str(run)]) == 0
    assert "llm_judge: mean 1.000; 1 answer scored" in capsys.readouterr().out
    assert main(["rescore", str(run)]) == 0
    assert capsys.readouterr().out == "llm_judge: no answer needs a score\n"


@pytest.mark.parametrize(
    ("judge", "prices", "counted", "tokens", "judged", "cost"),
    [
        ("m", {"model": {"input": 1e6, "output": 0}}, True, 60, 0, 50.0),
        ("other", {"model": {"input": 1e6, "output": 0}}, False, 0, 0, 0.0),
        ("other", None, True, 60, 60, None),
        ("j", {"model": {"input": 1e6, "output": 0}, "judge": {"input": 2e6, "output": 0}}, True, 60, 60, 100.0),
    ],
)
def test_rescore_counts_the_requests_and_tokens_of_the_judge(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    judge: str,
    prices: dict[str, dict[str, float]] | None,
    counted: bool,
    tokens: int,
    judged: int,
    cost: float | None,
) -> None:
    run = made_run(tmp_path / "run", [scored(task, 0.0) for task in "abc"], judge_model="j")
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.question', id)""")
        if prices:
            database.execute("INSERT INTO meta VALUES (?, ?)", [PRICES, json.dumps(prices)])
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    verdict = {"content": '{"reasoning": "same", "correct": true}', "usage": usage}
    unclear = {"content": "GRADE: C", "usage": usage}
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OpenAIServer(Script(answers={'"question": "b"': unclear}, default=verdict)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        main(["rescore", str(run), "--metric", "llm_judge", "--judge-model", judge])
        assert server.seen.requests == 5
    said = capsys.readouterr().out
    assert f"judge {judge}: 5 requests, 50 tokens in, 10 out" in said
    assert ("not added to the counts of the run, which has no price" in said) is not counted
    summary = json.loads((run / "summary.json").read_text())
    assert summary["requests"] == (5 if counted else 0)
    assert summary["prompt_tokens"] + summary["completion_tokens"] == tokens
    assert summary["judge_prompt_tokens"] + summary["judge_completion_tokens"] == judged
    assert summary["cost"] == cost


def test_rescore_stops_if_the_key_of_the_judge_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", [unscored(str(task)) for task in range(300)], metric="llm_judge")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    verdict = '{"reasoning": "same", "correct": true}'
    with OpenAIServer(Script(default=verdict, faults=[Fault(status=401, first=21)])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main(["rescore", str(run)]) != 0
        assert server.seen.requests < 100
    assert "401" in capsys.readouterr().err
    stored = json.loads((run / "summary.json").read_text())["statuses"]["completed"]
    assert 0 < stored <= 20, "the verdicts before are kept"


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


def test_show_lists_references_and_ends_of_answers_in_the_order_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong, half = scored("a", 1.0), scored("b", 0.0), scored("c", 0.5)
    right.answer = "First, 2 + 2:\n\\[\n2 + 2 = 4\n\\]"
    wrong.answer = f"{'long ' * 20}and the result is 5."
    run = made_run(tmp_path / "run", [right, wrong, half, failed("d")], judge_model="j")
    with sqlite3.connect(run / "journal.sqlite") as database:
        database.execute("""UPDATE tasks SET body = json_set(body, '$.answer', '2 + 2 is' || char(10) || '#### 4')""")
        database.execute("""UPDATE results SET number = 10 - number""")
    assert main(["show", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = {cells[1]: cells[2] for line in lines if len(cells := columns(line)) == 4}
    assert [facts[name] for name in ("data", "model", "scorer", "judge")] == [
        "tasks.jsonl",
        "m",
        "math",
        "j",
    ]
    rows = [cells for line in lines if len(cells := columns(line)) == 10 and cells[1] in "abcd"]
    assert [cells[3] for cells in rows] == ["right", "wrong", "partly right", "failed"]
    assert [cells[7] for cells in rows] == ["#### 4"] * 4
    assert rows[0][8] == "2 + 2 = 4"
    assert rows[1][8].startswith("…")
    assert rows[1][8].endswith("and the result is 5.")
    assert main(["show", str(run), "--wrong"]) == 0
    rows = [cells for line in capsys.readouterr().out.splitlines() if len(cells := columns(line)) == 10]
    assert [cells[1] for cells in rows if cells[1]] == ["b"]


def test_the_summary_says_that_calls_of_lost_workers_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", [scored("1", 1.0)])
    with Journal(run / "journal.sqlite") as journal:
        journal.record([], [], [WorkerEvent("h:1", "lost", 1.0, "killed by signal 9; 4 calls lost")])
    assert main(["show", str(run)]) == 0
    assert "1: killed by signal 9; 4 calls lost and executed again" in capsys.readouterr().out


def test_show_numbers_the_executions_of_a_retried_rollout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = infrastructure("1")
    first.final = False
    run = made_run(tmp_path / "run", [first, scored("1", 1.0)])
    assert main(["show", str(run), "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 attempt 1, execution 1 of 2: infrastructure" in shown
    assert "1 attempt 1, execution 2 of 2: right" in shown


def test_runs_are_listed_by_their_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, metric in (("later", "f1"), ("earlier", "math")):
        made_run(tmp_path / name, [scored("1", 1.0)], metric=metric)
    with sqlite3.connect(tmp_path / "later" / "journal.sqlite") as database:
        database.execute("UPDATE sessions SET started = started + 60")
    assert main(["runs", str(tmp_path)]) == 0
    rows = [cells for line in capsys.readouterr().out.splitlines() if len(cells := columns(line)) > 4]
    assert [(cells[1], cells[5]) for cells in rows] == [("earlier", "math"), ("later", "f1")]


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
    made_run(tmp_path / "results" / "models" / "small" / "third", [scored("1", 1.0)])
    assert main(["runs"]) == 0
    listed = "more runs: `paragent runs results/demo`, `paragent runs results/models/small`\n"
    assert capsys.readouterr().out.endswith(listed)


def test_show_prints_how_many_results_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", [*(scored(str(number), 1.0) for number in range(30)), failed("last")])
    assert main(["show", str(run)]) == 0
    assert "11 more; show all with --limit 31" in capsys.readouterr().out
    assert main(["show", str(run), "--status", "failed"]) == 0
    assert "more" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["show", str(run), "--status", "faild"])
    assert "'faild' is not one of completed, failed" in capsys.readouterr().err


def test_show_says_that_no_answer_is_wrong_and_how_to_list_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run", [scored("1", 1.0), failed("2"), failed("3"), infrastructure("4")])
    assert main(["show", str(run), "--wrong"]) == 0
    assert capsys.readouterr().out.endswith(
        "┘\nno wrong answers\n"
        f"2 failed; list them: paragent show {run} --status failed\n"
        f"1 infrastructure; list them: paragent show {run} --status infrastructure\n"
    )
    assert main(["show", str(run), "--cut"]) == 0
    assert capsys.readouterr().out.endswith("┘\nno cut replies\n")
    assert main(["show", str(run), "--status", "timed out"]) == 0
    assert capsys.readouterr().out.endswith("┘\nno results with the status timed out\n")


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
    assert re.fullmatch(r"1\d Nov 2023, \d\d:\d\d", rows["good"][0])
    assert rows["good"][1:8] == ["m", "tasks.jsonl", "math", "2/2", "0.500", "1", "1"]
    assert rows["wrong-key"][1:8] == ["m", "tasks.jsonl", "math", "0/1", "none", "1", "0"]


def test_runs_has_each_run_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = scored("1", 1.0)
    result.prompt_tokens, result.completion_tokens = 24_100, 3_820
    made_run(tmp_path / "gsm8k-gpt-4.1-mini", [result], model="gpt-4.1-mini-2025-04-14", data="gsm8k_sample.jsonl")
    assert main(["runs", str(tmp_path)]) == 0
    [heading, row] = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\brun\b|gsm8k", line)]
    assert "cut" not in heading
    assert columns(row)[1:5:2] == ["gsm8k-gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"]
    assert "27.9K" in columns(row)


def test_show_says_why_a_run_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "the first 10 rollouts all failed with the same error: ValueError"
    for name, last, shown in (("stopped", infrastructure("2"), True), ("complete", scored("2", 1.0), False)):
        run = made_run(tmp_path / name, [failed("1"), last])
        with RunDirectory(run) as directory:
            directory.open_existing()
            directory.journal.set_meta(STOPPED, reason)
        assert main(["show", str(run)]) == 0
        assert ("stopped early: the first 10 rollouts all failed" in capsys.readouterr().out) is shown


def test_show_fits_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = failed("a-rather-long-name")
    error.error = f"{error.error}\nTraceback (most recent call last):\n  File 'agent.py'"
    run = made_run(tmp_path / "run", [error])
    assert main(["show", str(run)]) == 0
    wide = capsys.readouterr().out
    assert "question" in wide
    assert "Traceback" not in wide
    monkeypatch.setattr("paragent.cli.runs.console", lambda: safe_console(width=80))
    assert main(["show", str(run)]) == 0
    narrow = capsys.readouterr().out
    assert "question" not in narrow
    assert "a-rather-long-name" in narrow
    assert "reference" in narrow


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the terminal of the commands 80 columns wide."""
    monkeypatch.setattr("paragent.cli.runs.console", lambda: safe_console(width=80))


def long_names() -> list[RolloutResult]:
    right, wrong = scored("cac33a60bcdb", 1.0), scored("cac9d1e2f3a4", 0.0)
    right.answer = "The books cost 678 * 2 = 1356 dollars, so the answer is 1356."
    lost = RolloutResult("0ff477558a62", 1, RolloutStatus.INFRASTRUCTURE, kind="endpoint", error="HTTP 503 " * 9)
    return [right, wrong, lost]


@pytest.mark.usefixtures("narrow")
def test_narrow_tables_cut_no_name_and_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made_run(tmp_path / "gsm-garbage-before", long_names(), model="gpt-4.1-mini-2025-04-14")
    b = made_run(tmp_path / "gsm-garbage", [scored("cac33a60bcdb", 0.0), scored("cac9d1e2f3a4", 1.0)])
    assert main(["runs", str(tmp_path)]) == 0
    rows = [columns(line) for line in capsys.readouterr().out.splitlines()]
    for name, score in ((a.name, "0.500"), (b.name, "0.500")):
        assert any(name in row and score in row for row in rows)
    assert main(["show", str(a)]) == 0
    shown = capsys.readouterr().out
    rows = [columns(line) for line in shown.splitlines()]
    for cells in (["cac33a60bcdb", "right", "1.000"], ["cac9d1e2f3a4", "wrong", "0.000"], ["0ff477558a62"]):
        assert any(row[1 : 1 + len(cells)] == cells for row in rows)
    assert any("infrastructure" in row and "0ff477558a62" in row for row in rows)
    assert main(["compare", str(a), str(b)]) == 0
    compared = capsys.readouterr().out
    rows = [columns(line) for line in compared.splitlines()]
    assert any(row[1:5] == ["worse cac33a60bcdb", "1.000", "0.000", "-1.000"] for row in rows)
    assert any(row[1:5] == ["mean of 2 common tasks", "0.500", "0.500", "+0.000"] for row in rows)
    assert "…" not in compared
    assert max(map(len, compared.splitlines())) <= 80


@pytest.mark.usefixtures("narrow")
def test_a_very_long_id_is_broken_and_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "0123456789" * 12
    run = made_run(tmp_path / "run", [scored(name, 1.0)])
    assert main(["show", str(run)]) == 0
    rows = [columns(line) for line in capsys.readouterr().out.splitlines()]
    assert name in "".join(row[1] for row in rows if len(row) > 5)
    assert any("right" in row and "1.000" in row for row in rows)


def test_show_finds_a_task_by_the_beginning_of_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = scored("cac33a60bcdb", 0.0)
    second.attempt = 2
    run = made_run(tmp_path / "run", [*long_names(), second, scored("0f", 1.0)])
    assert main(["show", str(run), "cac3"]) == 0
    assert capsys.readouterr().out.startswith("cac33a60bcdb attempt 1")
    assert main(["show", str(run), "cac3#2"]) == 0
    assert capsys.readouterr().out.startswith("cac33a60bcdb attempt 2")
    assert main(["show", str(run), "0f"]) == 0
    assert capsys.readouterr().out.startswith("0f attempt 1"), "a whole id counts before beginnings"
    assert main(["show", str(run), "cac"]) == 2
    assert "2 tasks begin with 'cac': cac33a60bcdb, cac9d1e2f3a4; type" in capsys.readouterr().err
    assert main(["show", str(run), "cac3", "--attempt", "3"]) == 2
    assert "no result for attempt 3 at task 'cac33a60bcdb'" in capsys.readouterr().err


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


def test_scores_are_rounded_as_on_the_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = made_run(tmp_path / "a", [scored("1", 0.2375)])
    b = made_run(tmp_path / "b", [scored("1", 0.0)])
    for command in (["show", str(a)], ["show", str(a), "1"], ["runs", str(tmp_path)], ["compare", str(a), str(b)]):
        assert main(command) == 0
        shown = capsys.readouterr().out
        assert "0.238" in shown
        assert "0.237" not in shown


def test_a_scorer_that_measured_other_results_has_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [scored("1", 1.0, numeric=1.0), scored("2", 0.0, f1=0.5), scored("3", 1.0, f1=0.5), failed("4")]
    run = made_run(tmp_path / "run", results)
    assert main(["show", str(run)]) == 0
    rows = {cells[1]: cells[2] for line in capsys.readouterr().out.splitlines() if len(cells := columns(line)) > 3}
    assert (rows["math"], rows["numeric"], rows["f1"]) == ("0.500", "0.500 (2 measured)", "0.333 (3 measured)")
    assert main(["rescore", str(run), "--metric", "contains"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["measured_by"] == {"contains": 4, "f1": 3, "math": 4, "numeric": 2}


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


def test_texts_keep_backslashes_before_brackets_and_names_of_emoji(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = r"\[ 128 - 1 = 127 \], a \[b] and :key:"
    result = scored("1", 1.0)
    result.answer = text
    run = made_run(tmp_path / "run", [result])
    for arguments in ([str(run)], [str(run), "1"]):
        assert main(["show", *arguments]) == 0
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("context", ["{}", "[bold]{}[/]", "[red]x[/] {} y"])
def test_escaped_texts_are_displayed_unchanged(context: str) -> None:
    texts = ["".join(letters) for size in range(6) for letters in itertools.product("\\[a]/", repeat=size)]
    for text in texts:
        expected = Text.from_markup(context).plain.format(text)
        assert Text.from_markup(context.format(escape(text))).plain == expected


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
    assert shown.startswith("1 attempt 2: wrong, score 0.000")
    assert "assistant It is 5.\nscore 0.000" in shown, "the answer is the last message"
    assert main(["show", str(run), "1#3"]) == 2
    assert "no result for attempt 3 at task '1'" in capsys.readouterr().err


def test_import_of_another_file_names_what_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    assert main(["import", str(tmp_path / "tasks.jsonl"), "--output-dir", str(tmp_path)]) == 2
    assert "name ATIF trajectories (.json), logs of inspect (.eval, .json)" in capsys.readouterr().err
