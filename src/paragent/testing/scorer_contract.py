"""Contract suite for scorers: subclass it in a test file, name the scorer, and run pytest.

::

    class TestMine(ScorerContract):
        scorer = "my_package:MyScorer"
        task = BenchmarkTask("a", "What is 1 + 1?", "2")
        right, wrong = "Answer: 2", "Answer: 3"
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paragent.errors import ConfigError
from paragent.scorers import SCORERS, Score, Scorer, open_scorer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from paragent.tasks import BenchmarkTask

__all__ = ["ScorerContract"]

Value = TypeVar("Value")
_SECONDS = 100.0
"""Seconds for one test."""


class ScorerContract:
    """Tests that every scorer must pass."""

    scorer: ClassVar[str]
    """A registered name or `module:Class`."""
    task: ClassVar[BenchmarkTask]
    """A task with one reference answer."""
    right: ClassVar[str]
    """A final message that deserves the score 1."""
    wrong: ClassVar[str]
    """A final message that deserves the score 0."""

    async def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Reply as the judge model; override it for scorers with `needs_model`."""
        raise AssertionError(f"the scorer asked a model, so override `ask` in the contract class; it sent {messages!r}")

    def open(self) -> Scorer:
        """Return the scorer under test."""
        return open_scorer(self.scorer, ask=self.ask)

    def score(self, answer: str, task: BenchmarkTask | None = None) -> Score:
        """Score one answer with a new scorer; the default task is `self.task`."""

        async def score() -> Score:
            scorer = self.open()
            try:
                return await scorer.score(task or self.task, answer)
            finally:
                await scorer.close()

        return _run(score())

    def test_it_has_a_name(self) -> None:
        name = type(self.open()).name
        assert name
        assert ":" in self.scorer or self.scorer == name
        assert name not in SCORERS.names() or isinstance(self.open(), SCORERS.load(name))

    def test_a_right_answer_scores_1(self) -> None:
        assert self.score(self.right).value == 1.0

    def test_a_wrong_answer_scores_0(self) -> None:
        assert self.score(self.wrong).value == 0.0

    def test_an_empty_answer_scores_0(self) -> None:
        assert self.score("").value == 0.0

    def test_a_task_without_a_reference_has_no_score(self) -> None:
        assert self.score(self.right, replace(self.task, answer=None)).value is None

    def test_the_best_reference_counts(self) -> None:
        references = ["a reference that no answer matches", *self.task.references]
        assert self.score(self.right, replace(self.task, answer=references)).value == 1.0

    def test_unusual_answers_have_scores_from_0_to_1(self) -> None:
        for answer in (" ", "\0 \ud83d", "[" * 200, "\\boxed{", "7 " * 20_000, "Answer:"):
            value = self.score(answer).value
            assert value is not None
            assert 0.0 <= value <= 1.0, answer[:20]

    def test_one_object_scores_concurrently(self) -> None:
        async def score_all() -> list[float | None]:
            scorer = self.open()
            try:
                answers = [self.right, self.wrong] * 4
                return [one.value for one in await asyncio.gather(*(scorer.score(self.task, a) for a in answers))]
            finally:
                await scorer.close()

        assert _run(score_all()) == [1.0, 0.0] * 4

    def test_a_scorer_that_needs_a_model_is_not_opened_without_one(self) -> None:
        message = ""
        try:
            open_scorer(self.scorer)
        except ConfigError as error:
            message = str(error)
        assert ("--judge-model" in message) == type(self.open()).needs_model

    def test_close_is_idempotent(self) -> None:
        async def close() -> None:
            scorer = self.open()
            await scorer.close()
            await scorer.close()

        _run(close())


def _run(coroutine: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(asyncio.wait_for(coroutine, _SECONDS))
