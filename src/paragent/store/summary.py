"""Statistics: the summary of one run, computed from its journal, and the paired comparison of two runs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.store.records import RolloutStatus, error_summary
from paragent.tasks import TURNS_USED_UP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.store.journal import Journal

__all__ = [
    "ATTEMPTS",
    "MACHINES",
    "PRICES",
    "Comparison",
    "Summary",
    "compare",
    "cost_of",
    "final_failures",
    "pass_at",
    "summarise",
    "task_scores",
]

ATTEMPTS = "attempts"
"""Journal key. The number of attempts at each task."""
PRICES = "prices"
"""Journal key. JSON: the prices `input` and `output` per million tokens of the `model` and, if it is another model, of the
`judge`. Without it the cost is unknown."""
MACHINES = "machines"
"""Journal key. JSON: `leases_granted`, `leased_seconds` and `machine_seconds` of all sessions."""
_SOLVED = 1.0 - 1e-9
"""The score from which a task counts as solved for pass@k."""
_Z_95 = 1.959964
"""Standard errors on either side of the mean in a 95 % interval."""
_CHANGE = 1e-9
"""The smallest difference of two scores that counts as a change."""


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
    """The number of results so far, infrastructure failures included."""
    pending: int
    """Rollouts without a result, or with an infrastructure failure."""
    statuses: dict[str, int]
    """How many rollouts ended with each status."""
    failures: dict[str, int]
    """Failed results by kind; cancelled ones are not failures."""
    reasons: dict[str, str]
    """The most frequent error message of each kind."""
    mean: float | None
    """The mean score of all results; failures count as 0, and cancelled rollouts are left out."""
    mean_without_infrastructure: float | None
    """The mean score without infrastructure failures."""
    standard_error: float | None
    """Of `mean`, clustered by task, because attempts at one task are not independent. None with fewer than two tasks."""
    interval: tuple[float, float] | None
    """The 95 % interval of `mean`; within 0 and 1 if all scores are."""
    scored: int
    """Results with a score."""
    unscored: int = 0
    """Completed rollouts without a score although their task has a reference answer, or other results have a score."""
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
    """The mean of each scorer, over the results that it scored."""
    machines: dict[str, float] | None = None
    """`leases_granted`, `leased_seconds`, `machine_seconds` and `utilisation`; None if no machines were used."""
    out_of_turns: bool = False
    """Whether every rollout used up its turns and none has a score above 0."""

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % interval before it is limited to 0 and 1; None if the interval is unknown."""
        return None if self.standard_error is None else _Z_95 * self.standard_error

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
    return Summary(
        tasks=tasks,
        attempts=attempts,
        rollouts=tasks * attempts,
        done=sum(statuses.values()),
        pending=journal.count_pending(attempts),
        statuses={str(status): statuses.get(status, 0) for status in RolloutStatus},
        failures=_failures(journal),
        reasons=_reasons(journal),
        pass_at=_pass_at(journal, attempts) if attempts > 1 else {},
        sessions=sessions,
        seconds=seconds,
        means=_means(journal),
        out_of_turns=_out_of_turns(journal),
        machines=_machines(journal),
        unscored=_unscored(journal),
        **_scores(journal, statuses),
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
        "SELECT count(*) FROM results r LEFT JOIN tasks t ON t.id = r.task "
        "WHERE final = 1 AND status = ? AND score IS NULL "
        "AND (coalesce(json_extract(t.body, '$.answer'), '[]') != '[]' "
        "OR EXISTS (SELECT 1 FROM results WHERE final = 1 AND score IS NOT NULL))",
        [RolloutStatus.COMPLETED],
    )
    return int(count)


def _failures(journal: Journal) -> dict[str, int]:
    query = "SELECT kind, count(*) FROM results WHERE final = 1 AND kind != '' AND status != ? GROUP BY kind ORDER BY 2 DESC"
    return dict(journal.rows(query, [RolloutStatus.CANCELLED]))


def _reasons(journal: Journal) -> dict[str, str]:
    query = (
        "SELECT kind, error FROM results WHERE final = 1 AND kind != '' AND status != ? GROUP BY kind, error "
        "ORDER BY count(*), max(number)"
    )
    return {kind: error_summary(error) for kind, error in journal.rows(query, [RolloutStatus.CANCELLED])}


def final_failures(journal: Journal) -> dict[str, int]:
    """Return the number of failures by kind, without infrastructure failures, which the next session executes again."""
    query = "SELECT kind, count(*) FROM results WHERE final = 1 AND kind != '' AND status NOT IN (?, ?) GROUP BY kind"
    return dict(journal.rows(query, [RolloutStatus.INFRASTRUCTURE, RolloutStatus.CANCELLED]))


