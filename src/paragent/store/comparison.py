"""Comparison of runs: tasks are recognised by their content, whatever their ids, and scores are paired by task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent.store.records import RolloutStatus
from paragent.store.summary import is_measured, mean_interval
from paragent.tasks import content_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from paragent.store.journal import Journal
    from paragent.tasks import BenchmarkTask

__all__ = ["CHANGE", "Comparison", "compare", "match_tasks", "task_scores", "unscored_tasks"]

CHANGE = 1e-9
"""The smallest difference of two scores that counts as a change."""


def task_scores(journal: Journal, scorer: str | None = None) -> dict[str, float]:
    """Return the mean score of each task over its measured results, in the order of the tasks.

    Args:
        journal: the journal of the run.
        scorer: the name of the scorer; None: the score that counts.
    """
    value = "score" if scorer is None else "json_extract(scores, ?)"
    rows = journal.rows(
        f"SELECT t.id, avg(coalesce({value}, 0.0)) FROM results r JOIN tasks t ON t.id = r.task "  # noqa: S608 - constants
        f"WHERE final = 1 AND {is_measured(value)} GROUP BY t.position ORDER BY t.position",
        [] if scorer is None else [f'$."{scorer}"'] * 2,
    )
    return dict(rows)


def unscored_tasks(journal: Journal, scorer: str | None = None) -> dict[str, str]:
    """Return the tasks without a measured result, and for each the kind of its failure, its status or `pending`.

    Args:
        journal: the journal of the run.
        scorer: as for `task_scores`.
    """
    value = "score" if scorer is None else "json_extract(scores, ?)"
    rows = journal.rows(
        "SELECT t.id, coalesce(max(nullif(kind, '')), "  # noqa: S608 - constants
        f"max(CASE status WHEN '{RolloutStatus.COMPLETED}' THEN 'nothing to compare' ELSE status END), 'pending') "
        "FROM tasks t LEFT JOIN results r ON t.id = r.task AND final = 1 "
        f"GROUP BY t.position HAVING NOT total({is_measured(value)}) ORDER BY t.position",
        [] if scorer is None else [f'$."{scorer}"'],
    )
    return dict(rows)


def match_tasks(runs: Sequence[Iterable[BenchmarkTask]]) -> list[dict[str, str]]:
    """Return for each run the common name of each of its tasks, by id. Tasks of two runs with the same name are the same.

    Tasks are the same if they have the same question, choices, images and reference answers. Of several such tasks in one run,
    those with the same id are the same, else the first is the first, the second the second, and so on. Tasks that differ only in
    their reference answers are the same if no other task of their runs has that question: logs of other tools have the answer
    in another form. The name of a task is its id in the first run that has it.
    """
    known = _KnownTasks()
    return [known.match(tasks) for tasks in runs]


class _KnownTasks:
    """The tasks of the runs so far."""

    def __init__(self) -> None:
        self._contents: dict[str, str] = {}
        """The digest of each task by its name."""
        self._questions: dict[str, str] = {}
        """The digest without the reference answers, by name."""

    def match(self, tasks: Iterable[BenchmarkTask]) -> dict[str, str]:
        """Return the name of each task of a run by its id, and add the new ones."""
        contents = {}
        questions = {}
        for task in tasks:
            contents[task.id] = content_digest(task)
            questions[task.id] = content_digest(task, references=False)
        found = {task: task for task, content in contents.items() if self._contents.get(task) == content}
        self._match_in_order(contents, self._contents, found)
        free = Counter(digest for task, digest in questions.items() if task not in found)
        taken = set(found.values())
        free_names = Counter(digest for name, digest in self._questions.items() if name not in taken)
        unique = {task: one for task, one in questions.items() if free[one] == 1 and free_names[one] == 1}
        self._match_in_order(unique, self._questions, found)
        for identity in contents:
            if identity not in found:
                name = found[identity] = self._new_name(identity)
                self._contents[name], self._questions[name] = contents[identity], questions[identity]
        return found

    @staticmethod
    def _match_in_order(digests: Mapping[str, str], known: Mapping[str, str], found: dict[str, str]) -> None:
        """Give each task without a name the first free name with its digest."""
        taken = set(found.values())
        free: dict[str, list[str]] = {}
        for name in reversed(list(known)):
            if name not in taken:
                free.setdefault(known[name], []).append(name)
        for task, digest in digests.items():
            if task not in found and free.get(digest):
                found[task] = free[digest].pop()

    def _new_name(self, task: str) -> str:
        name, number = task, 1
        while name in self._contents:
            number += 1
            name = f"{task}~{number}"
        return name


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two runs, paired by task."""

    pairs: int
    """Tasks that have a score in both runs."""
    mean_a: float
    mean_b: float
    difference: float
    """The mean of B minus the mean of A, over the common tasks."""
    interval: tuple[float, float]
    """The 95 % interval of the difference, see `mean_interval`."""
    better: list[tuple[str, float, float]]
    """Task, score in A and score in B of the tasks that are better in B."""
    worse: list[tuple[str, float, float]]
    only_a: int
    """Tasks that B does not have."""
    only_b: int
    unscored_a: int
    """Tasks of both runs that have no score in A."""
    unscored_b: int


def compare(
    a: Mapping[str, float], b: Mapping[str, float], tasks: tuple[Collection[str], Collection[str]] | None = None
) -> Comparison | None:
    """Compare the mean score of each task in two runs; return None if they have no scored task in common.

    Args:
        a: the scores by the common names of tasks, see `match_tasks`.
        b: the same for the other run.
        tasks: the common names of all tasks of each run; None: all tasks have scores.
    """
    all_a, all_b = map(set, tasks or (a, b))
    both = all_a & all_b
    common = [task for task in a if task in b]
    if not common:
        return None
    count = len(common)
    differences = [b[task] - a[task] for task in common]
    mean = sum(differences) / count
    deviations = sum((one - mean) ** 2 for one in differences)
    scores = [run[task] for run in (a, b) for task in common]
    width = max(1.0, *scores) - min(0.0, *scores)
    changed = [(task, a[task], b[task]) for task in common if abs(a[task] - b[task]) > CHANGE]
    return Comparison(
        pairs=count,
        mean_a=sum(a[task] for task in common) / count,
        mean_b=sum(b[task] for task in common) / count,
        difference=mean,
        interval=mean_interval(mean, deviations, count, (-width, width)),
        better=[one for one in changed if one[2] > one[1]],
        worse=[one for one in changed if one[2] < one[1]],
        only_a=len(all_a - both),
        only_b=len(all_b - both),
        unscored_a=len(both - a.keys()),
        unscored_b=len(both - b.keys()),
    )
