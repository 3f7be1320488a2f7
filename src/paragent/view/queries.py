"""Queries for the pages of one run: the head of the page, groups of failures, the rows of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.store.failures import boundary_of, normalised_message
from paragent.view.api import ExecutionRef, FailureGroup, RolloutRows, RunDetail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paragent.store import Journal
    from paragent.view.runs import StoredRun

__all__ = [
    "EXECUTION",
    "MOST_ROWS",
    "changed_rows",
    "execution_refs",
    "failure_groups",
    "rollout_rows",
    "run_detail",
    "to_ref",
]

MOST_ROWS = 20_000
"""Rows of one answer: about 5 MB of JSON."""
_TEXT = 200
"""Characters of a question, an answer or an error in the table."""
_MESSAGE = 1000
"""Characters of an error that are compared."""
EXECUTION = "number, task, attempt, status, final, ended, score, kind"
"""The columns of a result that `to_ref` reads."""
_ONE_LINE = "replace(replace(substr({0}, 1, {1}), char(10), ' '), char(13), ' ')"
_FIELDS: dict[str, tuple[str, Any]] = {
    "number": ("r.number", None),
    "status": ("r.status", "pending"),
    "score": ("r.score", None),
    "ending": ("r.ending", ""),
    "kind": ("r.kind", ""),
    "error": (_ONE_LINE.format("r.error", _TEXT), ""),
    "answer": (f"coalesce({_ONE_LINE.format('r.answer', _TEXT)}, '')", ""),
    "turns": ("r.turns", 0),
    "tool_calls": ("r.tool_calls", 0),
    "tokens": ("r.prompt_tokens + r.completion_tokens", None),
    "seconds": ("r.seconds", 0.0),
    "waited": ("r.waited", 0.0),
    "started": ("r.started", 0.0),
    "ended": ("r.ended", 0.0),
    "worker": ("r.worker", ""),
    "machine": ("r.machine", ""),
}
"""Fields of `RolloutRows` that come from a result: the expression that selects them, and the value without a result."""
_RESULT = f"t.position, r.attempt, r.final, {', '.join(expression for expression, _ in _FIELDS.values())}"
_PENDING = tuple(value for _, value in _FIELDS.values())


def run_detail(run: StoredRun) -> RunDetail:
    """Return the head of the page of a run.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    facts = run.facts()
    summary = facts.summary
    with run.open() as journal:
        failures = failure_groups(journal)
        [(cached, reasoning)] = journal.rows("SELECT sum(cached_tokens), sum(reasoning_tokens) FROM results")
    return RunDetail(
        row=run.row(),
        attempts=summary.attempts,
        tasks=summary.tasks,
        statuses=summary.statuses,
        pending=summary.pending,
        pass_at={str(k): value for k, value in summary.pass_at.items()},
        means=summary.means,
        prompt_tokens=summary.prompt_tokens,
        completion_tokens=summary.completion_tokens,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
        requests=summary.requests,
        executions=summary.executions,
        seconds_worked=summary.seconds_worked,
        seconds_waited=summary.seconds_waited,
        sessions=summary.sessions,
        machines=summary.machines,
        failures=failures,
        config=run.config(),
        live=run.live() is not None,
    )


def failure_groups(journal: Journal) -> list[FailureGroup]:
    """Return the failed executions by boundary, kind and normalised message, the largest group first."""
    counted = journal.rows(
        f"SELECT kind, substr(error, 1, {_MESSAGE}), count(*), total(final), min(ended), max(ended), max(number) "  # noqa: S608 - constants
        "FROM results WHERE kind != '' GROUP BY 1, 2"
    )
    groups: dict[tuple[str, str], list[Any]] = {}
    for kind, error, *figures in counted:
        group = groups.setdefault((kind, normalised_message(error)), [0, 0, figures[2], 0.0, 0])
        group[0] += figures[0]
        group[1] += int(figures[1])
        group[2:] = [min(group[2], figures[2]), max(group[3], figures[3]), max(group[4], figures[4])]
    examples = {ref.number: ref for ref in execution_refs(journal, [group[4] for group in groups.values()])}
    found = [
        FailureGroup(boundary_of(kind), kind, message, count, final, first, last, examples[newest])
        for (kind, message), (count, final, first, last, newest) in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.count, group.message))