def _scores(journal: Journal, statuses: Mapping[str, int]) -> dict[str, Any]:
    """Return the means and the standard error. A completed rollout without a score is in neither mean."""
    [(tasks, counted, total, scored, squares, products, sizes, least, most)] = journal.rows(
        "SELECT count(*), total(n), total(s), total(scored), total(s * s), total(s * n), total(n * n), min(least), max(most) "
        "FROM (SELECT count(*) AS n, total(score) AS s, count(score) AS scored, min(score) AS least, max(score) AS most "
        "FROM results "
        "WHERE final = 1 AND (score IS NOT NULL OR status NOT IN (?, ?)) GROUP BY task)",
        [RolloutStatus.COMPLETED, RolloutStatus.CANCELLED],
    )
    without_infrastructure = counted - statuses.get(RolloutStatus.INFRASTRUCTURE, 0)
    mean = total / counted if counted else None
    error = interval = None
    if mean is not None and tasks > 1:
        # Deviations of one task's attempts are summed before they are squared: what attempts have in common counts once.
        deviations = squares - 2 * mean * products + mean * mean * sizes
        error = math.sqrt(max(0.0, deviations) * tasks / (tasks - 1)) / counted
        interval = (mean - _Z_95 * error, mean + _Z_95 * error)
        if (least or 0.0) >= 0.0 and (most or 0.0) <= 1.0:
            interval = (max(0.0, interval[0]), min(1.0, interval[1]))
    return {
        "mean": mean,
        "mean_without_infrastructure": total / without_infrastructure if without_infrastructure > 0 else None,
        "standard_error": error,
        "interval": interval,
        "scored": int(scored),
    }


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
    groups = journal.rows(
        "SELECT solved, count(*) FROM (SELECT total(score >= ?) AS solved FROM results WHERE final = 1 AND status != ? "
        "GROUP BY task HAVING count(*) >= ?) GROUP BY solved",
        [_SOLVED, RolloutStatus.CANCELLED, attempts],
    )
    tasks = sum(count for _, count in groups)
    if not tasks:
        return {}
    return {
        k: sum(pass_at(k, attempts, int(solved)) * count for solved, count in groups) / tasks
        for k in range(1, attempts + 1)
    }


def _means(journal: Journal) -> dict[str, float]:
    return dict(
        journal.rows(
            "SELECT key, avg(json_each.value) FROM results, json_each(results.scores) "
            "WHERE final = 1 AND json_each.value IS NOT NULL GROUP BY key ORDER BY key"
        )
    )


def task_scores(journal: Journal, scorer: str | None = None) -> dict[str, float]:
    """Return the mean score of each task. Failures count as 0; cancelled and completed rollouts without a score are left out.

    Args:
        journal: the journal of the run.
        scorer: the name of the scorer; None: the score that counts.
    """
    value = "score" if scorer is None else "json_extract(scores, ?)"
    rows = journal.rows(
        f"SELECT task, avg(coalesce({value}, 0.0)) FROM results WHERE final = 1 "  # noqa: S608 - one of two constants
        f"AND ({value} IS NOT NULL OR status NOT IN ('{RolloutStatus.COMPLETED}', '{RolloutStatus.CANCELLED}')) GROUP BY task",
        [] if scorer is None else [f'$."{scorer}"'] * 2,
    )
    return dict(rows)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two runs, paired by task."""

    pairs: int
    """Tasks that both runs have."""
    mean_a: float
    mean_b: float
    difference: float
    """The mean of B minus the mean of A, over the common tasks."""
    interval: tuple[float, float] | None
    """The 95 % interval of the paired differences; None with fewer than two tasks."""
    better: list[tuple[str, float, float]]
    """Task, score in A and score in B of the tasks that are better in B."""
    worse: list[tuple[str, float, float]]
    only_a: int
    only_b: int


def compare(a: Mapping[str, float], b: Mapping[str, float]) -> Comparison | None:
    """Compare the mean score of each task in two runs; return None if they have no task in common."""
    common = sorted(a.keys() & b.keys())
    if not common:
        return None
    count = len(common)
    differences = [b[task] - a[task] for task in common]
    mean = sum(differences) / count
    interval = None
    if count > 1:
        error = math.sqrt(sum((one - mean) ** 2 for one in differences) / (count - 1) / count)
        interval = (mean - _Z_95 * error, mean + _Z_95 * error)
    changed = [(task, a[task], b[task]) for task in common if abs(a[task] - b[task]) > _CHANGE]
    return Comparison(
        pairs=count,
        mean_a=sum(a[task] for task in common) / count,
        mean_b=sum(b[task] for task in common) / count,
        difference=mean,
        interval=interval,
        better=[one for one in changed if one[2] > one[1]],
        worse=[one for one in changed if one[2] < one[1]],
        only_a=len(a) - count,
        only_b=len(b) - count,
    )
