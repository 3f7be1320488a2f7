"""One entry of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Item"]


@dataclass(frozen=True, slots=True)
class Item:
    """A question of a benchmark, what is expected, and whatever else the file said about it."""

    id: str
    """Unique within the benchmark."""
    question: str
    answer: Any = None
    """The reference: a text or a number, a list of acceptable ones, or None where the benchmark has none."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Every other key of the entry under its own name. Environments say which of them they read."""

    @property
    def references(self) -> tuple[str, ...]:
        """Every acceptable answer as text; empty if the benchmark has none."""
        if self.answer is None:
            return ()
        if isinstance(self.answer, (list, tuple)):
            return tuple(str(one) for one in self.answer)
        return (str(self.answer),)
