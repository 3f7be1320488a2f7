"""How many requests each worker may have in flight. No I/O; it takes a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent._clock import Clock, monotonic
from paragent.models.limiter import Limiter

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Report", "SharedLimit", "divide", "withheld"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker tells: its state, and what happened since its last report."""

    in_flight: int = 0
    wanted: int = 0
    """Requests in flight, and those that wait to be."""
    answered: int = 0
    refused: int = 0
    """Answers that asked for fewer requests."""
    retry_after: float = 0.0
    """The longest time for which the endpoint asked to hear nothing."""
    troubled: int = 0
    """Errors of the endpoint's own."""
    seconds: float = 0.0
    """How long the answers took, together."""

    @property
    def has_events(self) -> bool:
        """Whether something happened: an equal report then says that it happened again."""
        return bool(self.answered or self.refused or self.troubled)


class SharedLimit:
    """One endpoint's limit, over all workers. Belongs to one thread."""

    def __init__(self, most: int, clock: Clock = monotonic) -> None:
        self._limiter = Limiter(most, clock)
        self._reports: dict[str, Report] = {}
        self._most: dict[str, int] = {}
        self._turn = 0

    @property
    def pressure(self) -> tuple[int, int]:
        """How many requests are in flight, and how many may be."""
        return sum(report.in_flight for report in self._reports.values()), self._limiter.limit

    def join(self, worker: str, most: int) -> None:
        """A worker takes part that can use `most` requests at a time."""
        self._most[worker] = most
        self._reports[worker] = Report()

    def leave(self, worker: str) -> None:
        """A worker is gone; others may have its share."""
        self._most.pop(worker, None)
        self._reports.pop(worker, None)

    def report(self, worker: str, report: Report) -> None:
        """Take in what a worker tells."""
        self._reports[worker] = report
        limiter = self._limiter
        limiter.in_flight = self.pressure[0]
        for _ in range(report.answered):
            limiter.answered(report.seconds / report.answered)
        limiter.in_flight += report.refused  # the limiter hears of a refusal before the request leaves
        for _ in range(report.refused):
            limiter.throttled(report.retry_after or None)
            limiter.leave()
        for _ in range(report.troubled):
            limiter.troubled()
        limiter.seen_in_flight()  # reports of workers come one after the other: those of a fall may have been old

    def opens_in(self) -> float:
        """Return the seconds until the endpoint wants to hear from anybody again."""
        return self._limiter.opens_in()

    def shares(self) -> dict[str, int]:
        """Return how many requests each worker may have in flight now."""
        workers = sorted(self._most)
        start = self._turn % max(1, len(workers))
        order = workers[start:] + workers[:start]
        wanted = {worker: min(self._reports[worker].wanted, self._most[worker]) for worker in order}
        shares = divide(self._limiter.limit, wanted, self._most)
        return withheld(shares, {worker: self._reports[worker].in_flight for worker in order})

    def rotate(self) -> None:
        """Let what cannot be divided evenly go to others from now on."""
        self._turn += 1


def withheld(shares: Mapping[str, int], in_flight: Mapping[str, int]) -> dict[str, int]:
    """Return shares without the places that other workers still occupy: they have more in flight than their share.

    A place that is given to somebody else before it is free only leads to a refusal.
    """
    occupied = sum(max(0, in_flight[worker] - share) for worker, share in shares.items())
    left = dict(shares)
    for worker, share in shares.items():
        held_back = min(occupied, max(0, share - in_flight[worker]))
        left[worker] -= held_back
        occupied -= held_back
    return left


def divide(limit: int, wanted: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """Divide `limit`: first to those who want, each as much as the others or all that it wants; the rest to be ready with.

    The sum is never more than `limit`, and no share is more than `most` of it.
    """
    shares = dict.fromkeys(wanted, 0)
    left = limit
    for wish in (wanted, most):
        hungry = [worker for worker in shares if shares[worker] < wish[worker]]
        while left > 0 and hungry:
            each = max(1, left // len(hungry))
            for worker in hungry:
                more = min(each, wish[worker] - shares[worker], left)
                shares[worker] += more
                left -= more
            hungry = [worker for worker in hungry if shares[worker] < wish[worker]]
    return shares
