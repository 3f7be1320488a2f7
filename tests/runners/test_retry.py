"""The retry policy of tasks and rollouts."""

from __future__ import annotations

import pytest

from paragent.runners.retry import Failure, RetryPolicy


def executions(policy: RetryPolicy, failure: Failure) -> int:
    """Return how often an attempt is executed that always fails in this way."""
    count = 1
    while policy.allows(failure, count):
        count += 1
    return count


@pytest.mark.parametrize(("max_retries", "infrastructure", "task"), [(None, 3, 1), (0, 1, 1), (4, 5, 5)])
def test_max_retries_counts_for_both_kinds_of_failure(max_retries: int | None, infrastructure: int, task: int) -> None:
    policy = RetryPolicy.for_task(max_retries)
    assert executions(policy, Failure.INFRASTRUCTURE) == infrastructure
    assert executions(policy, Failure.TASK) == task


def test_final_failures_are_never_retried() -> None:
    assert executions(RetryPolicy(9, 9), Failure.FINAL) == 1


def test_the_pause_grows_with_each_retry() -> None:
    policy = RetryPolicy(infrastructure_retries=2, pause=2.0)
    assert [policy.delay(count) for count in (1, 2)] == [2.0, 4.0]
    assert RetryPolicy().delay(3) == 0.0
