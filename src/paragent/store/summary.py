"""Statistics: the summary of one run, computed from its journal, and the interval of a mean."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.store.failures import normalised_message
from paragent.store.records import RolloutStatus, error_summary
from paragent.tasks import CUT_ENDINGS, TURNS_USED_UP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from paragent.store.journal import Journal

__all__ = [
    "ATTEMPTS",
    "MACHINES",
    "METRIC",
    "PRICES",
    "SOLVED",
    "STOPPED",
    "Summary",
    "cost_of",
    "final_failures",
    "is_measured",
    "mean_interval",
    "pass_at",
    "summarise",
]

ATTEMPTS = "attempts"
"""Journal key. The number of attempts at each task."""
METRIC = "metric"
"""Journal key. The name of the scorer whose score counts."""
PRICES = "prices"
"""Journal key. JSON: the prices `input` and `output` per million tokens of the `model` and, if it is another model, of the
`judge`. Without it the cost is unknown."""
MACHINES = "machines"
"""Journal key. JSON: `leases_granted`, `leased_seconds` and `machine_seconds` of all sessions."""
STOPPED = "stopped"
"""Journal key. Why the last session did not execute all rollouts; empty if it did, was killed, or runs."""
SOLVED = 1.0 - 1e-9
"""The score from which a task counts as solved for pass@k."""
_Z_95 = 1.959964
"""Standard errors on either side of the mean in a 95 % interval."""
_AT_AN_END = 1e-9
"""The variance below which a mean is at an end of the scale."""
_MOST_REASONS = 5
"""Error messages of one kind in a summary."""
_REASON_LENGTH = 1000
"""Characters of an error that are compared."""
_FAILURES = f"final = 1 AND kind != '' AND status != '{RolloutStatus.CANCELLED}'"
"""SQL: whether a result is a failure of any cause."""


def is_measured(value: str = "score") -> str:
    """Return the SQL condition of results that count in means, given the expression of the score.

    Failures of the agent and its time-outs count as 0; see `RolloutStatus.measured`.
    """
    failed = f"status IN ('{RolloutStatus.FAILED}', '{RolloutStatus.TIMED_OUT}')"
    return f"({failed} OR status = '{RolloutStatus.COMPLETED}' AND {value} IS NOT NULL)"


@dataclass(slots=True)
class Summary:
    """The statistics of a run. The fields are the keys of summary.json."""

    tasks: int
    """Tasks of the run."""
    attempts: int
    """Attempts at each task."""
    rollouts: int
    """The number of results in a complete run: tasks times attempts."""
    done: int
    """Rollouts with a result; infrastructure failures are not counted, because they are executed again."""
    pending: int
    """Rollouts without a result, infrastructure failures included: `rollouts` without `done`."""
    statuses: dict[str, int]
    """How many rollouts ended with each status."""
    failures: dict[str, int]
    """Results that failed, by kind; cancelled ones are not failures."""
    reasons: dict[str, dict[str, int]]
    """The error messages of each kind and how often each occurred, the most frequent first. Messages that differ only in numbers,
    addresses and quoted names are counted as one."""
    mean: float | None
    """The mean score of the measured results; None if there are none. Failures of the agent and its time-outs count as 0."""
    measured: int
    """Results in `mean`: completed ones with a score, failures of the agent, its time-outs. Infrastructure failures, answers
    whose scorer failed, cancelled and pending rollouts say nothing about the agent."""
    mean_of_all: float | None
    """The mean score of all rollouts, if everything that was not measured counts as 0; None if nothing was measured."""
    interval: tuple[float, float] | None
    """The 95 % interval of `mean`, see `mean_interval`; None if nothing was measured."""
    scored: int
    """Results with a score."""
    unscored: int = 0
    """Answers without a score: the scorer failed, or it returned none although the task has a reference answer or other results
    have a score."""
    cut: int = 0
    """Results whose last reply was cut at the limit of tokens, or whose context was full."""
    pass_at: dict[int, float] = field(default_factory=dict)
    """pass@k by k: the share of tasks that k attempts are expected to solve."""
    executions: int = 0
    """Executions of rollouts, retries included."""
    prompt_tokens: int | None = 0
    """None if an endpoint did not report tokens."""
    completion_tokens: int | None = 0
    """Tokens that the model generated; None if unknown."""
    judge_prompt_tokens: int = 0
    """The part of `prompt_tokens` used by a judge that is a different model than the agent's."""
    judge_completion_tokens: int = 0
    """Tokens that judges generated."""
    requests: int = 0
    """Requests to the model."""
    cached_replies: int = 0
    """Replies from the cache of `--cache`; they are not requests and cost nothing."""
    cost: float | None = None
    """In the currency of the prices; None if unknown."""
    seconds_worked: float = 0.0
    """Seconds of work of all rollouts."""
    seconds_waited: float = 0.0
    """Seconds that rollouts waited, for machines and for the endpoint."""
    seconds: float = 0.0
    """The duration of all sessions."""
    sessions: int = 0
    """How often the run was started or continued."""
    means: dict[str, float] = field(default_factory=dict)
    """The mean of each scorer over the results that it scored; failures of the agent and its time-outs count as 0."""
    measured_by: dict[str, int] = field(default_factory=dict)
    """The number of results in each mean of `means`; it differs from `measured` if a scorer had nothing to compare for some."""
    machines: dict[str, float] | None = None
    """`leases_granted`, `leased_seconds`, `machine_seconds` and `utilisation`; None if no machines were used."""
    lost_workers: dict[str, int] = field(default_factory=dict)
    """Why workers of the engine were lost, and how often, the most frequent reason first. What they were executing was executed
    again, as far as retries allow."""
    out_of_turns: bool = False
    """Whether every rollout used up its turns and none has a score above 0."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def summarise(journal: Journal, attempts: int) -> Summary:
    """Return the statistics of a run.

    Args:
        journal: the journal of the run.
        attempts: the number of attempts at each task that were requested.
    """
    tasks = journal.count_tasks()
    statuses = dict(journal.rows("SELECT status, count(*) FROM results WHERE final = 1 GROUP BY status"))
    [(sessions, seconds)] = journal.rows("SELECT count(*), total(seconds) FROM sessions")
    pending = journal.count_pending(attempts)
    means = _means(journal)
    return Summary(
        tasks=tasks,
        attempts=attempts,
        rollouts=tasks * attempts,
        done=tasks * attempts - pending,
        pending=pending,
        statuses={str(status): statuses.get(status, 0) for status in RolloutStatus},
        failures=_failures(journal),
        reasons=_reasons(journal),
        pass_at=_pass_at(journal, attempts) if attempts > 1 else {},
        sessions=sessions,
        seconds=seconds,
        means={scorer: mean for scorer, (mean, _) in means.items()},
        measured_by={scorer: count for scorer, (_, count) in means.items()},
        out_of_turns=_out_of_turns(journal),
        machines=_machines(journal),
        lost_workers=_lost_workers(journal),
        unscored=_unscored(journal),
        cut=_cut(journal),
        **_scores(journal, tasks * attempts),
        **_usage(journal),
    )


def _out_of_turns(journal: Journal) -> bool:
    [(results, used_up, best)] = journal.rows(
        "SELECT count(*), total(ending = ?), max(score) FROM results WHERE final = 1 AND status != ?",
        [TURNS_USED_UP, RolloutStatus.CANCELLED],
    )
    return bool(results) and used_up == results and not best


def _unscored(journal: Journal) -> int:
    [(count,)] = journal.rows(
        "SELECT count(*) FROM results r LEFT JOIN tasks t ON t.id = r.task WHERE final = 1 AND (status = ? "
        "OR status = ? AND score IS NULL AND (coalesce(json_extract(t.body, '$.answer'), '[]') != '[]' "
        "OR EXISTS (SELECT 1 FROM results WHERE final = 1 AND score IS NOT NULL)))",
        [RolloutStatus.UNSCORED, RolloutStatus.COMPLETED],
    )
    return int(count)


def _cut(journal: Journal) -> int:
    marks = ", ".join("?" * len(CUT_ENDINGS))
    query = f"SELECT count(*) FROM results WHERE final = 1 AND ending IN ({marks})"  # noqa: S608 - question marks
    [(count,)] = journal.rows(query, list(CUT_ENDINGS))
    return int(count)


def _failures(journal: Journal) -> dict[str, int]:
    return dict(journal.rows(f"SELECT kind, count(*) FROM results WHERE {_FAILURES} GROUP BY kind ORDER BY 2 DESC"))  # noqa: S608 - constants


def _reasons(journal: Journal) -> dict[str, dict[str, int]]:
    """Return the messages of each kind; of messages that differ only in their varying parts, the most frequent one."""
    rows = journal.rows(
        f"SELECT kind, substr(error, 1, {_REASON_LENGTH}), count(*) FROM results WHERE {_FAILURES} GROUP BY 1, 2 "  # noqa: S608 - constants
        "ORDER BY 3 DESC, max(number) DESC"
    )
    kinds: dict[str, list[tuple[str, int]]] = {}
    for kind, error, count in rows:
        kinds.setdefault(kind, []).append((error, count))
    return {kind: dict(list(_grouped(errors).items())[:_MOST_REASONS]) for kind, errors in kinds.items()}


def _lost_workers(journal: Journal) -> dict[str, int]:
    return _grouped(
        journal.rows(
            f"SELECT substr(detail, 1, {_REASON_LENGTH}), count(*) FROM worker_events WHERE event = 'lost' "  # noqa: S608 - constants
            "GROUP BY 1 ORDER BY max(number) DESC"
        )
    )


def _grouped(errors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return messages and their counts, the most frequent first; those that differ only in their varying parts count as one."""
    known: dict[str, tuple[str, int]] = {}
    for error, count in errors:
        message = error_summary(error)
        shown, before = known.get(normalised_message(message), (message, 0))
        known[normalised_message(message)] = (shown, before + count)
    return dict(sorted(known.values(), key=lambda one: -one[1]))


