"""Scores of an answer: the environment's own, and that of the scorer, if the environment does not compute the one that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.envs import Environment
    from paragent.rollout.resources import WorkerResources
    from paragent.tasks import BenchmarkTask

__all__ = ["SCORE_PAUSE", "SCORE_TIMEOUT", "SCORE_TRIES", "AnswerScores", "score_answer"]

SCORE_TIMEOUT = 600.0
"""Seconds of work for scoring one answer; time spent waiting for the endpoint of a judge does not count."""
SCORE_TRIES = 3
"""How often an answer is scored before the failure of the scorer is final."""
SCORE_PAUSE = 1.0
"""Seconds before the second try; before the third they are twice as many."""


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
        Exception: scoring failed. The answer counts neither as right nor as wrong.
    """
    name, note = resources.scorer_name, ""
    scores: dict[str, Any] = dict(await environment.score(task, answer, transcript) or {})
    if name in scores:
        note = environment.score_note
    elif (scorer := resources.scorer()) is not None:
        score = await scorer.score(task, answer)
        scores[name], note = score.value, score.note
    return AnswerScores(scores.get(name), scores, note)
