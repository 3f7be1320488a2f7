"""`Runners`: the functions that users call to execute tasks."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sized
from typing import TYPE_CHECKING, Any, TypeVar, overload

from paragent.config import RunConfig
from paragent.errors import ConfigError, EngineFailed, Interrupted, UsageError
from paragent.tasks import Task, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
    from typing import Unpack

    from paragent.config import RunSettings
    from paragent.engines import RuntimeEngine
    from paragent.runners.run import Run
    from paragent.tasks import TaskSettings

__all__ = ["Runners", "exec_tasks"]

A = TypeVar("A")
R = TypeVar("R")


class Runners:
    """Run tasks on any engine and get exactly one response for each.

    Every method takes a `RunConfig` (None: the defaults) and, as `engine=`, an open engine to use instead of starting one:
    `with LocalRuntime(config) as engine: ...` keeps workers warm between runs. The methods for several tasks also take the
    fields of `RunConfig` as keywords, which have priority over it. The sync methods also work inside a running event loop,
    for example in a notebook.
    """

    @staticmethod
    def sync_run_task(
        task: Task | Iterable[Task],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> dict[str, TaskResponse]:
        """Run one task or many; return the responses by task id, in input order.

        Raises:
            UsageError: a task cannot be run as it is; nothing was started.
            EngineFailed: the engine cannot continue; the exception has the responses so far.
            Interrupted: Ctrl-C; the exception has all responses, including those of cancelled tasks. After a second Ctrl-C it
                has the responses so far.
        """
        tasks, order = _in_order(task)
        responses: dict[str, TaskResponse] = {}
        run = _prepare(tasks, _config(run_conf, settings, engine), engine)
        from paragent.runners.run import complete

        try:
            complete(run, responses)
        except KeyboardInterrupt:
            raise Interrupted(_sorted(responses, order), run.total) from None
        except EngineFailed as failure:
            failure.responses = _sorted(responses, order)
            raise
        return _sorted(responses, order)

    @staticmethod
    async def run_task(
        task: Task | Iterable[Task] | AsyncIterable[Task],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> dict[str, TaskResponse]:
        """As `sync_run_task`, without blocking the event loop. Tasks may also come from an async iterable."""
        tasks, order = _in_order(task)
        responses: dict[str, TaskResponse] = {}
        try:
            async for response in _stream(tasks, _config(run_conf, settings, engine), engine):
                responses[response.id] = response
        except EngineFailed as failure:
            failure.responses = _sorted(responses, order)
            raise
        return _sorted(responses, order)

    @staticmethod
    def sync_run(
        input: Any,  # noqa: A002 - the documented name
        agent: Callable[[Any], Any],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[TaskSettings],
    ) -> TaskResponse:
        """Run one agent on one input. `settings` are further fields of `Task`: `id`, `timeout`, ..."""
        task = Task(input=input, agent=agent, **settings)
        return Runners.sync_run_task(task, run_conf, engine=engine)[task.id]

    @staticmethod
    async def run(
        input: Any,  # noqa: A002 - the documented name
        agent: Callable[[Any], Any],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[TaskSettings],
    ) -> TaskResponse:
        """As `sync_run`, without blocking the event loop."""
        task = Task(input=input, agent=agent, **settings)
        return (await Runners.run_task(task, run_conf, engine=engine))[task.id]

    @staticmethod
    def iter_tasks(
        tasks: Iterable[Task],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> Iterator[TaskResponse]:
        """Yield responses in the order in which the tasks finish.

        `tasks` may be a generator of any length: tasks are drawn as workers become free, and responses that were yielded are
        not kept, so memory use stays constant. Leaving the loop early stops everything that is under way. A task of a
        generator that cannot be run, for example because its id was used before, gets a failed response.

        Raises:
            UsageError: a task of a list cannot be run; nothing was started.
            Interrupted: (while iterating) after Ctrl-C, when the responses of the cancelled tasks have been yielded; after a
                second Ctrl-C at once.
        """
        return _iterate(tasks, _config(run_conf, settings, engine), engine)

    @staticmethod
    def stream_tasks(
        tasks: Iterable[Task] | AsyncIterable[Task],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> AsyncIterator[TaskResponse]:
        """As `iter_tasks`, as an async iterator; tasks may also come from an async iterable."""
        return _stream(tasks, _config(run_conf, settings, engine), engine)

    @overload
    @staticmethod
    def map(
        function: Callable[[A], Awaitable[R]],
        inputs: Iterable[A],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> Iterator[R]: ...
    @overload
    @staticmethod
    def map(
        function: Callable[[A], R],
        inputs: Iterable[A],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> Iterator[R]: ...
    @staticmethod
    def map(
        function: Any,
        inputs: Iterable[Any],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Unpack[RunSettings],
    ) -> Iterator[Any]:
        """Run a function or an agent on each input; return an iterator of the answers in the order of the inputs.

        `inputs` may be a generator of any length. Answers that overtake a slow one are kept until it is their turn. Leaving the
        loop early stops everything that is under way.

        Raises:
            TaskFailed: (while iterating) an input has no answer; the other tasks are stopped. Its `response` says why.
            UsageError: the function cannot be sent to workers; nothing was started.
            Interrupted: (while iterating) Ctrl-C.
        """
        tasks: Iterable[Task] = (Task(given, function, str(number)) for number, given in enumerate(inputs))
        return _in_input_order(
            _iterate([*tasks] if isinstance(inputs, Sized) else tasks, _config(run_conf, settings, engine), engine)
        )


def exec_tasks(
    tasks: Task | Iterable[Task],
    run_conf: RunConfig | None = None,
    *,
    engine: RuntimeEngine | None = None,
    **settings: Unpack[RunSettings],
) -> dict[str, TaskResponse]:
    """Run one task or many; return the responses by task id, in input order: `Runners.sync_run_task` as a function."""
    return Runners.sync_run_task(tasks, run_conf, engine=engine, **settings)


def _iterate(tasks: Iterable[Task], config: RunConfig, engine: RuntimeEngine | None) -> Generator[TaskResponse]:
    run = _prepare(tasks, config, engine)
    from paragent.runners.run import iterate

    return iterate(run)


def _in_input_order(responses: Generator[TaskResponse]) -> Iterator[Any]:
    """Yield the answers to tasks whose ids are 0, 1, 2, ..."""
    from contextlib import closing

    early: dict[str, TaskResponse] = {}
    number = 0
    with closing(responses):
        for response in responses:
            if response.status is TaskStatus.CANCELLED:
                continue  # because of Ctrl-C, which `responses` raises at the end, or of a failure that was raised
            early[response.id] = response
            while (following := early.pop(str(number), None)) is not None:
                yield following.unwrap()
                number += 1


async def _stream(tasks: Any, config: RunConfig, engine: RuntimeEngine | None) -> AsyncIterator[TaskResponse]:
    run = _prepare(tasks, config, engine)
    from contextlib import aclosing

    from paragent.runners.run import stream

    async with aclosing(stream(run)) as responses:
        async for response in responses:
            yield response


def _prepare(tasks: Any, config: RunConfig, engine: RuntimeEngine | None) -> Run:
    """Return the run of `tasks`. The engine starts its first workers while the run's modules load and the tasks are packed."""
    used = engine if engine is not None else _open(config)
    used.expect(min(len(tasks), config.workers) if isinstance(tasks, Sized) else config.workers)
    try:
        from paragent.runners.run import Run

        return Run(config, used, tasks, lent=engine is not None)
    except BaseException:
        if engine is None:
            used.close()
        raise


