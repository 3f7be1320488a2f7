"""A new metric for answers that are there already: nothing is played again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from paragent.models import Model, ModelSettings, open_model
from paragent.scorers import open_scorer
from paragent.store import RolloutResult, RolloutStatus
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.scorers import Scorer
    from paragent.store import Journal

__all__ = ["rescore"]

_BATCH = 200
"""Answers that are scored between two commits."""
_AT_A_TIME = 16


def rescore(journal: Journal, metric: str, judge: ModelSettings | None = None) -> int:
    """Score every answer of a run with `metric`, keep the scores beside the others, and return how many there are.

    Raises:
        UsageError: there is no such metric, or it needs a model and `judge` is None.
    """
    return asyncio.run(_rescore(journal, metric, judge))


async def _rescore(journal: Journal, name: str, judge: ModelSettings | None) -> int:
    model = open_model(judge) if judge else None
    metric = open_scorer(name, ask=_ask(model) if model else None)
    places = asyncio.Semaphore(_AT_A_TIME)
    count = 0
    try:
        batch: list[tuple[int, RolloutResult]] = []
        for result in journal.results("decides = 1 AND status = ?", [RolloutStatus.COMPLETED]):
            batch.append(result)
            if len(batch) == _BATCH:
                count += await _score(journal, metric, name, batch, places)
                batch = []
        count += await _score(journal, metric, name, batch, places)
    finally:
        await metric.close()
        if model:
            await model.close()
    return count


async def _score(
    journal: Journal, metric: Scorer, name: str, batch: list[tuple[int, RolloutResult]], places: asyncio.Semaphore
) -> int:
    async def one(number: int, play: RolloutResult) -> tuple[int, float | None]:
        task = journal.task(play.task)
        assert task is not None
        async with places:
            score = await metric.score(BenchmarkTask(**task.body), play.answer or "")
        return number, score.value

    scores = await asyncio.gather(*(one(number, play) for number, play in batch))
    journal.set_scores(name, scores)
    return len(scores)


def _ask(model: Model) -> Any:
    async def ask(messages: Sequence[Mapping[str, Any]]) -> str:
        completion = await model.complete([dict(message) for message in messages], [])
        return str(completion.message.get("content") or "")

    return ask
