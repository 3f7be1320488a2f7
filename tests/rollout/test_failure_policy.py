"""`FailurePolicy`: which results are retried and which stop a run."""

from __future__ import annotations

from paragent.rollout.failure_policy import RETRIES, FailurePolicy
from paragent.store import RolloutResult, RolloutStatus


def infrastructure(task: str, kind: str) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.INFRASTRUCTURE, kind=kind, error=f"no {kind}")


def test_infrastructure_failures_are_retried_a_few_times() -> None:
    policy = FailurePolicy(10)
    failed = infrastructure("t", "environment")
    delays = [policy.retry_delay(failed, stopping=False) for _ in range(4)]
    assert delays == [RETRIES.delay(1), RETRIES.delay(2), None, RETRIES.delay(1)], (
        "the count begins again after a final result"
    )
    assert policy.retry_delay(infrastructure("u", "environment"), stopping=True) is None
    assert policy.retry_delay(infrastructure("v", "worker"), stopping=False) is None, "the runner has retried it"
    assert policy.retry_delay(infrastructure("w", "refused"), stopping=False) is None


def test_an_endpoint_that_fails_again_and_again_stops_the_run() -> None:
    policy = FailurePolicy(0)
    reasons = [policy.reason_to_stop(infrastructure(f"t{n}", "endpoint"), 2) for n in range(20)]
    assert reasons[:19] == [""] * 19
    assert "the last 20 rollouts all ended with: no endpoint" in reasons[19]
    assert policy.reason_to_stop(infrastructure("x", "refused"), 2) == "no refused"


def test_cancelled_rollouts_decide_nothing() -> None:
    policy = FailurePolicy(2)
    failed = RolloutResult("t", 1, RolloutStatus.FAILED, kind="ValueError", error="ValueError: x")
    cancelled = RolloutResult("u", 1, RolloutStatus.CANCELLED, kind="cancelled", error="cancelled by a user")
    assert policy.retry_delay(cancelled, stopping=False) is None
    assert [policy.reason_to_stop(one, 1) for one in (failed, cancelled)] == ["", ""]
    assert "first 2 rollouts" in policy.reason_to_stop(failed, 1)
