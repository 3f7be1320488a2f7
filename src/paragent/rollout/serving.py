"""Environments for agents of other programs: opened for a client, with its tools, its task and its score.

`paragent env serve` offers them as an MCP server or an OpenEnv server.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.ids import new_id
from paragent._internal.text import well_formed
from paragent.envs import environment_class
from paragent.errors import UsageError
from paragent.rollout.dataset import Benchmark, read_benchmark
from paragent.rollout.episode import CLOSE_TIMEOUT
from paragent.rollout.prepare import rollout_settings_of, with_data_folder, with_samples
from paragent.rollout.resources import WorkerResources
from paragent.rollout.scoring import AnswerScores, score_answer
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.envs import Environment, Tool, ToolResult
    from paragent.rollout.config import RolloutConfig

__all__ = ["EnvironmentSessions", "ServedEnvironment"]


class EnvironmentSessions:
    """Opens an environment for each client; an async context manager that belongs to one event loop.

    ::

        async with EnvironmentSessions(RolloutConfig(mode="rag", kb="docs", model="demo")) as sessions:
            async with sessions.opened() as served:
                await served.call("search", {"query": "harbour"})

    Args:
        config: the environment, the tasks (`data`, `task_id`), the pool of machines (`pool_address`) and the scorer.

    Raises:
        UsageError: the configuration cannot be used; the message says what to change.
    """

    def __init__(self, config: RolloutConfig) -> None:
        config = with_samples(config)
        settings = rollout_settings_of(config)
        self.environment = environment_class(settings.environment)
        self.benchmark: Benchmark | None = None
        if config.data.path is not None:
            options = with_data_folder(settings.options, self.environment, config.data.path)
            settings = replace(settings, options=options)
            self.benchmark = read_benchmark(
                config.data.path,
                limit=config.data.limit,
                task_ids=config.data.task_id,
                lacking=self.environment(options).missing_requirements,
                skip=config.data.skip_unsupported,
                load_tasks=self.environment.load_tasks,
            )
        elif config.data.task_id:
            raise UsageError("--task-id names a task of --data, which is missing")
        self._settings = settings
        self._resources: WorkerResources | None = None
        self._next = itertools.count()

    async def __aenter__(self) -> Self:
        self._resources = WorkerResources(self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._resources is not None
        await self._resources.shared.close()

    def task(self, *, task_id: str | None = None, index: int | None = None) -> BenchmarkTask:
        """Return a task of the benchmark by its id or its position; without both, the next one, in turn.

        Without a benchmark there is one task, whose question is empty.

        Raises:
            UsageError: there is no such task.
        """
        if self.benchmark is None:
            if task_id is not None or index is not None:
                raise UsageError("this server has no tasks: start it with --data")
            return BenchmarkTask("none", "")
        if task_id is not None:
            found = next((task for task in self.benchmark if task.id == task_id), None)
            if found is None:
                raise UsageError(f"there is no task {task_id!r}")
            return found
        position = next(self._next) % self.benchmark.size if index is None else index
        if not 0 <= position < self.benchmark.size:
            raise UsageError(f"there is no task {position}: there are {self.benchmark.size}, counted from 0")
        return next(itertools.islice(self.benchmark, position, None))

    @contextlib.asynccontextmanager
    async def opened(self, task: BenchmarkTask | None = None) -> AsyncIterator[ServedEnvironment]:
        """Open an environment, with a machine if it needs one, and close both at the end of the block.

        Raises:
            InfrastructureError: it cannot be opened; a later attempt may succeed.
            UsageError: it cannot be opened here.
        """
        assert self._resources is not None, "use `async with`"
        chosen = self.task() if task is None else task
        resources = self._resources
        async with contextlib.AsyncExitStack() as stack:
            environment = self.environment(self._settings.options, shared=resources.shared)
            machine = None
            if environment.needs_machine:
                leased = await stack.enter_async_context(resources.leases.lease(new_id("served")))
                machine = leased.machine
            stack.push_async_callback(_close, environment)
            question = await environment.open(chosen, machine)
            yield ServedEnvironment(resources, environment, chosen, question)


async def _close(environment: Environment) -> None:
    import asyncio

    with contextlib.suppress(Exception):  # an error here does not concern the client
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await asyncio.shield(environment.close())


class ServedEnvironment:
    """The open environment of one client; a `ToolSource` that keeps the transcript of its calls for the score."""

    def __init__(
        self, resources: WorkerResources, environment: Environment, task: BenchmarkTask, question: str
    ) -> None:
        self._resources, self._environment = resources, environment
        self.task, self.question = task, question
        self.instructions = environment.instructions
        self.ended = ""
        """How a call ended the attempt; empty while it continues."""
        self.calls = 0
        self._transcript: list[dict[str, Any]] = [{"role": "user", "content": question}]

    def tools(self) -> Sequence[Tool]:
        """Return the tools of the environment."""
        return self._environment.tools()

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run a tool; see `Environment.call`."""
        result = await self._environment.call(name, arguments)
        self.calls += 1
        self.ended = self.ended or result.ends
        text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments))
        call = {"id": f"call_{self.calls}", "type": "function", "function": {"name": name, "arguments": text}}
        self._transcript += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": well_formed(result.text)},
        ]
        return result

    async def score(self, answer: str) -> AnswerScores:
        """Score a final answer.

        Raises:
            InfrastructureError: scoring failed.
        """
        transcript = [*self._transcript, {"role": "assistant", "content": answer}]
        return await score_answer(self._resources, self._environment, self.task, well_formed(answer), transcript)
