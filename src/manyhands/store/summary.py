"""The statistics of a run, computed from its journal alone, so that they are the same after any number of resumes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from manyhands.store.records import PlayStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.store.journal import Journal

__all__ = ["Summary", "pass_at", "summarise"]

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
    mean: float | None
    """Over all results there are; what has no score because it failed counts as 0."""
    mean_of_played: float | None
    """The same without the failures of infrastructure."""
    standard_error: float | None
    scored: int
    """How many results have a score."""
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

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def summarise(journal: Journal, attempts: int, prices: Mapping[str, float] | None = None) -> Summary:
    """Return the statistics of a run.

    Args:
        journal: of the run.
        attempts: how many attempts at each task were asked for.
        prices: `input` and `output`, for a million tokens; None: the cost is unknown.
    """
    tasks = journal.count_tasks()
    statuses = dict(journal.rows("SELECT status, count(*) FROM plays WHERE decides = 1 GROUP BY status"))
    broken = statuses.get(PlayStatus.INFRASTRUCTURE, 0)
    done = sum(statuses.values())
    [(total, squares, scored)] = journal.rows(
        "SELECT total(score), total(score * score), count(score) FROM plays WHERE decides = 1"
    )
    unscorable = journal.rows(
        "SELECT count(*) FROM plays WHERE decides = 1 AND score IS NULL AND status = ?", [PlayStatus.COMPLETED]
    )[0][0]
    counted = done - unscorable
    [(plays, requests, worked, waited, prompt, completion, silent)] = journal.rows(
        "SELECT count(*), total(requests), total(seconds), total(waited), total(prompt_tokens), total(completion_tokens), "
        "total(prompt_tokens IS NULL OR completion_tokens IS NULL) FROM plays"
    )
    [(sessions, seconds)] = journal.rows("SELECT count(*), total(seconds) FROM sessions")
    summary = Summary(
        tasks=tasks,
        attempts=attempts,
        rollouts=tasks * attempts,
        done=done,
        owed=journal.count_owed(attempts),
        statuses={str(status): statuses.get(status, 0) for status in PlayStatus},
        failures=dict(
            journal.rows(
                "SELECT kind, count(*) FROM plays WHERE decides = 1 AND kind != '' GROUP BY kind ORDER BY 2 DESC"
            )
        ),
        mean=total / counted if counted else None,
        mean_of_played=total / (counted - broken) if counted > broken else None,
        standard_error=_standard_error(total, squares, counted),
        scored=scored,
        pass_at=_pass_at(journal, attempts) if attempts > 1 else {},
        plays=plays,
        prompt_tokens=None if silent else int(prompt),
        completion_tokens=None if silent else int(completion),
        requests=int(requests),
        seconds_worked=worked,
        seconds_waited=waited,
        seconds=seconds,
        sessions=sessions,
        means=_means(journal),
    )
    if prices and not silent:
        summary.cost = (prompt * prices["input"] + completion * prices["output"]) / 1e6
    return summary


def pass_at(k: int, tries: int, solved: int) -> float:
    """Return the chance that at least one of `k` attempts, drawn from `tries` of which `solved` succeeded, succeeds."""
    if tries - solved < k:
        return 1.0
    return 1.0 - math.comb(tries - solved, k) / math.comb(tries, k)


def _standard_error(total: float, squares: float, count: int) -> float | None:
    if count < 2:
        return None
    variance = max(0.0, (squares - total * total / count) / (count - 1))
    return math.sqrt(variance / count)


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
