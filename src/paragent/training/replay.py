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
from paragent.rollout.blame import RETRIES, Decision, FailedExecutions, RolloutFailureKind, SameFailures
from paragent.runners.retry import Failure
from paragent.store import RolloutStatus
from paragent.store.records import error_summary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paragent.store import RolloutResult
    from paragent.training.groups import Groups

__all__ = ["ReplayPolicy"]

_FATAL: dict[str, type[ParagentError]] = {
    RolloutFailureKind.TOKENS: TokensMissing,
    RolloutFailureKind.SETTINGS: EndpointRefused,
    RolloutFailureKind.POOL: PoolFailed,
}


class ReplayPolicy:
    """Repeats rollouts that failed because of infrastructure, and says which failures stop the service.

    Args:
        groups: the settings of groups.
        give_up_after: stop when this many first rollouts all fail with the same error; 0: never.
    """

    def __init__(self, groups: Groups, give_up_after: int) -> None:
        self._groups = groups
        self._failures = FailedExecutions()
        self._same_failures = SameFailures(give_up_after)
        self.given_up: set[tuple[str, int]] = set()
        """Rollouts that failed too often; their groups are delivered without them or dropped."""
        self.replays = 0
        """Executions that failed and were repeated."""
        self.error: ParagentError | None = None
        """Why the service stops."""

    def decide(
        self,
        result: RolloutResult,
        *,
        concurrent: int,  # noqa: ARG002 - the signature of a policy
        stopping: bool,
        endpoint_answered: bool,  # noqa: ARG002 - a service may start before its endpoint
        earlier: Iterable[tuple[str, int]] = (),
    ) -> Decision:
        """Decide what happens after an execution; see `FailureDecisions.decide`."""
        self._failures.note_answer(result)
        key = (result.task, result.attempt)
        if result.status is RolloutStatus.INFRASTRUCTURE and result.kind not in _FATAL and not stopping:
            failures = self._failures.add(result)
            again = RETRIES.allows(Failure.INFRASTRUCTURE, failures) or not self._failures.blame_request(result)
            if again and failures < self._groups.max_failures:
                self.replays += 1
                return Decision(retry_after=RETRIES.delay(failures))
            if again:
                self.given_up.add(key)
        self._failures.end(result)
        self.error = self.error or self._error_after(result, earlier)
        return Decision(stop=str(self.error or ""))

    def _error_after(self, result: RolloutResult, earlier: Iterable[tuple[str, int]]) -> ParagentError | None:
        if result.status is RolloutStatus.INFRASTRUCTURE:
            return self._infrastructure_error(result)
        if result.status is RolloutStatus.COMPLETED and result.score is None:
            return RewardMissing(
                f"the rollout {result.label} has no score: its task has no expected answer, and the environment gave none. "
                "Add an answer to each task, or use an environment or a --metric that scores without one"
            )
        reason = self._same_failures.note(result, earlier)
        return ServiceStopped(reason) if reason else None

    def _infrastructure_error(self, result: RolloutResult) -> ParagentError | None:
        if result.kind in _FATAL:
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
