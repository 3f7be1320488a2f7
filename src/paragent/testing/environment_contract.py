"""The contract of environments as tests: subclass, say which environment, and let pytest collect it.

::

    class TestMine(EnvironmentContract):
        environment = "my_package.envs:Mine"
        item = BenchmarkTask("a", "What is 1 + 1?", "2")
        right, wrong = "Answer: 2", "Answer: 3"
        a_call = ("calculator", {"expression": "1 + 1"})
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paragent.envs import Environment, SharedResources, environment_class, open_environment
from paragent.errors import ConfigError
from paragent.scorers import SCORERS, open_scorer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from paragent.tasks import BenchmarkTask

__all__ = ["EnvironmentContract"]

Answer = TypeVar("Answer")


class EnvironmentContract:
    """What every environment promises."""

    environment: ClassVar[str | type[Environment]]
    options: ClassVar[Mapping[str, Any]] = {}
    item: ClassVar[BenchmarkTask]
    right: ClassVar[str]
    """A final message that deserves the full score for `item`."""
    wrong: ClassVar[str]
    """A final message that deserves nothing."""
    a_call: ClassVar[tuple[str, Mapping[str, Any]]]
    """A tool call that succeeds right after `open`."""

    def open(self, shared: SharedResources | None = None) -> Environment:
        """Return the environment under test."""
        return open_environment(self.environment, self.options, shared=shared)

    def machine(self) -> Any:
        """Return a machine for an attempt, for environments that need one."""
        return None

    # --- what it says of itself ----------------------------------------------------------------------------------------

    def test_an_unknown_option_is_refused_and_the_known_ones_are_told(self) -> None:
        told = ""
        try:
            open_environment(self.environment, {**self.options, "no_such_option": 1})
        except ConfigError as error:
            told = str(error)
        assert "no_such_option" in told
        assert all(name in told for name in environment_class(self.environment).option_names())

    def test_constructing_does_nothing_that_would_have_to_be_undone(self) -> None:
        for _ in range(50):
            self.open()

    def test_tools_are_valid_schemas_with_descriptions(self) -> None:
        for tool in self.open().tools():
            entry = json.loads(json.dumps(tool.as_openai()))["function"]
            assert entry["name"].isidentifier()
            assert entry["description"]
            assert entry["parameters"]["type"] == "object"
            assert set(entry["parameters"]["required"]) <= set(entry["parameters"]["properties"])

    def test_what_decides_by_default_exists(self) -> None:
        kind = environment_class(self.environment)
        scores = _run(self._score(self.right))
        assert kind.metric in SCORERS.names() or (scores and kind.metric in scores)

    # --- an attempt -----------------------------------------------------------------------------------------------------

    def test_it_can_be_checked_before_a_run(self) -> None:
        async def check() -> None:
            async with self.open() as environment:
                await environment.check()

        _run(check())

    def test_the_first_message_has_the_question_and_not_the_answer(self) -> None:
        async def first() -> str:
            async with self.open() as environment:
                return await environment.open(self.item, self.machine())

        assert self.item.question in _run(first())

    def test_a_good_call_succeeds_given_as_an_object_or_as_json(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.item, self.machine())
                name, arguments = self.a_call
                for given in (arguments, json.dumps(dict(arguments))):
                    result = await environment.call(name, given)
                    assert not result.error, result.text
                    assert result.text
                    json.dumps(result.extras)

        _run(call())

    def test_bad_calls_are_told_to_the_agent(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.item, self.machine())
                name, arguments = self.a_call
                bad: list[tuple[str, Any]] = [
                    ("no_such_tool", {}),
                    (name, "{not json"),
                    (name, "[1, 2]"),
                    (name, {**arguments, "no_such_argument": 1}),
                    (name, {key: [] for key in arguments}),
                    (name, {}),
                ]
                for tool, given in bad:
                    result = await environment.call(tool, given)
                    assert result.error, (tool, given, result)
                    assert result.text
                assert not (await environment.call(name, arguments)).error

        _run(call())

    def test_several_calls_of_one_turn_are_all_answered(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.item, self.machine())
                name, arguments = self.a_call
                results = await asyncio.gather(*(environment.call(name, arguments) for _ in range(4)))
                assert not any(result.error for result in results)

        _run(call())

    def test_a_cancelled_call_leaves_it_closable(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.item, self.machine())
                task = asyncio.create_task(environment.call(*self.a_call))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        _run(call())

    # --- scores -----------------------------------------------------------------------------------------------------------

    async def _score(self, answer: str) -> dict[str, float] | None:
        async with self.open() as environment:
            return await environment.score(self.item, answer, [])

    async def _decided(self, answer: str) -> float | None:
        name = environment_class(self.environment).metric
        scores = await self._score(answer)
        if scores is not None and name in scores:
            return scores[name]
        metric = open_scorer(name)
        try:
            return (await metric.score(self.item, answer)).value
        finally:
            await metric.close()

    def test_a_right_answer_scores_1_and_a_wrong_one_0_without_open(self) -> None:
        assert _run(self._decided(self.right)) == 1.0
        assert _run(self._decided(self.wrong)) == 0.0
        assert _run(self._decided("")) == 0.0

    def test_scores_are_between_0_and_1(self) -> None:
        for answer in (self.right, self.wrong, "", "\0 \ud83d", "[" * 200):
            scores = _run(self._score(answer))
            assert scores is None or all(0.0 <= value <= 1.0 for value in scores.values()), (answer, scores)

    # --- many at a time ------------------------------------------------------------------------------------------------

    def test_attempts_that_share_a_worker_do_not_disturb_each_other(self) -> None:
        async def attempt(shared: SharedResources, number: int) -> None:
            async with self.open(shared) as environment:
                await environment.open(self.item, self.machine())
                if number % 3:
                    assert not (await environment.call(*self.a_call)).error

        async def worker() -> None:
            async with SharedResources() as shared:
                await asyncio.gather(*(attempt(shared, number) for number in range(8)))

        _run(worker())

    def test_it_can_be_closed_twice_and_without_open(self) -> None:
        async def close() -> None:
            environment = self.open()
            await environment.close()
            await environment.close()

        _run(close())


def _run(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    return asyncio.run(asyncio.wait_for(coroutine, 100))