def _open(config: RunConfig) -> RuntimeEngine:
    from paragent.engines import open_engine

    return open_engine(config)


_OF_ENGINE = ("engine_name", "worker_num", "concurrency", "in_local", "cls", "reuse_process", "engine_options")
"""Settings that an engine has had since it was opened."""


def _config(run_conf: RunConfig | None, settings: RunSettings, engine: RuntimeEngine | None) -> RunConfig:
    """Return the configuration with the keywords of a call.

    Raises:
        ConfigError: a keyword is unknown, or `engine` would ignore it.
    """
    if engine is not None and (ignored := [name for name in settings if name in _OF_ENGINE]):
        raise ConfigError(f"{', '.join(ignored)} cannot be changed with engine=: set it where that engine is opened")
    if run_conf is None:
        return RunConfig(**settings)
    if not isinstance(run_conf, RunConfig):
        raise ConfigError(f"run_conf must be a RunConfig, not {run_conf!r}; write RunConfig(worker_num=8)")
    return run_conf.with_settings(**settings) if settings else run_conf


def _in_order(task: Any) -> tuple[Any, list[str]]:
    """Return the tasks as an iterable, and a list that has their ids in input order when all of them have been drawn.

    Raises:
        UsageError: `task` is neither a task nor an iterable.
    """
    if isinstance(task, Task):
        return [task], [task.id]
    if isinstance(task, list | tuple):
        return task, [t.id for t in task if isinstance(t, Task)]
    if not isinstance(task, Iterable | AsyncIterable):
        raise UsageError(f"expected a Task or tasks, got {task!r}; write Task(input=..., agent=...)")
    order: list[str] = []
    return (_noting_async(task, order) if isinstance(task, AsyncIterable) else _noting(task, order)), order


def _noting(tasks: Iterable[Task], order: list[str]) -> Iterator[Task]:
    for task in tasks:
        order.append(getattr(task, "id", ""))  # an object that is not a task is rejected later
        yield task


async def _noting_async(tasks: AsyncIterable[Task], order: list[str]) -> AsyncIterator[Task]:
    async for task in tasks:
        order.append(getattr(task, "id", ""))  # as above
        yield task


def _sorted(responses: dict[str, TaskResponse], order: list[str]) -> dict[str, TaskResponse]:
    return {task_id: responses[task_id] for task_id in order if task_id in responses}
