"""The statistics of a run, computed from its journal alone, so that they are the same after any number of resumes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.store.compare import Z
from paragent.store.records import RolloutStatus, reason_of
from paragent.tasks import TURNS_USED_UP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.store.journal import Journal

__all__ = ["MACHINES", "PRICES", "Summary", "final_failures", "pass_at", "summarise"]

PRICES = "prices"
"""The journal's note, in JSON, of `input` and `output`, for a million tokens, of the `model` and, if there is one, of a `judge`
that is another model; without it the cost is unknown."""
MACHINES = "machines"
"""The journal's note, in JSON, of what came of the machines of all sessions: `leases_granted`, `leased_seconds`,
`machine_seconds`."""
_SOLVED = 1.0 - 1e-9
"""A task counts as solved, for pass@k, with the full score."""


@dataclass(slots=True)
class Summary:
    """A run in numbers."""

    tasks: int
    attempts: int
    rollouts: int
    """How many results there will be: tasks times attempts."""
    done: int
    """How many there are, those that infrastructure decided included."""
    owed: int
    statuses: dict[str, int]
    failures: dict[str, int]
    """Results without success, by what failed."""
    reasons: dict[str, str]
    """By what failed, the message of the most frequent error of that kind."""
    mean: float | None
    """Over all results there are; what has no score because it failed counts as 0."""
    mean_of_played: float | None
    """The same without the failures of infrastructure."""
    standard_error: float | None
    """Of `mean`, clustered by task: attempts at one task are not independent. None with fewer than two tasks."""
    interval: tuple[float, float] | None
    """The 95 % interval of `mean`, from `standard_error`."""
    scored: int
    """How many results have a score."""
    unscored: int = 0
    """How many completed rollouts have no score although their task has a reference answer or other results have one."""
    pass_at: dict[int, float] = field(default_factory=dict)
    plays: int = 0
    """How often something was played, those plays included that others followed."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    """None: some endpoint did not say."""
    requests: int = 0
    cost: float | None = None
    """In the currency of the prices; None: unknown."""
    seconds_worked: float = 0.0
    seconds_waited: float = 0.0
    seconds: float = 0.0
    """Of all sessions together."""
    sessions: int = 0
    means: dict[str, float] = field(default_factory=dict)
    """By metric, over the results for which it has a value."""
    machines: dict[str, float] | None = None
    """`leases_granted`, `leased_seconds`, `machine_seconds` and `utilisation`; None: no machines were used."""

    out_of_turns: bool = False
    """Every result came from a rollout that used up its turns, and none has a score above 0."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def summarise(journal: Journal, attempts: int) -> Summary:
    """Return the statistics of a run.

    Args:
        journal: of the run.
        attempts: how many attempts at each task were asked for.
    """
    tasks = journal.count_tasks()
    statuses = dict(journal.rows("SELECT status, count(*) FROM plays WHERE decides = 1 GROUP BY status"))
    [(sessions, seconds)] = journal.rows("SELECT count(*), total(seconds) FROM sessions")
    return Summary(
        tasks=tasks,
        attempts=attempts,
        rollouts=tasks * attempts,
        done=sum(statuses.values()),
        owed=journal.count_owed(attempts),
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
        **_use(journal),
    )


def _out_of_turns(journal: Journal) -> bool:
    [(results, used_up, best)] = journal.rows(
        "SELECT count(*), total(ending = ?), max(score) FROM plays WHERE decides = 1", [TURNS_USED_UP]
    )
    return bool(results) and used_up == results and not best


def _unscored(journal: Journal) -> int:
    [(count,)] = journal.rows(
        "SELECT count(*) FROM plays p LEFT JOIN tasks t ON t.id = p.task "
        "WHERE decides = 1 AND status = ? AND score IS NULL "
        "AND (coalesce(json_extract(t.body, '$.answer'), '[]') != '[]' "
        "OR EXISTS (SELECT 1 FROM plays WHERE decides = 1 AND score IS NOT NULL))",
        [RolloutStatus.COMPLETED],
    )
    return int(count)


def _failures(journal: Journal) -> dict[str, int]:
    query = "SELECT kind, count(*) FROM plays WHERE decides = 1 AND kind != '' GROUP BY kind ORDER BY 2 DESC"
    return dict(journal.rows(query))


def _reasons(journal: Journal) -> dict[str, str]:
    query = "SELECT kind, error FROM plays WHERE decides = 1 AND kind != '' GROUP BY kind, error ORDER BY count(*), max(number)"
    return {kind: reason_of(error) for kind, error in journal.rows(query)}


