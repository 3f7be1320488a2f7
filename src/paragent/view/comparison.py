"""Comparison of runs: paired differences from the first run, and the tasks whose scores differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.store import compare, task_scores
from paragent.view.api import Flip, PairedDifference, RunComparison

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.store import Journal
    from paragent.view.runs import StoredRun

__all__ = ["MOST_RUNS", "compare_runs"]

MOST_RUNS = 20
_MOST_FLIPS = 5_000
_CHANGE = 1e-9
"""The smallest difference of two scores that counts as a change."""
_TEXT = 200


def compare_runs(runs: Sequence[StoredRun]) -> RunComparison:
    """Compare runs with the first one, paired by task.

    Raises:
        StoreFailed: a journal cannot be read.
    """
    scores: list[dict[str, float]] = []
    for run in runs:
        with run.open() as journal:
            scores.append(task_scores(journal))
    differences = []
    for run, own in zip(runs[1:], scores[1:], strict=True):
        found = compare(scores[0], own)
        if found is not None:
            differences.append(
                PairedDifference(
                    run=run.name,
                    pairs=found.pairs,
                    mean=found.mean_b,
                    baseline_mean=found.mean_a,
                    difference=found.difference,
                    interval=found.interval,
                    better=len(found.better),
                    worse=len(found.worse),
                    only_here=found.only_b,
                    only_baseline=found.only_a,
                )
            )
    common = set(scores[0]).intersection(*scores[1:])
    return RunComparison([run.row() for run in runs], differences, _flips(runs, scores), len(common))


def _flips(runs: Sequence[StoredRun], scores: Sequence[Mapping[str, float]]) -> list[Flip]:
    """Return the tasks whose scores differ, the largest difference first."""
    spreads: dict[str, float] = {}
    for task in dict.fromkeys(task for own in scores for task in own):
        known = [own[task] for own in scores if task in own]
        if max(known) - min(known) > _CHANGE:
            spreads[task] = max(known) - min(known)
    tasks = sorted(spreads, key=lambda task: (-spreads[task], task))[:_MOST_FLIPS]
    executions: list[dict[str, int]] = []
    questions: dict[str, str] = {}
    for run in runs:
        with run.open() as journal:
            executions.append(_first_attempts(journal))
            questions = _questions(journal, [task for task in tasks if task not in questions]) | questions
    return [
        Flip(task, questions.get(task, ""), [own.get(task) for own in scores], [own.get(task) for own in executions])
        for task in tasks
    ]


def _first_attempts(journal: Journal) -> dict[str, int]:
    return dict(journal.rows("SELECT task, number FROM results WHERE final = 1 AND attempt = 1"))


def _questions(journal: Journal, tasks: Sequence[str]) -> dict[str, str]:
    found = {}
    for task in tasks:
        known = journal.task(task)
        if known is not None:
            found[task] = known.question[:_TEXT]
    return found
