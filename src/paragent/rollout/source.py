"""`RolloutSource`: where the rollouts of a session come from if they are not the pending ones of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paragent.models.rate_limit_server import RateLimitServer
    from paragent.store import PendingRollout, RolloutResult

__all__ = ["FailureDecisions", "RolloutSource"]


class FailureDecisions(Protocol):
    """Decides what happens after a failure; see `FailurePolicy`."""

    def retry_delay(self, result: RolloutResult, *, stopping: bool) -> float | None:
        """Return after how many seconds the rollout is executed again; None if the result is final."""

    def reason_to_stop(self, result: RolloutResult, concurrent: int) -> str:
        """Return why the session stops after a final result; empty if it does not."""


class RolloutSource(Protocol):
    """Gives a session rollouts while it runs. The thread of the session calls all methods."""

    @property
    def failures(self) -> FailureDecisions:
        """The decisions about failed rollouts."""

    @property
    def total(self) -> int:
        """The number of rollouts of the run so far."""

    def rollouts(self) -> Iterator[PendingRollout | None]:
        """Yield the next rollout, or None while none may start. The session ends after the end of the iteration."""

    def opened(self, rate_limit: RateLimitServer | None) -> None:
        """Take the rate limit server, before the first rollout starts; None for a model without an endpoint."""

    def recorded(self, results: Sequence[RolloutResult]) -> None:
        """Take results that were recorded."""
