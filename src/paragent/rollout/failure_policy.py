"""`FailurePolicy`: decides whether a result is final, is retried, or stops the run. Does no I/O."""

from __future__ import annotations

from paragent.rollout.worker import FATAL_KINDS
from paragent.runners.retry import Failure, RetryPolicy
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.failures import normalised_message

__all__ = ["RETRIES", "FailurePolicy", "SameFailures"]

RETRIES = RetryPolicy(pause=2.0)
"""The retries of a rollout within one session; a new session may retry as often again."""
_ENDPOINT_FAILURES = 20
"""Stop after at least this many consecutive rollouts that failed because of the endpoint."""


class FailurePolicy:
    """The failures of a session.

    Args:
        give_up_after: stop when this many first rollouts all fail with the same error; 0: never.
    """

    def __init__(self, give_up_after: int) -> None:
        self._executions: dict[tuple[str, int], int] = {}
        """How often rollouts with infrastructure failures were executed in this session, by task and attempt."""
        self._endpoint_failures = 0
        """Consecutive rollouts that failed because of the endpoint."""
        self._same_failures = SameFailures(give_up_after)

    def retry_delay(self, result: RolloutResult, *, stopping: bool) -> float | None:
        """Return after how many seconds the rollout is executed again; None if the result is final.

        Args:
            result: the result of an execution.
            stopping: whether the session stops, so that nothing is executed again.
        """
        key = (result.task, result.attempt)
        if result.status is RolloutStatus.INFRASTRUCTURE and result.kind not in FATAL_KINDS:
            executions = self._executions[key] = self._executions.get(key, 0) + 1
            # The runner has already retried a rollout whose worker was lost.
            failure = Failure.FINAL if result.kind == "worker" or stopping else Failure.INFRASTRUCTURE
            if RETRIES.allows(failure, executions):
                return RETRIES.delay(executions)
        self._executions.pop(key, None)
        return None

    def reason_to_stop(self, result: RolloutResult, concurrent: int) -> str:
        """Return why the session stops after a final result; empty if it does not.

        Args:
            result: a final result.
            concurrent: the number of concurrent rollouts: as many failures may have one cause.
        """
        if result.status is RolloutStatus.CANCELLED:
            return ""
        if result.status is not RolloutStatus.INFRASTRUCTURE:
            self._endpoint_failures = 0
            return self._same_failures.note(result)
        if result.kind in FATAL_KINDS:
            return result.error
        if result.kind == "endpoint":
            self._endpoint_failures += 1
            if self._endpoint_failures >= max(_ENDPOINT_FAILURES, concurrent):
                return f"the last {self._endpoint_failures} rollouts all ended with: {result.error}"
        return ""


class SameFailures:
    """Decides whether to stop a run early: its first rollouts all failed with the same error.

    The first result with another outcome ends the check. A reached time limit is such a result: it depends on the task.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._error = ""
        self._count = 0

    def note(self, result: RolloutResult) -> str:
        """Take a final result; return the reason to stop, or an empty string."""
        if self._limit and result.status is RolloutStatus.FAILED:
            first_line = result.error.partition("\n")[0]
            error = f"{result.kind} {normalised_message(first_line)}"
            if self._error in {"", error}:
                self._error = error
                self._count += 1
                if self._count == self._limit:
                    return f"the first {self._count} rollouts all failed with the same error: {first_line}"
                return ""
        self._limit = 0
        return ""
