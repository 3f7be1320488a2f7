"""When to ask an endpoint again. No I/O, no clock.

A refusal for too many requests is a matter of waiting: quotas are counted over windows, a minute as a rule, so the pauses grow
until they are longer than one. An error is a matter of tries: a few, soon after each other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["Patience"]

_FIRST_ERROR_PAUSE = 0.5
_LONGEST_ERROR_PAUSE = 30.0
_FIRST_QUOTA_PAUSE = 1.0
_LONGEST_QUOTA_PAUSE = 90.0
"""Longer than the minute over which most quotas are counted."""
_MOST_DOUBLINGS = 16
"""More would change nothing, and overflow in the end."""
_QUOTA_PATIENCE = 1800.0
"""Seconds of being told to wait after which the endpoint counts as down: thirty windows of a minute."""


@dataclass(slots=True)
class Patience:
    """The pauses of one turn."""

    max_retries: int
    rng: random.Random = field(default_factory=random.Random)
    errors: int = 0
    refusals: int = 0
    waited: float = 0.0

    def after_error(self) -> float | None:
        """Return the seconds to wait before the next try, or None if this was the last."""
        if self.errors >= self.max_retries:
            return None
        pause: float = min(_LONGEST_ERROR_PAUSE, _FIRST_ERROR_PAUSE * 2 ** min(self.errors, _MOST_DOUBLINGS))
        self.errors += 1
        return pause * self.rng.uniform(0.5, 1.5)

    def after_refusal(self, retry_after: float | None, *, general: bool = True) -> float | None:
        """Return the seconds to wait after "too many requests", never less than the endpoint asked for; None: give up.

        Args:
            retry_after: the seconds that the endpoint named.
            general: whether others are refused, too; pauses grow only then.
        """
        if self.waited >= _QUOTA_PATIENCE:
            return None
        pause = min(_LONGEST_QUOTA_PAUSE, _FIRST_QUOTA_PAUSE * 2 ** min(self.refusals, _MOST_DOUBLINGS))
        self.refusals += general
        # Where the endpoint names a time, all who wait come back near it, not at it: else they would be refused again together.
        chosen = pause * self.rng.uniform(0.5, 1.5) if retry_after is None else retry_after + self.rng.uniform(0.0, 1.0)
        self.waited += chosen
        return chosen