def final_failures(journal: Journal) -> dict[str, int]:
    """Return the results without success that no new session plays again, by what failed."""
    query = "SELECT kind, count(*) FROM plays WHERE decides = 1 AND kind != '' AND status != ? GROUP BY kind"
    return dict(journal.rows(query, [RolloutStatus.INFRASTRUCTURE]))


def _scores(journal: Journal, statuses: Mapping[str, int]) -> dict[str, Any]:
    """Return the mean in both its forms; a completed rollout that nothing could score is in neither."""
    [(tasks, counted, total, scored, squares, products, sizes)] = journal.rows(
        "SELECT count(*), total(n), total(s), total(scored), total(s * s), total(s * n), total(n * n) FROM ("
        "SELECT count(*) AS n, total(score) AS s, count(score) AS scored FROM plays "
        "WHERE decides = 1 AND (score IS NOT NULL OR status != ?) GROUP BY task)",
        [RolloutStatus.COMPLETED],
    )
    played = counted - statuses.get(RolloutStatus.INFRASTRUCTURE, 0)
    mean = total / counted if counted else None
    error = None
    if mean is not None and tasks > 1:
        # The deviations of each task's attempts are summed before they are squared, so what attempts have in common counts once.
        deviations = squares - 2 * mean * products + mean * mean * sizes
        error = math.sqrt(max(0.0, deviations) * tasks / (tasks - 1)) / counted
    return {
        "mean": mean,
        "mean_of_played": total / played if played > 0 else None,
        "standard_error": error,
        "interval": None if mean is None or error is None else (mean - Z * error, mean + Z * error),
        "scored": int(scored),
    }


def _use(journal: Journal) -> dict[str, Any]:
    """Return what all plays used, those included that others followed."""
    prices = json.loads(journal.meta(PRICES) or "null")
    [(plays, requests, worked, waited, prompt, completion, silent, judge_prompt, judge_completion)] = journal.rows(
        "SELECT count(*), total(requests), total(seconds), total(waited), total(prompt_tokens), total(completion_tokens), "
        "total(prompt_tokens IS NULL OR completion_tokens IS NULL), total(judge_prompt_tokens), "
        "total(judge_completion_tokens) FROM plays"
    )
    return {
        "plays": plays,
        "prompt_tokens": None if silent else int(prompt),
        "completion_tokens": None if silent else int(completion),
        "requests": int(requests),
        "cost": None if silent else _cost(prices, prompt, completion, judge_prompt, judge_completion),
        "seconds_worked": worked,
        "seconds_waited": waited,
    }


def _cost(
    prices: Mapping[str, Mapping[str, float]] | None,
    prompt: float,
    completion: float,
    judge_prompt: float,
    judge_completion: float,
) -> float | None:
    """Return what tokens cost; those of a judge that is another model are priced as such. None where a price is unknown."""
    if not prices or ((judge_prompt or judge_completion) and "judge" not in prices):
        return None
    model = prices["model"]
    judge = prices.get("judge", model)
    amount = (prompt - judge_prompt) * model["input"] + (completion - judge_completion) * model["output"]
    return (amount + judge_prompt * judge["input"] + judge_completion * judge["output"]) / 1e6


def _machines(journal: Journal) -> dict[str, float] | None:
    """Return what came of the machines, and which part of their time rollouts had them."""
    note = journal.meta(MACHINES)
    if note is None:
        return None
    figures: dict[str, float] = json.loads(note)
    whole = figures["machine_seconds"]
    return figures | {"utilisation": round(figures["leased_seconds"] / whole, 4) if whole else 0.0}


def pass_at(k: int, tries: int, solved: int) -> float:
    """Return the chance that at least one of `k` attempts, drawn from `tries` of which `solved` succeeded, succeeds."""
    if tries - solved < k:
        return 1.0
    return 1.0 - math.comb(tries - solved, k) / math.comb(tries, k)


def _pass_at(journal: Journal, attempts: int) -> dict[int, float]:
    groups = journal.rows(
        "SELECT solved, count(*) FROM (SELECT total(score >= ?) AS solved FROM plays WHERE decides = 1 GROUP BY task "
        "HAVING count(*) >= ?) GROUP BY solved",
        [_SOLVED, attempts],
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
            "SELECT key, avg(json_each.value) FROM plays, json_each(plays.scores) "
            "WHERE decides = 1 AND json_each.value IS NOT NULL GROUP BY key ORDER BY key"
        )
    )