def final_failures(journal: Journal) -> dict[str, int]:
    """Return the number of failures by kind, without infrastructure failures, which the next session executes again."""
    query = f"SELECT kind, count(*) FROM results WHERE {_FAILURES} AND status != ? GROUP BY kind"  # noqa: S608 - constants
    return dict(journal.rows(query, [RolloutStatus.INFRASTRUCTURE]))


def _scores(journal: Journal, rollouts: int) -> dict[str, Any]:
    """Return the means and the interval."""
    [(tasks, measured, total, squares, products, sizes, least, most)] = journal.rows(
        "SELECT count(*), total(n), total(s), total(s * s), total(s * n), total(n * n), min(least), max(most) "  # noqa: S608 - constants
        "FROM (SELECT count(*) AS n, total(score) AS s, min(score) AS least, max(score) AS most "
        f"FROM results WHERE final = 1 AND {is_measured()} GROUP BY task)"
    )
    [(scored,)] = journal.rows("SELECT count(score) FROM results WHERE final = 1")
    mean = interval = None
    if measured:
        mean = total / measured
        # Deviations of one task's attempts are summed before they are squared: what attempts have in common counts once.
        deviations = max(0.0, squares - 2 * mean * products + mean * mean * sizes) * (tasks / measured) ** 2
        interval = mean_interval(mean, deviations, tasks, (min(0.0, least or 0.0), max(1.0, most or 0.0)))
    return {
        "mean": mean,
        "measured": int(measured),
        "mean_of_all": total / rollouts if measured and rollouts else None,
        "interval": interval,
        "scored": int(scored),
    }


