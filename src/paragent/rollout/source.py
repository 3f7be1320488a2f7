"""`RolloutSource`: where the rollouts of a session come from if they are not the pending ones of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paragent.models.rate_limit_server import RateLimitServer
    from paragent.rollout.blame import Decision
    from paragent.store import PendingRollout, RolloutResult

__all__ = ["FailurePolicy", "RolloutSource"]


class FailurePolicy(Protocol):
    """Decides what happens after an execution; see `FailureDecisions`."""

    def decide(
        self,
        result: RolloutResult,
        *,
        concurrent: int,
        stopping: bool,
        endpoint_answered: bool,
        earlier: Iterable[tuple[str, int]] = (),
    ) -> Decision:
        """Decide what happens after an execution; see `FailureDecisions.decide`."""


class RolloutSource(Protocol):
    """Gives a session rollouts while it runs. The thread of the session calls all methods."""

    @property
    def failures(self) -> FailurePolicy:
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
