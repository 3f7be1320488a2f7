"""The statistics of a run: what is measured, means, intervals, pass@k, messages of failures."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.store import PRICES, Journal, RolloutResult, RolloutStatus, Summary, summarise
from paragent.store.summary import mean_interval, pass_at
from paragent.tasks import BenchmarkTask

TASKS = ["a", "b", "c", "d"]


def result(task: str, attempt: int = 1, status: str = "completed", **more: Any) -> RolloutResult:
    return RolloutResult(task, attempt, RolloutStatus(status), **more)


def summary_of(path: Path, results: list[RolloutResult], tasks: list[str] = TASKS, attempts: int = 1) -> Summary:
    with Journal(path / f"{len(list(path.iterdir()))}.sqlite") as journal:
        journal.add_tasks([BenchmarkTask(name, "?", "42") for name in tasks])
        journal.record(results)
        return summarise(journal, attempts)


def scores(values: list[float]) -> list[RolloutResult]:
    return [result(str(number), score=value) for number, value in enumerate(values)]


def interval_of(values: list[float], path: Path) -> tuple[float, float]:
    interval = summary_of(path, scores(values), [str(number) for number in range(len(values))]).interval
    assert interval is not None
    return interval


@pytest.mark.parametrize("status", RolloutStatus)
def test_only_results_that_say_something_about_the_agent_are_measured(status: RolloutStatus, tmp_path: Path) -> None:
    kind = "" if status is RolloutStatus.COMPLETED else "some kind"
    other = result("b", status=status, score=0.0 if status is RolloutStatus.COMPLETED else None, kind=kind)
    summary = summary_of(tmp_path, [result("a", score=1.0), other])
    assert summary.measured == 1 + status.measured == 1 + other.is_measured
    assert summary.mean == 1.0 / summary.measured
    assert summary.mean_of_all == 1.0 / 4, "everything else counts as 0"
    assert summary.done == summary.rollouts - summary.pending == 2 - (status is RolloutStatus.INFRASTRUCTURE)


def test_a_run_that_measured_nothing_has_no_score(tmp_path: Path) -> None:
    unmeasured = [status for status in RolloutStatus if not status.measured]
    results = [result(task, status=status, kind="k") for task, status in zip(TASKS, unmeasured, strict=False)]
    summary = summary_of(tmp_path, results, attempts=2)
    assert (summary.mean, summary.mean_of_all, summary.interval, summary.measured) == (None, None, None, 0)
    assert (summary.pass_at, summary.means, summary.scored) == ({}, {}, 0)
    assert (summary.done, summary.pending, summary.rollouts) == (2, 6, 8)


def test_cost_is_unknown_without_prices_and_tokens(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks([BenchmarkTask("a", "?")])
        journal.record([result("a", score=1.0, prompt_tokens=10, completion_tokens=5, final=False)])
        assert summarise(journal, 1).cost is None, "unknown without prices, not 0"
        journal.set_meta(PRICES, '{"model": {"input": 2.0, "output": 4.0}}')
        assert summarise(journal, 1).cost == pytest.approx((10 * 2 + 5 * 4) / 1e6)
        journal.record([result("a", score=1.0, prompt_tokens=None)])
        summary = summarise(journal, 1)
        assert (summary.cost, summary.prompt_tokens, summary.executions) == (None, None, 2)


def test_unscored_counts_answers_that_should_have_a_score(tmp_path: Path) -> None:
    with Journal(tmp_path / "references") as journal:
        journal.add_tasks([BenchmarkTask(name, "?", "42") for name in TASKS])
        journal.record([result("a"), result("b", score=0.0), result("c", status="failed")])
        assert summarise(journal, 1).unscored == 1
        journal.record([result("d", status="unscored", kind="scoring")])
        assert summarise(journal, 1).unscored == 2
    with Journal(tmp_path / "none") as journal:
        journal.add_tasks([BenchmarkTask(name, "?", None) for name in TASKS])
        journal.add_tasks([BenchmarkTask("e", "?", [])])
        journal.record([result("a"), result("e")])
        assert summarise(journal, 1).unscored == 0, "nothing can be scored"
        journal.record([result("b", score=1.0)])
        assert summarise(journal, 1).unscored == 2, "other results have a score"


def test_means_of_scorers_count_failures_of_the_agent_as_zero(tmp_path: Path) -> None:
    results = [
        result("a", score=1.0, scores={"math": 1.0, "judge": 0.5}),
        result("b", score=1.0, scores={"math": 1.0, "judge": None}),
        result("c", status="failed", kind="ValueError"),
        result("d", status="infrastructure", kind="endpoint"),
    ]
    summary = summary_of(tmp_path, results)
    assert summary.means == {"judge": 0.25, "math": pytest.approx(2 / 3)}
    assert summary.means["math"] == summary.mean


def test_cut_replies_are_counted(tmp_path: Path) -> None:
    endings = ["answered", "answer cut", "context full", "turns used up"]
    results = [result(task, score=0.0, ending=ending) for task, ending in zip(TASKS, endings, strict=True)]
    assert summary_of(tmp_path, results).cut == 2


def test_each_different_message_of_a_kind_is_reported(tmp_path: Path) -> None:
    errors = [
        "ProgramFailed: killed by SIGKILL",
        "ProgramFailed: cannot parse item 3",
        "ProgramFailed: cannot parse item 4",
    ]
    results = [
        result(task, status="failed", kind="exit code", error=error) for task, error in zip(TASKS, errors, strict=False)
    ]
    summary = summary_of(
        tmp_path, [*results, result("d", status="failed", kind="KeyError", error="KeyError: 'x'\nmore")]
    )
    assert summary.failures == {"exit code": 3, "KeyError": 1}
    assert summary.reasons == {"exit code": {"cannot parse item 4": 2, "killed by SIGKILL": 1}, "KeyError": {"'x'": 1}}


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "tasks", "interval"),
    [(24, 24, (0.8620, 1.0)), (0, 24, (0.0, 0.1380)), (5, 10, (0.2366, 0.7634)), (1, 1, (0.2065, 1.0))],
)
def test_right_and_wrong_answers_have_the_interval_of_wilson(
    right: int, tasks: int, interval: tuple[float, float], tmp_path: Path
) -> None:
    assert interval_of([1.0] * right + [0.0] * (tasks - right), tmp_path) == pytest.approx(interval, abs=1e-4)


def test_repeated_identical_attempts_do_not_narrow_the_interval(tmp_path: Path) -> None:
    once = [float(number % 5 == 0) for number in range(50)]
    tasks = [str(number) for number in range(50)]
    four = [result(str(number), n, score=score) for number, score in enumerate(once) for n in range(1, 5)]
    assert summary_of(tmp_path, four, tasks, 4).interval == pytest.approx(interval_of(once, tmp_path))


def test_partial_scores_narrow_the_interval(tmp_path: Path) -> None:
    extremes, partial = interval_of([0.0, 1.0] * 20, tmp_path), interval_of([0.4, 0.6] * 20, tmp_path)
    assert partial[1] - partial[0] < (extremes[1] - extremes[0]) / 3


def test_scores_outside_of_0_and_1_widen_the_scale(tmp_path: Path) -> None:
    low, high = interval_of([10.0] * 10, tmp_path)
    assert low == pytest.approx(10 * interval_of([1.0] * 10, tmp_path)[0])
    assert high == 10.0
    assert interval_of([-1.0, 0.0, 1.0], tmp_path)[0] < 0


@given(st.lists(st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=40))
def test_an_interval_contains_the_mean_and_is_never_a_point(values: list[float]) -> None:
    mean = sum(values) / len(values)
    deviations = sum((value - mean) ** 2 for value in values)
    low, high = mean_interval(mean, deviations, len(values), (0.0, 1.0))
    assert -1e-12 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1.0 + 1e-12
    assert high - low > 1 / (2 * len(values) + 10) ** 2


@pytest.mark.parametrize(
    ("draw", "true"),
    [
        pytest.param(lambda source: float(source.random() < 0.9), 0.9, id="right or wrong"),
        pytest.param(lambda source: source.betavariate(2, 2), 0.5, id="partial scores"),
        pytest.param(
            lambda source: sum(source.random() < chance for chance in [source.betavariate(0.5, 0.5)] * 4) / 4,
            0.5,
            id="four attempts",
        ),
    ],
)
def test_about_95_of_100_intervals_contain_the_true_mean(draw: Any, true: float) -> None:
    source = random.Random(1)
    covered = 0
    for _ in range(1000):
        values = [draw(source) for _ in range(24)]
        mean = sum(values) / 24
        low, high = mean_interval(mean, sum((value - mean) ** 2 for value in values), 24, (0.0, 1.0))
        covered += low <= true <= high
    assert 925 <= covered <= 985


# --- pass@k -----------------------------------------------------------------------------------------------------------


def test_pass_at_k() -> None:
    assert pass_at(1, 4, 1) == pytest.approx(0.25)
    assert pass_at(2, 4, 1) == pytest.approx(0.5)
    assert pass_at(4, 4, 1) == 1.0
    assert pass_at(3, 4, 0) == 0.0


def test_pass_at_k_counts_tasks_whose_attempts_were_all_measured_and_full_scores(tmp_path: Path) -> None:
    results = [
        result("a", 1, score=1.0),
        result("a", 2, score=0.9),
        result("b", 1, score=0.5),
        result("b", 2, "timed out", kind="time limit"),
        result("c", 1, score=1.0),
        result("d", 1, score=1.0),
        result("d", 2, "infrastructure", kind="endpoint"),
    ]
    assert summary_of(tmp_path, results, attempts=2).pass_at == {1: pytest.approx(0.25), 2: pytest.approx(0.5)}