def mean_interval(mean: float, deviations: float, tasks: int, scale: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean over tasks: Wilson's score interval with an effective number of tasks.

    If every task has one result at an end of the scale (right or wrong), it is Wilson's interval. Otherwise the tasks vary less
    than that: their number is divided by the ratio of their variance to the largest possible one. One more task with the largest
    variance is assumed, so that the interval has a width even if all tasks have the same score.

    Args:
        mean: the mean.
        deviations: the sum of the squared differences between the mean of each task and `mean`.
        tasks: the number of tasks.
        scale: the smallest and the largest possible value.
    """
    low, width = scale[0], scale[1] - scale[0]
    place = (mean - low) / width
    largest = place * (1.0 - place)
    ratio = 1.0 if largest < _AT_AN_END else (deviations / width**2 / largest + 1.0) / (tasks + 1.0)
    excess = _Z_95**2 * ratio / tasks
    middle = (place + excess / 2) / (1.0 + excess)
    half = math.sqrt(excess * (max(0.0, largest) + excess / 4)) / (1.0 + excess)
    return min(mean, low + width * (middle - half)), max(mean, low + width * (middle + half))


def _usage(journal: Journal) -> dict[str, Any]:
    """Return the tokens, requests, cost and time of all executions, retries included."""
    prices = json.loads(journal.meta(PRICES) or "null")
    [(executions, requests, cached, worked, waited, prompt, completion, unknown, judge_prompt, judge_completion)] = (
        journal.rows(
            "SELECT count(*), total(requests), total(cached_replies), total(seconds), total(waited), "
            "total(prompt_tokens), total(completion_tokens), total(prompt_tokens IS NULL OR completion_tokens IS NULL), "
            "total(judge_prompt_tokens), total(judge_completion_tokens) FROM results"
        )
    )
    return {
        "executions": executions,
        "prompt_tokens": None if unknown else int(prompt),
        "completion_tokens": None if unknown else int(completion),
        "judge_prompt_tokens": int(judge_prompt),
        "judge_completion_tokens": int(judge_completion),
        "requests": int(requests),
        "cached_replies": int(cached),
        "cost": None if unknown else cost_of(prices, prompt, completion, judge_prompt, judge_completion),
        "seconds_worked": worked,
        "seconds_waited": waited,
    }


def cost_of(
    prices: Mapping[str, Mapping[str, float]] | None,
    prompt: float,
    completion: float,
    judge_prompt: float,
    judge_completion: float,
) -> float | None:
    """Return the cost of all tokens; a judge that is another model has its own price. None if a price is unknown."""
    if not prices or ((judge_prompt or judge_completion) and "judge" not in prices):
        return None
    model = prices["model"]
    judge = prices.get("judge", model)
    amount = (prompt - judge_prompt) * model["input"] + (completion - judge_completion) * model["output"]
    return (amount + judge_prompt * judge["input"] + judge_completion * judge["output"]) / 1e6


def _machines(journal: Journal) -> dict[str, float] | None:
    """Return the figures of the machines, with the fraction of time in which they were leased."""
    stored = journal.meta(MACHINES)
    if stored is None:
        return None
    figures: dict[str, float] = json.loads(stored)
    total = figures["machine_seconds"]
    return figures | {"utilisation": round(figures["leased_seconds"] / total, 4) if total else 0.0}


def pass_at(k: int, tries: int, solved: int) -> float:
    """Return the probability that at least one of `k` attempts succeeds, drawn from `tries` of which `solved` succeeded."""
    if tries - solved < k:
        return 1.0
    return 1.0 - math.comb(tries - solved, k) / math.comb(tries, k)


def _pass_at(journal: Journal, attempts: int) -> dict[int, float]:
    """Return pass@k over the tasks whose attempts were all measured."""
    groups = journal.rows(
        f"SELECT solved, count(*) FROM (SELECT total(score >= ?) AS solved FROM results WHERE final = 1 AND {is_measured()} "  # noqa: S608 - constants
        "GROUP BY task HAVING count(*) >= ?) GROUP BY solved",
        [SOLVED, attempts],
    )
    tasks = sum(count for _, count in groups)
    if not tasks:
        return {}
    return {
        k: sum(pass_at(k, attempts, int(solved)) * count for solved, count in groups) / tasks
        for k in range(1, attempts + 1)
    }


def _means(journal: Journal) -> dict[str, tuple[float, int]]:
    """Return the mean of each scorer and the number of results that it is the mean of."""
    [(failed,)] = journal.rows(
        "SELECT count(*) FROM results WHERE final = 1 AND status IN (?, ?) AND scores = '{}'",
        [RolloutStatus.FAILED, RolloutStatus.TIMED_OUT],
    )
    rows = journal.rows(
        "SELECT key, total(json_each.value), count(*) FROM results, json_each(results.scores) "
        "WHERE final = 1 AND json_each.value IS NOT NULL AND status IN (?, ?, ?) GROUP BY key ORDER BY key",
        [status for status in RolloutStatus if status.measured],
    )
    return {scorer: (total / (count + failed), count + failed) for scorer, total, count in rows}
