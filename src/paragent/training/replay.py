"""`ReplayPolicy`: what happens to failed rollouts of a rollout service. Does no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.text import counted
from paragent.errors import (
    EndpointRefused,
    ParagentError,
    PoolFailed,
    ReplaysUsedUp,
    RewardMissing,
    ServiceStopped,
    TokensMissing,
)
from paragent.rollout.failure_policy import RETRIES, SameFailures
from paragent.rollout.worker import FATAL_KINDS
from paragent.store import RolloutStatus
from paragent.store.records import error_summary

if TYPE_CHECKING:
    from paragent.store import RolloutResult
    from paragent.training.groups import Groups

__all__ = ["ReplayPolicy"]

_FATAL: dict[str, type[ParagentError]] = {"tokens": TokensMissing, "refused": EndpointRefused, "pool": PoolFailed}


class ReplayPolicy:
    """Repeats rollouts that failed because of infrastructure, and says which failures stop the service.

    Args:
        groups: the settings of groups.
        give_up_after: stop when this many first rollouts all fail with the same error; 0: never.
    """

    def __init__(self, groups: Groups, give_up_after: int) -> None:
        self._groups = groups
        self._failures: dict[tuple[str, int], int] = {}
        """How often in a row rollouts have failed because of infrastructure, by task and attempt."""
        self._same_failures = SameFailures(give_up_after)
        self.given_up: set[tuple[str, int]] = set()
        """Rollouts that failed too often; their groups are delivered without them or dropped."""
        self.replays = 0
        """Executions that failed and were repeated."""
        self.error: ParagentError | None = None
        """Why the service stops."""

    def retry_delay(self, result: RolloutResult, *, stopping: bool) -> float | None:
        """Return after how many seconds the rollout is executed again; None if the result is final."""
        key = (result.task, result.attempt)
        if result.status is not RolloutStatus.INFRASTRUCTURE or result.kind in FATAL_KINDS or stopping:
            self._failures.pop(key, None)
            return None
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if failures < self._groups.max_failures:
            self.replays += 1
            return RETRIES.delay(failures)
        self._failures.pop(key)
        self.given_up.add(key)
        return None

    def reason_to_stop(self, result: RolloutResult, concurrent: int) -> str:  # noqa: ARG002 - the signature of a policy
        """Return why the session stops after a final result; empty if it does not."""
        self.error = self.error or self._error_after(result)
        return str(self.error or "")

    def _error_after(self, result: RolloutResult) -> ParagentError | None:
        if result.status is RolloutStatus.INFRASTRUCTURE:
            return self._infrastructure_error(result)
        if result.status is RolloutStatus.COMPLETED and result.score is None:
            return RewardMissing(
                f"the rollout {result.label} has no score: its task has no expected answer, and the environment gave none. "
                "Add an answer to each task, or use an environment or a --metric that scores without one"
            )
        reason = self._same_failures.note(result) if result.status is not RolloutStatus.CANCELLED else ""
        return ServiceStopped(reason) if reason else None

    def _infrastructure_error(self, result: RolloutResult) -> ParagentError | None:
        if result.kind in FATAL_KINDS:
            return _FATAL[result.kind](error_summary(result.error) or result.error)
        key = (result.task, result.attempt)
        if self._groups.infrastructure != "replay" or key not in self.given_up:
            return None
        failures = self._groups.max_failures
        return ReplaysUsedUp(
            f"the rollout {result.label} failed {counted(failures, 'time')} in a row because of infrastructure; the last time: "
            f"{error_summary(result.error)}. The group stays owed: when the cause is removed, a service with the same run "
            "directory continues. Groups(infrastructure=partial(min=k)) delivers such a group without the rollout",
            *key,
            failures,
        )
