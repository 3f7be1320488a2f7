"""What the driver is given and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._clock import monotonic

if TYPE_CHECKING:
    from paragent.parcels import Parcel
    from paragent.tasks import Outcome

__all__ = ["Owed", "Settlement"]


@dataclass(slots=True, eq=False)
class Owed:
    """A piece of work for which one settlement is owed, and how often it may be tried."""

    label: str
    """The task's id."""
    target: Parcel
    argument: Any
    is_async: bool = False
    limit: float | None = None
    max_retries: int | None = None
    """Further attempts; None: the defaults of `paragent.driver.retry`."""
    source: Any = None
    """Whatever the caller wants to find again on the settlement."""
    accepted: float = field(default_factory=monotonic)
    """When the run took charge of it."""
    attempt: int = 1
    """The attempt under way, counted from 1; attempts that are not charged do not count."""
    company: int = 0


@dataclass(slots=True, eq=False)
class Settlement:
    """The end of a piece of work: the outcome that decided."""

    owed: Owed
    outcome: Outcome
    waited: float
    """Seconds from acceptance to the end that were not this attempt's work."""
