"""Base class of scorers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paragent.errors import UsageError

if TYPE_CHECKING:
    from paragent.tasks import BenchmarkTask

__all__ = ["Ask", "Score", "Scorer"]

Ask = Callable[[Sequence[Mapping[str, Any]]], Awaitable[str]]
"""A judge model: takes chat messages and returns the text of the reply. It does its own retries and rate limiting."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one answer."""

    value: float | None
    """From 0 to 1; None if the answer cannot be scored, for example because the task has no reference."""
    note: str = ""
    """The reason, for people; may be empty."""


class Scorer(ABC):
    """Scores final answers. One object serves a worker: many answers concurrently, on one event loop.

    `paragent.testing.ScorerContract` tests an implementation.

    Args:
        ask: the judge model, for scorers with `needs_model`.
    """

    name: ClassVar[str]
    """The name for `--metric` if the scorer is registered. The key of a score in results is what `--metric` names."""
    needs_model: ClassVar[bool] = False
    """Whether the scorer asks a model; `ask` is then set."""
    needs_reference: ClassVar[bool] = False
    """Whether the scorer compares answers with the reference answers of the task, so that a task without one has no score."""

    def __init__(self, ask: Ask | None = None) -> None:
        self.ask: Ask = ask if ask is not None else _no_judge
        """A function that asks the judge model; without one, it raises `UsageError`."""

    @abstractmethod
    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        """Score the final message `answer`.

        Raises:
            InfrastructureError: scoring failed. The answer counts neither as right nor as wrong.
        """

    async def close(self) -> None:  # noqa: B027 - most scorers hold no resources
        """Release resources. Idempotent."""


async def _no_judge(messages: Sequence[Mapping[str, Any]]) -> str:  # noqa: ARG001 - the signature of a judge
    raise UsageError(
        "there is no judge model: set `needs_model = True` in the scorer's class and name one with --judge-model"
    )
