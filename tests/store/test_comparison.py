"""Comparison of runs: which tasks are the same, and paired differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from paragent.store import Journal, RolloutResult, RolloutStatus, compare, match_tasks, task_scores
from paragent.tasks import BenchmarkTask, content_digest


def test_compare_pairs_scores_by_task() -> None:
    found = compare({"b": 0.0, "a": 1.0, "c": 0.0}, {"a": 1.0, "b": 1.0, "d": 1.0})
    assert found is not None
    assert (found.pairs, found.difference, found.better, found.worse) == (2, 0.5, [("b", 0.0, 1.0)], [])
    assert (found.only_a, found.only_b) == (1, 1)
    assert compare({"a": 1.0}, {"b": 1.0}) is None


def test_two_runs_without_a_mistake_are_not_certainly_equal() -> None:
    perfect = {str(number): 1.0 for number in range(24)}
    found = compare(perfect, perfect)
    assert found is not None
    assert found.difference == 0.0
    assert found.interval == pytest.approx((-0.080, 0.080), abs=0.001)


def test_the_interval_of_many_pairs_is_the_usual_one() -> None:
    a = {str(number): float(number % 2) for number in range(400)}
    b = {task: 1.0 if int(task) % 5 == 0 else score for task, score in a.items()}
    found = compare(a, b)
    assert found is not None
    assert found.difference == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.1 - 1.96 * 0.015, 0.1 + 1.96 * 0.015), abs=0.002)


def test_the_same_id_of_different_benchmarks_is_another_task() -> None:
    maths = [BenchmarkTask("item_1", "2 + 2?", "4"), BenchmarkTask("item_2", "1 + 1?", "2")]
    dates = [BenchmarkTask("item_1", "Which day was it?", "(A)")]
    first, second = match_tasks([maths, dates])
    assert first == {"item_1": "item_1", "item_2": "item_2"}
    assert second == {"item_1": "item_1~2"}


def test_the_same_content_with_other_ids_is_the_same_task() -> None:
    ours = [BenchmarkTask("item_1", "2 + 2?", "4"), BenchmarkTask("item_2", "1 + 1?", 2)]
    theirs = [BenchmarkTask("1", "1 + 1? ", ["2"]), BenchmarkTask("2", "2 +\n2?", "4")]
    assert match_tasks([ours, theirs])[1] == {"1": "item_2", "2": "item_1"}


def test_equal_tasks_are_paired_by_id_and_else_in_order() -> None:
    seeds = [BenchmarkTask(name, "Play.", None, {"seed": name}) for name in "abc"]
    assert match_tasks([seeds, [seeds[2], seeds[0]]])[1] == {"c": "c", "a": "a"}
    renamed = [BenchmarkTask(name, "Play.") for name in "xyz"]
    assert match_tasks([seeds, renamed])[1] == {"x": "a", "y": "b", "z": "c"}


def test_a_question_with_another_form_of_its_answer_is_the_same_task_if_it_is_unique() -> None:
    ours = [BenchmarkTask("a", "How many?", "So 7 * 2 = 14.\n#### 14"), BenchmarkTask("b", "Who?", "I")]
    theirs = [
        BenchmarkTask("1", "How many?", "14"),
        BenchmarkTask("2", "Who?", "me"),
        BenchmarkTask("3", "Who?", "you"),
    ]
    assert match_tasks([ours, theirs])[1] == {"1": "a", "2": "2", "3": "3"}


def test_choices_and_images_belong_to_the_content() -> None:
    tasks = [BenchmarkTask("a", "Which?", "A", more) for more in ({}, {"choices": ["x", "y"]}, {"choices": ["y", "x"]})]
    assert len({content_digest(task) for task in tasks}) == 3
    assert content_digest(tasks[0]) == content_digest(BenchmarkTask("b", "Which?", "A", {"level": 3}))


def test_scores_of_tasks_count_what_is_measured_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    def result(task: str, attempt: int, status: str, score: float | None = None) -> RolloutResult:
        scores = {"math": score} if score is not None else {}
        return RolloutResult(task, attempt, RolloutStatus(status), score=score, scores=dict(scores))

    with Journal(tmp_path / "j") as journal:
        journal.add_tasks([BenchmarkTask(task, "?") for task in ("z", "b", "c", "a", "d")])
        journal.record([result("a", 1, "completed", 1.0), result("a", 2, "failed"), result("b", 1, "infrastructure")])
        journal.record([result("c", 1, "unscored"), result("z", 1, "timed out"), result("z", 2, "cancelled")])
        expected = {"z": 0.0, "a": 0.5}
        assert list(task_scores(journal).items()) == list(expected.items())
        assert task_scores(journal, "math") == expected
