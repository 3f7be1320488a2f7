"""Comparison of runs: paired differences from the first run, and the tasks whose scores differ."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from paragent.store import compare, match_tasks, task_scores
from paragent.store.comparison import CHANGE
from paragent.view.api import Flip, PairedDifference, RunComparison

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.store import Journal
    from paragent.view.runs import StoredRun

__all__ = ["MOST_RUNS", "compare_runs"]

MOST_RUNS = 20
_MOST_FLIPS = 5_000
_TEXT = 200


def compare_runs(runs: Sequence[StoredRun]) -> RunComparison:
    """Compare runs with the first one, paired by the contents of tasks; see `match_tasks`.

    Raises:
        StoreFailed: a journal cannot be read.
    """
    scores: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(run.open()) for run in runs]
        names = match_tasks([journal.tasks() for journal in journals])
        for journal, own_names in zip(journals, names, strict=True):
            scores.append({own_names[task]: score for task, score in task_scores(journal).items()})
        flips = _flips(journals, names, scores)
    differences = []
    for run, own, own_names in zip(runs[1:], scores[1:], names[1:], strict=True):
        found = compare(scores[0], own, (names[0].values(), own_names.values()))
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
    return RunComparison([run.row() for run in runs], differences, flips, len(common))


def _flips(
    journals: Sequence[Journal], names: Sequence[Mapping[str, str]], scores: Sequence[Mapping[str, float]]
) -> list[Flip]:
    """Return the tasks whose scores differ, the largest difference first."""
    spreads: dict[str, float] = {}
    for task in dict.fromkeys(task for own in scores for task in own):
        known = [own[task] for own in scores if task in own]
        if max(known) - min(known) > CHANGE:
            spreads[task] = max(known) - min(known)
    tasks = sorted(spreads, key=lambda task: -spreads[task])[:_MOST_FLIPS]
    ids = [{name: task for task, name in own.items()} for own in names]
    executions = [_first_attempts(journal) for journal in journals]
    return [
        Flip(
            task,
            _question(journals, [own.get(task) for own in ids]),
            [own.get(task) for own in scores],
            [first.get(own.get(task, "")) for first, own in zip(executions, ids, strict=True)],
            [own.get(task, "") for own in ids],
        )
        for task in tasks
    ]


def _first_attempts(journal: Journal) -> dict[str, int]:
    return dict(journal.rows("SELECT task, number FROM results WHERE final = 1 AND attempt = 1"))


def _question(journals: Sequence[Journal], ids: Sequence[str | None]) -> str:
    """Return the beginning of a task's question, from the first run that has the task."""
    found = (journal.task(task) for journal, task in zip(journals, ids, strict=True) if task is not None)
    return next((task.question[:_TEXT] for task in found if task is not None), "")