def execution_refs(journal: Journal, numbers: Iterable[int]) -> list[ExecutionRef]:
    """Return references to executions by their numbers."""
    found = []
    for number in numbers:
        found += [to_ref(row) for row in journal.rows(f"SELECT {EXECUTION} FROM results WHERE number = ?", [number])]  # noqa: S608 - constants
    return found


def to_ref(row: Sequence[Any]) -> ExecutionRef:
    """Return the reference made from a row of the columns `EXECUTION`."""
    number, task, attempt, status, final, ended, score, kind = row
    return ExecutionRef(number, task, attempt, status, bool(final), ended, score, kind)


def rollout_rows(run: StoredRun, after: int = 0, limit: int = MOST_ROWS) -> RolloutRows:
    """Return rollouts in the order of their tasks, pending ones included.

    Args:
        run: the run.
        after: `next` of the previous answer; 0 for the first one.
        limit: how many rows at most; all attempts at one task are in the same answer.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    attempts = max(1, run.facts().summary.attempts)
    count = max(1, min(limit, MOST_ROWS) // attempts)
    with run.open() as journal:
        [(last,)] = journal.rows("SELECT coalesce(max(number), 0) FROM results")
        tasks = _tasks(journal, "position > ? ORDER BY position LIMIT ?", [after, count])
        results = _newest(
            journal,
            "tasks t JOIN results r ON r.task = t.id WHERE t.position > ? AND t.position <= ?",
            after,
            max(tasks, default=0),
        )
    keys = [(position, attempt) for position in tasks for attempt in range(1, attempts + 1)]
    return _columns(RolloutRows(max(tasks) if len(tasks) == count else None, last), keys, tasks, results)


def changed_rows(run: StoredRun, since: int, limit: int = MOST_ROWS) -> RolloutRows:
    """Return the rollouts that have a result with a number above `since`.

    At most `limit` results are considered: while `last` grows, the next request, with `since=last`, may find more.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    with run.open() as journal:
        [(last,)] = journal.rows(
            "SELECT max(number) FROM (SELECT number FROM results WHERE number > ? ORDER BY number LIMIT ?)",
            [since, min(limit, MOST_ROWS)],
        )
        if last is None:
            return RolloutRows(None, since)
        results = _newest(
            journal,
            "(SELECT DISTINCT task, attempt FROM results WHERE number > ? AND number <= ?) n "
            "JOIN results r ON r.task = n.task AND r.attempt = n.attempt JOIN tasks t ON t.id = n.task",
            since,
            last,
        )
        tasks: dict[int, tuple[str, str]] = {}
        for position in {position for position, _ in results}:
            tasks |= _tasks(journal, "position = ?", [position])
    return _columns(RolloutRows(None, last), sorted(results), tasks, results)


def _tasks(journal: Journal, where: str, values: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return the ids and the beginnings of the questions of tasks, by their positions."""
    question = _ONE_LINE.format("json_extract(body, '$.question')", _TEXT)
    rows = journal.rows(f"SELECT position, id, {question} FROM tasks WHERE {where}", values)  # noqa: S608 - constants
    return {position: (task, text or "") for position, task, text in rows}


def _newest(journal: Journal, source: str, low: int, high: int) -> dict[tuple[int, int], list[Any]]:
    """Return the final or the newest result of rollouts, by position and attempt, and the number of their executions."""
    found: dict[tuple[int, int], list[Any]] = {}
    for row in journal.rows(f"SELECT {_RESULT} FROM {source} ORDER BY r.number", [low, high]):  # noqa: S608 - constants
        position, attempt, final, *values = row
        before = found.get((position, attempt))
        if before is None:
            found[position, attempt] = [1, final, values]
        else:
            before[0] += 1
            if final >= before[1]:
                before[1:] = [final, values]
    return found


def _columns(
    rows: RolloutRows,
    keys: Sequence[tuple[int, int]],
    tasks: dict[int, tuple[str, str]],
    results: dict[tuple[int, int], list[Any]],
) -> RolloutRows:
    """Fill the columns of `rows` with the rollouts `keys`."""
    if keys:
        nothing = [0, 0, _PENDING]
        found = [results.get(key, nothing) for key in keys]
        for name, column in zip(_FIELDS, zip(*(one[2] for one in found), strict=True), strict=True):
            setattr(rows, name, column)
        rows.executions = [one[0] for one in found]
        rows.position = [position for position, _ in keys]
        rows.attempt = [attempt for _, attempt in keys]
        rows.task = [tasks[position][0] for position, _ in keys]
        rows.question = [tasks[position][1] for position, _ in keys]
    return rows
