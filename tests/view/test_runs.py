"""The list of runs, the page of a run, the table of rollouts, the comparison."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from paragent.store import JOURNAL_FILE, Journal, summarise
from paragent.tasks import BenchmarkTask
from paragent.view.api import RolloutRows
from tests.view.recorded import journal_of, result, serving, write_run
from tests.waiting import wait_until

VERSION_3 = Path(__file__).parents[1] / "store" / "version_3.sql"


def rows_of(client: httpx.Client, query: str = "") -> list[dict[str, Any]]:
    """Return the table as one dictionary for each rollout."""
    columns = client.get(f"/api/runs/one/rollouts{query}").json()
    names = [field.name for field in dataclasses.fields(RolloutRows) if field.name not in {"next", "last"}]
    assert set(columns) == {*names, "next", "last"}
    return [dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True)]


def test_the_list_has_the_figures_of_each_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    results = [
        result("a", score=1.0, prompt_tokens=10, completion_tokens=5),
        result("b", score=0.0, ending="answer cut"),
        result("c", status="failed", kind="ValueError", error="ValueError: 7"),
        result("d", status="infrastructure", kind="endpoint", error="HTTP 503"),
    ]
    write_run(folder, "one", results, tasks=list("abcde"))
    with serving(folder) as (_, client):
        [row] = client.get("/api/runs").json()["runs"]
    assert (row["name"], row["mode"], row["model"], row["engine"]) == ("one", "math", "demo", "local")
    assert (row["state"], row["total"], row["done"], row["measured"]) == ("stopped", 5, 3, 3)
    assert row["score"] == pytest.approx(1 / 3), "the infrastructure failure is not measured"
    assert (row["score_of_all"], row["cut"]) == (pytest.approx(1 / 5), 1)
    assert (row["statuses"]["failed"], row["statuses"]["infrastructure"]) == (1, 1)
    assert row["tokens"] == 15
    with Journal(folder / "one" / JOURNAL_FILE, read_only=True) as journal:
        assert row["interval"] == list(summarise(journal, 1).interval or ()), "the same numbers as in the terminal"


def test_the_list_names_data_scorer_and_judge_and_counts_wrong_answers(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    results = [result("a", score=1.0), result("b", score=0.0), result("c", score=0.5), result("d")]
    results.append(result("e", status="failed", kind="ValueError", error="ValueError: 7", score=0.0))
    for name, config in {
        "own": {"data": "/some/where/gsm8k.jsonl", "judge_model": None, "model": "m"},
        "other": {"data": "hf:openai/gsm8k/main:test", "judge_model": "j", "model": "m"},
    }.items():
        path = write_run(folder, name, results)
        (path / "config.json").write_text(json.dumps(config))
        with journal_of(path) as journal:
            journal.set_meta("metric", "llm_judge")
    with serving(folder) as (_, client):
        rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert [rows["own"][name] for name in ("data", "metric", "judge")] == ["gsm8k.jsonl", "llm_judge", "m"]
    assert [rows["other"][name] for name in ("data", "judge")] == ["hf:openai/gsm8k/main:test", "j"]
    assert rows["own"]["verdicts"] == {"right": 1, "partly right": 1, "wrong": 1}


def test_the_list_names_the_folders_below_that_contain_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder, "one", [result("a", score=1.0)])
    for below in ("demo", "2026/may", "one/images"):  # the last one is part of a run
        write_run(folder / below, "two", [result("a", score=1.0)])
    with serving(folder) as (_, client):
        listed = client.get("/api/runs").json()
    assert ([row["name"] for row in listed["runs"]], listed["below"]) == (["one"], ["2026/may", "demo"])


def test_the_table_has_the_references(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [])
    answers = {"text": "2", "number": 7, "several": ["a", "b"], "long": "x" * 500 + "\n#### 72", "none": None}
    with journal_of(path) as journal:
        journal.add_tasks([BenchmarkTask(name, "?", answer=answer) for name, answer in answers.items()])
    with serving(path.parent) as (_, client):
        found = {row["task"]: row["reference"] for row in rows_of(client)}
    assert found.pop("long").endswith("x\n#### 72")
    assert found == {"text": "2", "number": "7", "several": "a | b", "none": ""}


def test_a_damaged_journal_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder, "good", [result("a", score=1.0)])
    for name, content in {"text": b"not a database", "empty": b"", "cut": None}.items():
        path = write_run(folder, name, [result(f"t{n}") for n in range(50)])
        journal = path / JOURNAL_FILE
        journal.write_bytes(journal.read_bytes()[:5000] if content is None else content)
        (path / "summary.json").unlink()
    with serving(folder) as (_, client):
        states = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
        assert states["good"]["state"] == "complete"
        for name in ("text", "empty", "cut"):
            assert states[name]["state"] == "unreadable"
            assert states[name]["problem"]
            for route in ("", "/rollouts", "/timeline", "/executions/1", "/search?q=a"):
                answer = client.get(f"/api/runs/{name}{route}")
                assert answer.status_code == 503, route
                assert answer.json()["error"]
        assert client.get("/api/runs/good").status_code == 200


def test_a_journal_of_version_3_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "old"
    path.mkdir(parents=True)
    with sqlite3.connect(path / JOURNAL_FILE) as db:
        db.executescript(VERSION_3.read_text())
    db.close()
    with serving(path.parent) as (_, client):
        [row] = client.get("/api/runs").json()["runs"]
        assert row["state"] == "complete"
        detail = client.get("/api/runs/old/executions/1").json()
        assert detail["steps"]
        assert detail["activity"] == []
        assert client.get("/api/runs/old/rollouts").json()["number"]
        assert client.get("/api/runs/old/timeline").json()["tracks"] == []


def test_runs_that_appear_change_and_vanish_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    path = write_run(folder, "one", [result("a", score=1.0)], tasks=["a", "b"])
    with serving(folder) as (_, client):
        assert client.get("/api/runs/one").json()["pending"] == 1
        with journal_of(path) as journal:
            journal.record([result("b", score=0.0)])
        wait_until(lambda: client.get("/api/runs/one").json()["pending"] == 0, 10)  # not computed at each request
        path.rename(folder / "one~1")
        write_run(folder, "one", [result("x", score=0.5)])
        wait_until(lambda: client.get("/api/runs/one").json()["row"]["score"] == 0.5, 10)
        assert {row["name"] for row in client.get("/api/runs").json()["runs"]} == {"one", "one~1"}
        shutil.rmtree(path)
        assert client.get("/api/runs/one").status_code == 404


def test_a_run_that_is_being_written_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [], tasks=[f"t{n}" for n in range(30)])
    with journal_of(path) as journal, serving(path.parent) as (_, client):
        for number in range(30):
            journal.record([result(f"t{number}", score=1.0)])
            assert client.get("/api/runs/one/rollouts").json()["last"] == number + 1
        wait_until(lambda: client.get("/api/runs/one").json()["row"]["state"] == "complete", 10)


def test_failures_are_grouped_by_party_and_message(tmp_path: Path) -> None:
    results = [
        result("a", status="infrastructure", final=False, kind="endpoint", error="HTTP 503 after 2 s\nmore"),
        result("a", status="infrastructure", kind="endpoint", error="HTTP 503 after 31 s"),
        result("b", status="failed", kind="KeyError", error="KeyError: 'x'"),
        result("c", status="failed", kind="KeyError", error='KeyError: "y"', started=2_000_000_000.0),
        result("d", status="timed out", kind="time limit", error="worked longer than 5 s"),
        result("e", score=1.0),
        result("f", status="infrastructure", final=False, kind="request", error="HTTP 500"),
        result("f", status="failed", kind="request", error="HTTP 500"),
    ]
    write_run(tmp_path / "runs", "one", results)
    with serving(tmp_path / "runs") as (_, client):
        groups = client.get("/api/runs/one").json()["failures"]
    found = [(one["party"], one["kind"], one["message"], one["count"], one["final"]) for one in groups]
    assert found == [
        ("endpoint", "endpoint", "HTTP … after … s", 2, 1),
        ("agent", "KeyError", "KeyError: …", 2, 2),
        ("agent", "request", "HTTP …", 1, 1),
        ("endpoint", "request", "HTTP …", 1, 0),
        ("agent", "time limit", "worked longer than … s", 1, 1),
    ]
    assert (groups[1]["example"]["task"], groups[1]["example_message"]) == ("c", 'KeyError: "y"')
    assert groups[0]["example_message"] == "HTTP 503 after 31 s"
    assert groups[1]["last"] - groups[1]["first"] == pytest.approx(200_000_000.0)


def test_the_page_of_a_run_says_why_it_stopped(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [result("a", status="failed", kind="KeyError")], tasks=["a", "b"])
    with journal_of(path) as journal, serving(path.parent) as (_, client):
        assert client.get("/api/runs/one").json()["stopped"] == ""
        journal.set_meta("stopped", "interrupted")
        assert client.get("/api/runs/one").json()["stopped"] == "interrupted"
        journal.record([result("b", score=1.0)])
        wait_until(lambda: client.get("/api/runs/one").json()["stopped"] == "", 10)


def test_a_rollout_is_pending_in_the_table_until_it_has_a_final_result(tmp_path: Path) -> None:
    results = [
        result("b", status="infrastructure", final=False, kind="endpoint", error="one"),
        result("b", score=1.0, answer="two\nlines", prompt_tokens=3, completion_tokens=4),
        result("a", attempt=2, status="infrastructure", final=False, kind="machine", error="gone", prompt_tokens=None),
    ]
    write_run(tmp_path / "runs", "one", results, tasks=["a", "b"], attempts=2)
    with serving(tmp_path / "runs") as (_, client):
        rows = rows_of(client)
    assert [(row["task"], row["attempt"], row["status"], row["executions"]) for row in rows] == [
        ("a", 1, "pending", 0),
        ("a", 2, "pending", 1),
        ("b", 1, "completed", 2),
        ("b", 2, "pending", 0),
    ]
    assert rows[0]["number"] is None
    assert (rows[2]["number"], rows[2]["tokens"], rows[2]["question"]) == (2, 7, "What is b?")
    assert (rows[1]["error"], rows[1]["tokens"]) == ("gone", None)


def test_the_table_is_read_in_chunks_and_by_changes(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [result(f"t{n}") for n in range(5)], attempts=2)
    with serving(tmp_path / "runs") as (_, client):
        seen: list[tuple[str, int]] = []
        after: int | None = 0
        while after is not None:
            chunk = client.get(f"/api/runs/one/rollouts?after={after}&limit=4").json()
            assert len(chunk["task"]) <= 4
            seen += list(zip(chunk["task"], chunk["attempt"], strict=True))
            after = chunk["next"]
        assert seen == [(f"t{n}", attempt) for n in range(5) for attempt in (1, 2)]
        assert rows_of(client, "?since=5") == []
        with journal_of(path) as journal:
            journal.record([result("t3", attempt=2, score=1.0), result("t1", attempt=2)])
        changed = rows_of(client, "?since=5")
        assert [(row["task"], row["attempt"]) for row in changed] == [("t1", 2), ("t3", 2)]
        assert client.get("/api/runs/one/rollouts?since=5&limit=1").json()["last"] == 6
        for query in ("after=x", "limit=-1", "since=1.5", "after=99999999999999999999"):
            assert client.get(f"/api/runs/one/rollouts?{query}").status_code == 400


def test_texts_of_all_kinds_arrive_unchanged(tmp_path: Path) -> None:
    texts = [
        '"quoted" \\ \t \x1b[31m \x07',
        "\u2028 \U0001f600 é",
        "<script>alert(1)</script>",
        "x" * 10_000_000,
        "\ud800",
    ]
    write_run(tmp_path / "runs", "one", [result(f"t{n}", answer=text) for n, text in enumerate(texts)])
    with serving(tmp_path / "runs") as (_, client):
        answers = [row["answer"] for row in rows_of(client)]
    assert answers[:3] == texts[:3]
    assert answers[3] == f"{'x' * 120} … {'x' * 80}"
    assert answers[4] == "\ufffd"


def test_a_task_without_a_score_is_not_a_task_of_one_run(tmp_path: Path) -> None:
    for name, score in (("one", 1.0), ("two", None)):
        write_run(tmp_path / "runs", name, [result("a", score=1.0), result("b", score=score)])
    with serving(tmp_path / "runs") as (_, client):
        [difference] = client.get("/api/compare?runs=one,two").json()["differences"]
    assert (difference["pairs"], difference["only_here"], difference["only_baseline"]) == (1, 0, 0)


def test_runs_are_compared_with_the_first_one(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name, scores in {
        "one": {"a": 0.0, "b": 1.0, "c": 1.0},
        "two": {"a": 1.0, "b": 1.0, "d": 0.0},
        "x": {"z": 1.0},
    }.items():
        write_run(folder, name, [result(task, score=score) for task, score in scores.items()])
    with serving(folder) as (_, client):
        found = client.get("/api/compare?runs=one,two").json()
        assert [row["name"] for row in found["runs"]] == ["one", "two"]
        [difference] = found["differences"]
        assert (difference["run"], difference["pairs"], difference["difference"]) == ("two", 2, 0.5)
        assert (difference["better"], difference["worse"]) == (1, 0)
        assert (difference["only_here"], difference["only_baseline"]) == (1, 1)
        [flip] = found["flips"]
        assert flip == {
            "task": "a",
            "question": "What is a?",
            "scores": [0.0, 1.0],
            "executions": [1, 1],
            "ids": ["a", "a"],
        }
        assert found["common"] == 2
        three = client.get("/api/compare?runs=one&runs=two&runs=x").json()
        assert [one["run"] for one in three["differences"]] == ["two"]
        assert three["common"] == 0
        for query in ("", "?runs=one", "?runs=" + ",".join(["one"] * 30)):
            assert client.get(f"/api/compare{query}").status_code == 400
        assert client.get("/api/compare?runs=one,none").status_code == 404
        assert client.get("/api/compare?runs=one,..").status_code == 404
