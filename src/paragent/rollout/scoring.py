"""Scores of an answer: the environment's own, and that of the scorer, if the environment does not compute the one that counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.envs import Environment
    from paragent.rollout.resources import WorkerResources
    from paragent.tasks import BenchmarkTask

__all__ = ["SCORE_TIMEOUT", "AnswerScores", "score_answer"]

SCORE_TIMEOUT = 600.0
"""Seconds for scoring one answer, including the retries of a judge model."""


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """The scores of one answer."""

    value: float | None
    """The score that counts; None if there was nothing to compare."""
    scores: dict[str, Any]
    """All scores by name."""
    note: str = ""
    """What the scorer says about its score."""


async def score_answer(
    resources: WorkerResources,
    environment: Environment,
    task: BenchmarkTask,
    answer: str,
    transcript: Sequence[Mapping[str, Any]],
) -> AnswerScores:
    """Score the answer of an attempt.

    Raises:
        InfrastructureError: scoring failed or took too long. The answer counts neither as right nor as wrong.
    """
    name, note = resources.scorer_name, ""
    limit = asyncio.timeout(SCORE_TIMEOUT)
    try:
        async with limit:
            scores: dict[str, Any] = dict(await environment.score(task, answer, transcript) or {})
            if name in scores:
                note = environment.score_note
            elif (scorer := resources.scorer()) is not None:
                score = await scorer.score(task, answer)
                scores[name], note = score.value, score.note
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise EnvironmentFailed(f"scoring took longer than {SCORE_TIMEOUT:g} s") from error
    return AnswerScores(scores.get(name), scores, note)
