"""Rescoring: score the stored answers of a run with a scorer, without executing rollouts again."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent._internal.tracebacks import described
from paragent.errors import EndpointDown
from paragent.models import ModelSettings, open_model
from paragent.models.base import count_reply, reply_counter
from paragent.rollout.blame import Circumstances, Stage, blame
from paragent.rollout.episode import recorded_fields
from paragent.scorers import open_scorer
from paragent.store import METRIC, PRICES, NewScore, RolloutStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.models import Model
    from paragent.scorers import Score, Scorer
    from paragent.scorers.base import Ask
    from paragent.store import Journal, RolloutResult

__all__ = ["JudgeUsage", "Rescored", "rescore"]

_BATCH = 200
"""Answers that are scored between two commits."""
_CONCURRENCY = 16
_judge_steps: ContextVar[list[dict[str, Any]]] = ContextVar("paragent_judge_steps")
"""The calls of the judge for the answer that is scored, as steps of its trajectory."""


@dataclass(slots=True)
class JudgeUsage:
    """The replies and tokens of a judge."""

    requests: int = 0
    """Replies of the judge."""
    prompt_tokens: int | None = 0
    """None if the endpoint did not report tokens."""
    completion_tokens: int | None = 0
    is_counted: bool = True
    """Whether the counts of the run include it. They do not if the run has prices and none for this judge."""

    def count(self, model: str, usage: Mapping[str, int] | None) -> None:  # noqa: ARG002 - the signature of a counter
        """Count a reply and its tokens."""
        tokens = (None, None) if usage is None else (usage["prompt_tokens"], usage["completion_tokens"])
        self.add(1, *tokens)

    def add(self, requests: int, prompt: int | None, completion: int | None) -> None:
        """Add the usage of other replies."""
        self.requests += requests
        self.prompt_tokens = _sum(self.prompt_tokens, prompt)
        self.completion_tokens = _sum(self.completion_tokens, completion)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


@dataclass(frozen=True, slots=True)
class Rescored:
    """What `rescore` did."""

    answers: int
    """Answers that the scorer scored, `unscored` included."""
    unscored: dict[str, str]
    """What the scorer said about the answers for which it returned None, by rollout: there was nothing to compare."""
    failures: dict[str, str]
    """Why the scorer failed, by rollout; these answers keep the scores that they had."""
    usage: JudgeUsage
    """What the judge used, also for answers for which it failed."""


def rescore(
    journal: Journal,
    scorer: str,
    judge: ModelSettings | None = None,
    *,
    only_unscored: bool = False,
    models: tuple[str | None, str | None] = (None, None),
) -> Rescored:
    """Score the answers of a run, and store the scores in addition to those of other scorers.

    If this is the scorer whose score counts, the new scores count, and answers whose scorer failed are completed.

    Args:
        journal: the journal of the run.
        scorer: the name or the location of the scorer.
        judge: the model for a scorer that needs one.
        only_unscored: score only the answers whose scorer failed.
        models: the names of the run's model and of its judge, whose prices the run may have.

    Raises:
        UsageError: the scorer is unknown, or it needs a model and `judge` is None.
        InfrastructureError: the endpoint of the judge rejects all requests, or does not answer. The scores until then are
            stored.
    """
    statuses = [RolloutStatus.UNSCORED] if only_unscored else [RolloutStatus.COMPLETED, RolloutStatus.UNSCORED]
    return asyncio.run(_rescore(journal, scorer, judge, statuses, models))


async def _rescore(
    journal: Journal,
    name: str,
    judge: ModelSettings | None,
    statuses: list[RolloutStatus],
    models: tuple[str | None, str | None],
) -> Rescored:
    model = open_model(judge) if judge else None
    scorer = open_scorer(name, ask=_judge(model, name) if model else None)
    slots = asyncio.Semaphore(_CONCURRENCY)
    judge_name = judge.name if judge else None
    total = JudgeUsage(is_counted=judge_name in models or journal.meta(PRICES) in {None, "null"})
    answers, unscored, failures = 0, dict[str, str](), dict[str, str]()
    try:
        results = journal.results(f"final = 1 AND status IN ({', '.join('?' * len(statuses))})", statuses)
        while batch := list(itertools.islice(results, _BATCH)):
            scores: list[tuple[RolloutResult, Score, list[dict[str, Any]]]] = []
            usage: dict[int, JudgeUsage] = {}
            try:
                async with asyncio.TaskGroup() as group:
                    for result in batch:
                        group.create_task(_score(journal, scorer, result, slots, scores, failures, usage))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            finally:
                journal.set_scores(
                    name,
                    [_new_score(name, result, score, asked) for result, score, asked in scores],
                    counts=journal.meta(METRIC) == name,
                )
                rows = [
                    (number, one.requests, one.prompt_tokens, one.completion_tokens) for number, one in usage.items()
                ]
                if total.is_counted:
                    journal.add_judge_usage(rows, is_agent_model=judge_name == models[0])
                for one in usage.values():
                    total.add(one.requests, one.prompt_tokens, one.completion_tokens)
                answers += len(scores)
                unscored |= {result.label: score.note for result, score, _ in scores if score.value is None}
    finally:
        await scorer.close()
        if model:
            await model.close()
    return Rescored(answers, unscored, failures, total)


def _judge(model: Model, scorer: str) -> Ask:
    """Return the function with which a scorer asks the judge."""

    async def ask(messages: Sequence[Mapping[str, Any]]) -> str:
        sent, began = [dict(message) for message in messages], time.monotonic()
        completion = await model.complete(sent, [])
        count_reply(model.settings.name, completion.usage)
        step = {"kind": "judge", "metric": scorer, "model": model.settings.name, "request": sent}
        seconds = round(time.monotonic() - began, 4)
        _judge_steps.get().append({**step, "seconds": seconds, **recorded_fields(completion, model)})
        return str(completion.message.get("content") or "")

    return ask


def _new_score(scorer: str, result: RolloutResult, score: Score, asked: list[dict[str, Any]]) -> NewScore:
    assert result.number is not None
    notes = [{"kind": "score", "metric": scorer, "note": score.note}] if score.note else []
    return NewScore(result.number, score.value, [*asked, *notes])


async def _score(
    journal: Journal,
    scorer: Scorer,
    result: RolloutResult,
    slots: asyncio.Semaphore,
    scores: list[tuple[RolloutResult, Score, list[dict[str, Any]]]],
    failures: dict[str, str],
    usage: dict[int, JudgeUsage],
) -> None:
    """Score an answer and append the score and the calls of the judge to `scores`, or the failure to `failures`; add what a
    judge used to `usage`.

    Raises:
        InfrastructureError: no other answer can be scored either.
    """
    task = journal.task(result.task)
    assert task is not None
    assert result.number is not None
    reply_counter.set(usage.setdefault(result.number, JudgeUsage()).count)  # both for this asyncio task only
    asked: list[dict[str, Any]] = []
    _judge_steps.set(asked)
    async with slots:
        try:
            score = await scorer.score(task, result.answer or "")
        except Exception as error:
            is_down = isinstance(error, EndpointDown) and not error.others_answered
            if is_down or blame(error, Circumstances(stage=Stage.SCORING)).is_fatal:
                raise
            failures[result.label] = described(error)
        else:
            scores.append((result, score, asked))
