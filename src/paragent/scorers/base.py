"""The contract of metrics: an item and a final answer in, a score out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from paragent.tasks import BenchmarkTask

__all__ = ["Ask", "Score", "Scorer"]

Ask = Callable[[Sequence[Mapping[str, Any]]], Awaitable[str]]
"""A model as a metric sees it: chat messages in, the text of the reply out. It retries and limits itself."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a metric says about one answer."""

    value: float | None
    """From 0 to 1; None if nothing can be said, because the item has no reference."""
    note: str = ""
    """Why, for people; may be empty."""


class Scorer(ABC):
    """Scores final answers; one object serves a whole worker, at many answers at the same time, on one event loop.

    Args:
        ask: a model, for metrics that need one (`needs_model`).
    """

    name: ClassVar[str]
    needs_model: ClassVar[bool] = False

    def __init__(self, ask: Ask | None = None) -> None:
        self.ask = ask

    @abstractmethod
    async def score(self, item: BenchmarkTask, answer: str) -> Score:
        """Score an answer.

        Raises:
            InfrastructureError: scoring itself broke; the answer is neither right nor wrong.
        """

    async def close(self) -> None:  # noqa: B027 - most metrics hold nothing
        """End whatever the metric started; more calls do nothing."""
