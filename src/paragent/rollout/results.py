"""Results of executions that did not return one: the worker was lost, the code was stopped or raised, a user cancelled it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paragent.rollout.blame import CANCELLED, RolloutFailureKind, Verdict, blame_response
from paragent.rollout.live_status import last_status
from paragent.store import RolloutResult, RolloutStatus
from paragent.tasks import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from paragent.rollout.live_status import UnfinishedRollout
    from paragent.store import PendingRollout
    from paragent.tasks import TaskResponse

__all__ = ["result_of", "unfinished_result"]


def result_of(response: TaskResponse, rollout: PendingRollout, live: Path, *, cancelled: bool) -> RolloutResult | None:
    """Return the result that a response contains; None for a rollout that the session cancelled before it used anything.

    Args:
        response: the response of the runner.
        rollout: the rollout.
        live: the folder of status files.
        cancelled: whether a user cancelled the rollout: then it is not retried.
    """
    result = _uncancelled_result(response, rollout)
    if cancelled and (result is None or result.status is RolloutStatus.INFRASTRUCTURE):
        result = result or RolloutResult(rollout.task.id, rollout.attempt, RolloutStatus.CANCELLED, ended=time.time())
        CANCELLED.set_on(result)
        result.final = True
    if result is not None and response.status is not TaskStatus.SUCCEEDED:
        _add_last_status(result, live)
    return result


def _uncancelled_result(response: TaskResponse, rollout: PendingRollout) -> RolloutResult | None:
    if response.status is TaskStatus.SUCCEEDED:
        answer: Any = response.answer
        assert isinstance(answer, RolloutResult)
        return answer
    result = RolloutResult(rollout.task.id, rollout.attempt, RolloutStatus.INFRASTRUCTURE, worker=response.worker)
    result.seconds, result.ended = response.time_cost, time.time()
    _set_usage(result, response.usage)
    verdict = blame_response(response)
    if verdict is None:  # the session cancelled it, so it is pending and only its usage counts
        result.kind, result.error, result.final = RolloutFailureKind.CANCELLED, response.msg, False
        return result if result.requests else None
    verdict.set_on(result)
    return result


def _set_usage(result: RolloutResult, usage: Mapping[str, float]) -> None:
    """Set when an unfinished rollout began and what it had used, as its worker reported it."""
    result.started = usage.get("started", 0.0)
    result.requests, result.cached_replies = int(usage.get("requests", 0)), int(usage.get("cached_replies", 0))
    unknown = bool(usage.get("unknown"))
    result.prompt_tokens, result.completion_tokens = (
        None if unknown else int(usage.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")
    )
    result.cached_tokens, result.reasoning_tokens = (
        int(usage[name]) if name in usage and not unknown else None for name in ("cached_tokens", "reasoning_tokens")
    )
    result.judge_prompt_tokens, result.judge_completion_tokens = (
        int(usage.get(name, 0)) for name in ("judge_prompt_tokens", "judge_completion_tokens")
    )


def _add_last_status(result: RolloutResult, live: Path) -> None:
    """Add what the worker of an unfinished execution reported last; without a report, only the time of its start."""
    known = last_status(live, result.worker, result.task, result.attempt)
    if known is None or (result.started and known.started != result.started):
        result.started = result.started or (result.ended - result.seconds if result.seconds else 0.0)
    else:
        result.started, result.machine, result.activity = known.started, known.machine, known.activity
        if known.requests > result.requests:
            _copy_usage(result, known)


def _copy_usage(result: RolloutResult, one: UnfinishedRollout) -> None:
    result.requests = one.requests
    result.prompt_tokens, result.completion_tokens = one.prompt_tokens, one.completion_tokens
    result.cached_tokens, result.reasoning_tokens = one.cached_tokens, one.reasoning_tokens
    result.judge_prompt_tokens, result.judge_completion_tokens = one.judge_prompt_tokens, one.judge_completion_tokens


def unfinished_result(one: UnfinishedRollout) -> RolloutResult:
    """Return a result for a rollout whose worker died; it is not final and only counts usage."""
    result = RolloutResult(
        one.task,
        one.attempt,
        RolloutStatus.INFRASTRUCTURE,
        final=False,
        started=one.started,
        ended=one.reported,
        worker=one.worker,
        machine=one.machine,
        activity=one.activity,
    )
    Verdict(RolloutFailureKind.WORKER, "its worker died").set_on(result)
    _copy_usage(result, one)
    return result
