"""Rescoring: score the stored answers of a run with another scorer, without executing rollouts again."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import TYPE_CHECKING

from paragent.models import ModelSettings, open_model
from paragent.rollout.resources import ask_judge
from paragent.scorers import open_scorer
from paragent.store import METRIC, RolloutStatus

if TYPE_CHECKING:
    from paragent.scorers import Scorer
    from paragent.store import Journal, RolloutResult

__all__ = ["rescore"]

_BATCH = 200
"""Answers that are scored between two commits."""
_CONCURRENCY = 16


def rescore(journal: Journal, scorer: str, judge: ModelSettings | None = None) -> int:
    """Score every answer of a run, store the scores in addition to the others, and return the number of answers.

    An answer whose scorer failed gets its score if this is the scorer whose score counts; its rollout is then completed.

    Args:
        journal: the journal of the run.
        scorer: the name or the location of the scorer.
        judge: the model for a scorer that needs one.

    Raises:
        UsageError: the scorer is unknown, or it needs a model and `judge` is None.
    """
    return asyncio.run(_rescore(journal, scorer, judge))


async def _rescore(journal: Journal, name: str, judge: ModelSettings | None) -> int:
    model = open_model(judge) if judge else None
    scorer = open_scorer(name, ask=functools.partial(ask_judge, model) if model else None)
    slots = asyncio.Semaphore(_CONCURRENCY)
    counts = journal.meta(METRIC) in {None, name}
    count = 0
    try:
        results = journal.results("final = 1 AND status IN (?, ?)", [RolloutStatus.COMPLETED, RolloutStatus.UNSCORED])
        while batch := list(itertools.islice(results, _BATCH)):
            scores = await asyncio.gather(*(_score(journal, scorer, one, slots) for one in batch))
            journal.set_scores(name, scores, counts=counts)
            count += len(batch)
    finally:
        await scorer.close()
        if model:
            await model.close()
    return count


async def _score(
    journal: Journal, scorer: Scorer, result: RolloutResult, slots: asyncio.Semaphore
) -> tuple[int, float | None]:
    task = journal.task(result.task)
    assert task is not None
    assert result.number is not None
    async with slots:
        score = await scorer.score(task, result.answer or "")
    return result.number, score.value
