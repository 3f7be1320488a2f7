"""Queries for the pages of one run: the head of the page, groups of failures, the rows of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.rollout.blame import party_of
from paragent.store.failures import normalised_message
from paragent.store.summary import STOPPED
from paragent.view.api import ExecutionRef, FailureGroup, RunDetail

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
_END = 80
"""Characters of the end of an answer or a reference that is longer than `_TEXT`."""
_MESSAGE = 1000
"""Characters of an error that are compared."""
EXECUTION = "number, task, attempt, status, final, ended, score, kind"
"""The columns of a result that `to_ref` reads."""
_COLUMNS = {
    "position": "position",
    "task": "task",
    "attempt": "attempt",
    "question": "question",
    "reference": "coalesce(reference, '')",
    "number": "number",
    "status": "CASE WHEN final = 1 THEN status ELSE 'pending' END",
    "score": "score",
    "ending": "coalesce(ending, '')",
    "kind": "coalesce(kind, '')",
    "error": "coalesce(error, '')",
    "answer": "coalesce(answer, '')",
    "turns": "coalesce(turns, 0)",
    "tool_calls": "coalesce(tool_calls, 0)",
    "tokens": "prompt_tokens + completion_tokens",
    "seconds": "coalesce(seconds, 0)",
    "waited": "coalesce(waited, 0)",
    "started": "coalesce(started, 0)",
    "ended": "coalesce(ended, 0)",
    "worker": "coalesce(worker, '')",
    "machine": "coalesce(machine, '')",
    "executions": "executions",
}
"""The columns of `RolloutRows` as expressions. Values are NULL for a rollout without a result."""
_ARRAYS = ", ".join(f"json_group_array({expression})" for expression in _COLUMNS.values())


def _shortened(text: str) -> str:
    """Return an SQL expression: a text without its middle, if it is long."""
    cut = f"substr({text}, 1, {_TEXT - _END}) || ' … ' || substr({text}, -{_END})"
    return f"CASE WHEN length({text}) > {_TEXT} THEN {cut} ELSE {text} END"


_ROLLOUT = f"""
    SELECT n.position, n.task, n.attempt, n.question, {_shortened("n.reference")} AS reference,
    n.executions, r.number, r.status, r.final, r.score, r.ending, r.kind,
    substr(r.error, 1, {_TEXT}) AS error, {_shortened("r.answer")} AS answer, r.turns, r.tool_calls, r.prompt_tokens,
    r.completion_tokens, r.seconds, r.waited, r.started, r.ended, r.worker, r.machine FROM (
        SELECT t.position, t.id AS task, a.attempt, substr(json_extract(t.body, '$.question'), 1, {_TEXT}) AS question,
        (SELECT group_concat(value, ' | ') FROM json_each(t.body, '$.answer')) AS reference,
        (SELECT count(*) FROM results WHERE task = t.id AND attempt = a.attempt) AS executions,
        coalesce((SELECT number FROM results WHERE task = t.id AND attempt = a.attempt AND final = 1),
            (SELECT max(number) FROM results WHERE task = t.id AND attempt = a.attempt)) AS best
        FROM {{source}} ORDER BY t.position, a.attempt
    ) n LEFT JOIN results r ON r.number = n.best"""  # noqa: S608 - constants
"""Selects rollouts with their final or else their newest result. All inner queries are answered by indexes alone."""
_ALL = """
    WITH RECURSIVE a (attempt) AS (SELECT 1 UNION ALL SELECT attempt + 1 FROM a WHERE attempt < ?)
    SELECT {arrays} FROM ({rollout})""".format(  # noqa: S608 - constants
    arrays=_ARRAYS, rollout=_ROLLOUT.format(source="tasks t CROSS JOIN a WHERE t.position > ? AND t.position <= ?")
)
_CHANGED = """
    WITH a AS (SELECT DISTINCT task, attempt FROM results WHERE number > ? AND number <= ?)
    SELECT {arrays} FROM ({rollout})""".format(  # noqa: S608 - constants
    arrays=_ARRAYS, rollout=_ROLLOUT.format(source="a CROSS JOIN tasks t ON t.id = a.task")
)


def run_detail(run: StoredRun) -> RunDetail:
    """Return the head of the page of a run.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    facts = run.facts()
    summary = facts.summary
    with run.open() as journal:
        failures = failure_groups(journal)
        stopped = journal.meta(STOPPED) or ""
        [(cached, reasoning)] = journal.rows("SELECT sum(cached_tokens), sum(reasoning_tokens) FROM results")
    return RunDetail(
        row=run.row(),
        attempts=summary.attempts,
        tasks=summary.tasks,
        pending=summary.pending,
        stopped=stopped if summary.pending else "",
        pass_at={str(k): value for k, value in summary.pass_at.items()},
        means=summary.means,
        measured_by=summary.measured_by,
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
    """Return the failed executions by party, kind and normalised message, the largest group first."""
    counted = journal.rows(
        f"SELECT kind, status, substr(CAST(error AS TEXT), 1, {_MESSAGE}), count(*), total(final), min(ended), max(ended), "  # noqa: S608 - constants
        "max(number) FROM results WHERE kind NOT IN ('', 'cancelled') GROUP BY 1, 2, 3"
    )
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for kind, status, error, *figures in counted:
        key = (party_of(kind, status), kind, normalised_message(error))
        group = groups.setdefault(key, [0, 0, figures[2], 0.0, 0, ""])
        group[0] += figures[0]
        group[1] += int(figures[1])
        newest = max(group[4:], [figures[4], error.partition("\n")[0]])
        group[2:] = [min(group[2], figures[2]), max(group[3], figures[3]), *newest]
    examples = {ref.number: ref for ref in execution_refs(journal, [group[4] for group in groups.values()])}
    found = [
        FailureGroup(party, kind, message, count, final, first, last, examples[newest], text)
        for (party, kind, message), (count, final, first, last, newest, text) in groups.items()
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


def rollout_rows(run: StoredRun, after: int = 0, limit: int = MOST_ROWS) -> bytes:
    """Return the JSON of `RolloutRows`: rollouts in the order of their tasks, pending ones included.

    SQLite writes the JSON, which takes a third of the time that rows as Python objects take.

    Args:
        run: the run.
        after: `next` of the previous answer; 0 for the first one.
        limit: how many rows at most; all attempts at one task are in the same answer.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    attempts = max(1, run.facts().summary.attempts)
    count = max(1, limit // attempts)
    with run.open() as journal:
        [(last,)] = journal.rows("SELECT coalesce(max(number), 0) FROM results")
        [(tasks, end)] = journal.rows(
            "SELECT count(*), max(position) FROM (SELECT position FROM tasks WHERE position > ? ORDER BY position LIMIT ?)",
            [after, count],
        )
        [arrays] = journal.rows(_ALL, [attempts, after, end or 0])
    return _joined(end if tasks == count else None, last, arrays)


def changed_rows(run: StoredRun, since: int, limit: int = MOST_ROWS) -> bytes:
    """Return the JSON of `RolloutRows` with the rollouts that have a result with a number above `since`.

    At most `limit` results are considered: while `last` grows, the next request, with `since=last`, may find more.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    with run.open() as journal:
        [(last,)] = journal.rows(
            "SELECT coalesce(max(number), ?) FROM (SELECT number FROM results WHERE number > ? ORDER BY number LIMIT ?)",
            [since, since, limit],
        )
        [arrays] = journal.rows(_CHANGED, [since, last])
    return _joined(None, last, arrays)


def _joined(following: int | None, last: int, arrays: Sequence[str]) -> bytes:
    columns = [f'"{name}":{array}' for name, array in zip(_COLUMNS, arrays, strict=True)]
    head = f'"next":{"null" if following is None else following},"last":{last}'
    return f"{{{','.join([head, *columns])}}}".encode()
