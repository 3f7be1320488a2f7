"""`Runners`: the calls that users make."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

from paragent.config import RunConfig
from paragent.errors import ConfigError, EngineFailed, Interrupted, UsageError
from paragent.runners.iteration import iterate, stream
from paragent.tasks import Task, TaskResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from paragent.engines import RuntimeEngine

__all__ = ["Runners", "exec_tasks"]


class Runners:
    """Run tasks on any engine and get exactly one response for each.

    Every method takes a `RunConfig` (or None for the defaults) and, as `engine=`, an open engine to use instead of starting
    one: `with LocalRuntime(config) as engine: ...` keeps workers warm between runs. The sync methods also work inside a
    running event loop, as in a notebook.
    """

    @staticmethod
    def sync_run_task(
        task: Task | Iterable[Task], run_conf: RunConfig | None = None, *, engine: RuntimeEngine | None = None
    ) -> dict[str, TaskResponse]:
        """Run one task or many; return the responses by task id, in input order.

        Raises:
            UsageError: a task cannot be run as it is; nothing was started.
            EngineFailed: the engine cannot go on; the exception has the responses there were.
            Interrupted: Ctrl-C; the exception has all responses, those of cancelled tasks included. After a second Ctrl-C it has
                those that there are.
        """
        tasks, order = _in_order(task)
        responses: dict[str, TaskResponse] = {}
        try:
            _gather(iterate(tasks, _config(run_conf), engine), responses)
        except KeyboardInterrupt:
            raise Interrupted(_sorted(responses, order)) from None
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
    ) -> dict[str, TaskResponse]:
        """As `sync_run_task`, without blocking the event loop. Tasks may also come from an async iterable."""
        tasks, order = _in_order(task)
        responses: dict[str, TaskResponse] = {}
        try:
            async for response in stream(tasks, _config(run_conf), engine):
                responses[response.id] = response
        except EngineFailed as failure:
            failure.responses = _sorted(responses, order)
            raise
        return _sorted(responses, order)

    @staticmethod
    def sync_run(
        input: Any,  # noqa: A002 - the documents' own name
        agent: Any,
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Any,
    ) -> TaskResponse:
        """Ask one agent one thing. `settings` are further fields of `Task`: `id`, `timeout`, ..."""
        task = Task(input=input, agent=agent, **settings)
        return Runners.sync_run_task(task, run_conf, engine=engine)[task.id]

    @staticmethod
    async def run(
        input: Any,  # noqa: A002 - the documents' own name
        agent: Any,
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
        **settings: Any,
    ) -> TaskResponse:
        """As `sync_run`, without blocking the event loop."""
        task = Task(input=input, agent=agent, **settings)
        return (await Runners.run_task(task, run_conf, engine=engine))[task.id]

    @staticmethod
    def iter_tasks(
        tasks: Iterable[Task], run_conf: RunConfig | None = None, *, engine: RuntimeEngine | None = None
    ) -> Iterator[TaskResponse]:
        """Yield responses as they finish, in the order in which they do.

        `tasks` may be a generator of any length: it is drawn from as workers become free, and what was yielded is
        forgotten, so memory stays flat. Leaving the loop early stops everything that is under way. A task of a generator
        that cannot be run, for example because its id was used before, gets a failed response.
        """
        return iterate(tasks, _config(run_conf), engine)

    @staticmethod
    def stream_tasks(
        tasks: Iterable[Task] | AsyncIterable[Task],
        run_conf: RunConfig | None = None,
        *,
        engine: RuntimeEngine | None = None,
    ) -> AsyncIterator[TaskResponse]:
        """As `iter_tasks`, as an async iterator; tasks may come from an async iterable too."""
        return stream(tasks, _config(run_conf), engine)


def exec_tasks(tasks: Iterable[Task], run_conf: RunConfig | None = None) -> dict[str, TaskResponse]:
    """Run tasks and return their responses by id, in input order: `Runners.sync_run_task` as a plain call."""
    return Runners.sync_run_task(tasks, run_conf)


def _gather(running: Generator[TaskResponse], responses: dict[str, TaskResponse]) -> None:
    """Go through a run; Ctrl-C between two responses is passed into it, as if it had come there."""
    try:
        for response in running:
            responses[response.id] = response
    except Interrupted:
        raise
    except KeyboardInterrupt as interrupt:
        response = running.throw(interrupt)  # raises if it was the run that ended with it
        responses[response.id] = response
        for response in running:
            responses[response.id] = response


def _config(run_conf: RunConfig | None) -> RunConfig:
    if run_conf is None:
        return RunConfig()
    if not isinstance(run_conf, RunConfig):
        raise ConfigError(f"run_conf must be a RunConfig, not {run_conf!r}")
    return run_conf


def _in_order(task: Any) -> tuple[Any, list[str]]:
    """Return the tasks as an iterable and a list that has their ids, in input order, when they have all been drawn.

    Raises:
        UsageError: `task` is neither a task nor anything that could yield some.
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
        order.append(getattr(task, "id", ""))  # what is no task is refused when it is fed
        yield task


async def _noting_async(tasks: AsyncIterable[Task], order: list[str]) -> AsyncIterator[Task]:
    async for task in tasks:
        order.append(getattr(task, "id", ""))  # what is no task is refused when it is fed
        yield task


def _sorted(responses: dict[str, TaskResponse], order: list[str]) -> dict[str, TaskResponse]:
    return {task_id: responses[task_id] for task_id in order if task_id in responses}
