"""Contract suite for environments: subclass it in a test file, name the environment, and run pytest.

::

    class TestMine(EnvironmentContract):
        environment = "my_package.envs:Mine"
        task = BenchmarkTask("a", "What is 1 + 1?", "2")
        right, wrong = "Answer: 2", "Answer: 3"
        good_call = ("calculator", {"expression": "1 + 1"})
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

Value = TypeVar("Value")
_SECONDS = 100.0
"""Seconds for one test."""


class EnvironmentContract:
    """Tests that every environment must pass."""

    environment: ClassVar[str | type[Environment]]
    """The environment to test: its class, or its name."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options for its constructor."""
    task: ClassVar[BenchmarkTask]
    """A task that it can open."""
    right: ClassVar[str]
    """A final message that deserves the score 1 for `task`."""
    wrong: ClassVar[str]
    """A final message that deserves the score 0."""
    good_call: ClassVar[tuple[str, Mapping[str, Any]]]
    """A tool call that succeeds right after `open`."""

    def open(self, shared: SharedResources | None = None) -> Environment:
        """Return the environment under test."""
        return open_environment(self.environment, self.options, shared=shared)

    def machine(self) -> Any:
        """Return a machine for an attempt; override it for environments that need one."""
        return None

    # --- options and tools ---------------------------------------------------------------------------------------------

    def test_an_unknown_option_is_rejected_and_the_known_options_are_listed(self) -> None:
        message = ""
        try:
            open_environment(self.environment, {**self.options, "no_such_option": 1})
        except ConfigError as error:
            message = str(error)
        assert "no_such_option" in message
        assert all(name in message for name in environment_class(self.environment).option_names())

    def test_construction_acquires_no_resources(self) -> None:
        for _ in range(50):
            self.open()

    def test_tools_have_valid_schemas_and_descriptions(self) -> None:
        for tool in self.open().tools():
            entry = json.loads(json.dumps(tool.as_openai()))["function"]
            assert entry["name"].isidentifier()
            assert entry["description"]
            assert entry["parameters"]["type"] == "object"
            assert set(entry["parameters"]["required"]) <= set(entry["parameters"]["properties"])

    def test_the_default_metric_exists(self) -> None:
        kind = environment_class(self.environment)
        scores = _run(self._score(self.right))
        assert kind.metric in SCORERS.names() or (scores and kind.metric in scores)

    # --- attempts -------------------------------------------------------------------------------------------------------

    def test_check_succeeds(self) -> None:
        async def check() -> None:
            async with self.open() as environment:
                await environment.check()

        _run(check())

    def test_the_first_message_has_the_question(self) -> None:
        async def first() -> str:
            async with self.open() as environment:
                return await environment.open(self.task, self.machine())

        assert self.task.question in _run(first())

    def test_a_call_succeeds_with_an_object_or_with_json(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.task, self.machine())
                name, arguments = self.good_call
                for given in (arguments, json.dumps(dict(arguments))):
                    result = await environment.call(name, given)
                    assert not result.error, result.text
                    assert result.text
                    json.dumps(result.extras)

        _run(call())

    def test_invalid_calls_are_reported_to_the_agent(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.task, self.machine())
                name, arguments = self.good_call
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

    def test_all_calls_of_one_turn_are_answered(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.task, self.machine())
                name, arguments = self.good_call
                results = await asyncio.gather(*(environment.call(name, arguments) for _ in range(4)))
                assert not any(result.error for result in results)

        _run(call())

    def test_close_works_after_a_cancelled_call(self) -> None:
        async def call() -> None:
            async with self.open() as environment:
                await environment.open(self.task, self.machine())
                task = asyncio.create_task(environment.call(*self.good_call))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        _run(call())

    # --- scores -----------------------------------------------------------------------------------------------------------

    async def _score(self, answer: str) -> dict[str, float] | None:
        async with self.open() as environment:
            return await environment.score(self.task, answer, [])

    async def _decided(self, answer: str) -> float | None:
        name = environment_class(self.environment).metric
        scores = await self._score(answer)
        if scores is not None and name in scores:
            return scores[name]
        scorer = open_scorer(name)
        try:
            return (await scorer.score(self.task, answer)).value
        finally:
            await scorer.close()

    def test_right_answers_score_1_and_wrong_answers_0_without_open(self) -> None:
        assert _run(self._decided(self.right)) == 1.0
        assert _run(self._decided(self.wrong)) == 0.0
        assert _run(self._decided("")) == 0.0

    def test_scores_are_between_0_and_1(self) -> None:
        for answer in (self.right, self.wrong, "", "\0 \ud83d", "[" * 200):
            scores = _run(self._score(answer))
            assert scores is None or all(0.0 <= value <= 1.0 for value in scores.values()), (answer, scores)

    # --- concurrency ---------------------------------------------------------------------------------------------------

    def test_concurrent_attempts_share_a_worker(self) -> None:
        async def attempt(shared: SharedResources, number: int) -> None:
            async with self.open(shared) as environment:
                await environment.open(self.task, self.machine())
                if number % 3:
                    assert not (await environment.call(*self.good_call)).error

        async def worker() -> None:
            async with SharedResources() as shared:
                await asyncio.gather(*(attempt(shared, number) for number in range(8)))

        _run(worker())

    def test_close_is_idempotent_and_needs_no_open(self) -> None:
        async def close() -> None:
            environment = self.open()
            await environment.close()
            await environment.close()

        _run(close())


def _run(coroutine: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(asyncio.wait_for(coroutine, _SECONDS))
