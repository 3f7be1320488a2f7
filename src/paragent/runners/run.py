"""One run: tasks in, responses out. `Run` has the state; the functions below drive it for sync and async callers."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import AsyncIterable, Sized
from typing import TYPE_CHECKING, Any

from paragent._internal.signals import signals_deferred
from paragent.engines.base import RuntimeEngine
from paragent.errors import DuplicateTaskId, EngineFailed, Interrupted, UsageError
from paragent.execution import Ending
from paragent.runners.calls import IdSet, Preparer, TaskSequence, cancelled, failed_before_start, require_task
from paragent.runners.dispatch import DispatchLoop
from paragent.runners.progress import open_reporter
from paragent.tasks import TaskResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Generator, Iterable

    from paragent.config import RunConfig
    from paragent.engines import Call, WorkerChange
    from paragent.runners.progress import Reporter
    from paragent.tasks import Task

__all__ = ["CANCEL_GRACE", "CANCEL_LIMIT", "Run", "complete", "iterate", "stream"]

CANCEL_GRACE = 1.0
"""Seconds that async agents have to clean up when the run is cancelled."""
CANCEL_LIMIT = 5.0
"""Seconds beyond the grace to wait for the engine's outcomes of what it cancelled."""
_DRAW_SECONDS = 0.005
"""How long to draw tasks from a generator before responses are collected again."""
_COLLECT_SECONDS = 0.5
"""How long to wait for responses when there is nothing else to do."""


class Run:
    """A run on one engine. Belongs to one thread at a time.

    Ctrl-C may interrupt any method. Tasks stay in `drawn` until the dispatch loop has their calls, and responses in `ready`
    until the caller removes them, so that after `cancel` every task has exactly one response.

    The constructor checks and packs tasks that are all known already (a list, not a generator). It submits none.

    Args:
        config: the settings of the run.
        engine: where the tasks run.
        tasks: an iterable or async iterable of tasks.
        lent: the engine belongs to the caller; otherwise `close` closes it.

    Raises:
        UsageError: an element of `tasks` is not a task, its agent cannot be called or sent to a worker, or an id is used twice.
    """

    def __init__(self, config: RunConfig, engine: RuntimeEngine, tasks: Any, *, lent: bool) -> None:
        self._config = config
        self._owns_engine = not lent
        self._engine = engine
        self._preparer = Preparer(config, self._engine.numbers, sends_modules=self._engine.sends_modules)
        self._sequence = TaskSequence() if config.sequence_dependent else None
        self._ids: IdSet | None = IdSet()
        self._prepared: list[Call] = []
        """Calls that were not submitted, the next one last."""
        self.total: int | None = None
        """How many tasks there are; None if that is not known."""
        self.source: Any = tasks
        """Tasks that the caller has to draw and feed; empty if the constructor has prepared all of them."""
        if isinstance(tasks, Sized):
            known: list[Task] = list(tasks)  # type: ignore[call-overload]
            calls = self._preparer.calls(known)
            self._ids, self.total = None, len(known)
            if self._sequence is None:
                self._prepared, self.source = calls[::-1], ()
        self.drawn: list[Task] = []
        """Tasks for `feed`."""
        self._reported: set[int] = set()
        """Responses in `ready` that the progress display has counted."""
        records_workers = type(engine).worker_changes is not RuntimeEngine.worker_changes
        self._starting = records_workers and not lent
        """Whether the engine has no worker yet, as far as the progress display knows."""
        self._dispatcher = DispatchLoop(engine, config.max_retries)
        self._reporter: Reporter | None = None
        self._claimed = False

    def open(self) -> None:
        """Reserve the engine and open the progress display; `close` undoes both, also if this is interrupted.

        Raises:
            UsageError: the engine that was lent is busy with another run.
        """
        with signals_deferred():
            self._claimed = self._engine.claim()
            if not self._claimed:
                raise UsageError("this engine is busy with another run; open one engine for each run that overlaps")
            self._reporter = open_reporter(self._config, self.total)

    @property
    def ready(self) -> dict[int, TaskResponse]:
        """Responses, by a number of their own. The caller removes those that it has taken."""
        return self._dispatcher.ready

    @property
    def outstanding(self) -> int:
        """How many tasks were prepared or fed and have no response that was removed from `ready`."""
        return len(self._prepared) + self._dispatcher.outstanding + len(self._dispatcher.ready)

    @property
    def room(self) -> int:
        """How many more tasks may be fed now."""
        return self._dispatcher.room if self._sequence is None else int(self.outstanding == 0)

    def feed(self, tasks: Iterable[Task] = ()) -> None:
        """Submit prepared calls as far as there is room, and `tasks` and those in `drawn`; each gets exactly one response."""
        if self._prepared and (room := self._dispatcher.room):
            self._dispatcher.submit(self._prepared[: -room - 1 : -1])
            del self._prepared[-room:]
        self.drawn.extend(tasks)
        if self.drawn:
            self._feed_drawn()

    def _feed_drawn(self) -> None:
        calls: list[Call] = []
        rejected: dict[int, TaskResponse] = {}
        for task in self.drawn:
            prepared = self._prepare(task)
            if isinstance(prepared, TaskResponse):
                rejected[next(self._engine.numbers)] = prepared
            else:
                calls.append(prepared)
        if calls:
            self._dispatcher.submit(calls)
        if rejected:  # in one step, so that each task has one response
            self._dispatcher.ready, self.drawn = self._dispatcher.ready | rejected, []
        else:
            self.drawn = []

    def collect(self, timeout: float) -> None:
        """Add responses to `ready`, waiting up to `timeout` seconds if it is empty.

        Raises:
            EngineFailed: the engine cannot go on.
        """
        self._collect(0.0 if self.ready else timeout)

    def _collect(self, timeout: float) -> None:
        if self._dispatcher.outstanding:
            self._dispatcher.collect(timeout)
        if self._sequence:
            for response in self.ready.values():
                self._sequence.note(response)
        if self._reporter:
            ready = self.ready
            new = [response for number, response in ready.items() if number not in self._reported]
            self._reported = set(ready)
            self._starting = self._starting and not new and not self._has_worker()
            self._reporter.note(new, self._dispatcher, starting=self._starting)

    def _has_worker(self) -> bool:
        return any(change.event == "ready" for change in self._dispatcher.changes)

    def worker_changes(self) -> list[WorkerChange]:
        """Return what happened to workers since the last call, also after `close`."""
        self._dispatcher.take_changes()
        changes = list(self._dispatcher.changes)
        self._dispatcher.changes.clear()
        return changes

    def cancel(self, undrawn: Iterable[Task] = ()) -> None:
        """Stop everything; then `ready` has a response for each task that has none, including the `undrawn` ones."""
        submitted = {id(task) for task in self._dispatcher.tasks()}
        unsubmitted = [
            *(task for task in self.drawn if id(task) not in submitted),
            *(call.task for call in reversed(self._prepared) if not self._dispatcher.has(call)),
            *undrawn,
        ]
        with contextlib.suppress(EngineFailed):  # the calls whose outcomes it cannot report are cancelled below
            if self._claimed:
                self._dispatcher.cancel(CANCEL_GRACE)
            deadline = time.monotonic() + CANCEL_GRACE + CANCEL_LIMIT
            while self._dispatcher.outstanding and time.monotonic() < deadline:
                self._collect(0.1)
        self._dispatcher.abandon(Ending.CANCELLED)
        numbers = self._engine.numbers
        self.ready.update((next(numbers), cancelled(task, "cancelled before it started")) for task in unsubmitted)
        self.drawn, self._prepared = [], []
        self._collect(0.0)  # so that the progress display counts them

    def close(self) -> None:
        """Close the engine, or, if it was lent, cancel the calls that it still has."""
        try:
            if self._owns_engine:
                self._engine.close()
            elif self._dispatcher.outstanding:
                self.cancel()
        finally:  # also after a second Ctrl-C: the progress bar draws from a thread of its own
            with signals_deferred():
                if self._claimed:
                    self._engine.unclaim()
                    self._dispatcher.take_changes(last=True)
                self.close_display()

    def close_display(self) -> None:
        """Close the progress display; from any thread. Closing twice does no harm."""
        if self._reporter:
            self._reporter.close()

    def _prepare(self, task: Task) -> Call | TaskResponse:
        """Return the call of a task, or its response if it cannot be executed."""
        try:
            require_task(task)
            if self._ids is not None and not self._ids.add(task.id):
                raise DuplicateTaskId(task.id)
            if self._sequence is None:
                return self._preparer.call(task, task.input)
            if self._sequence.broken is None:
                return self._preparer.call(task, self._sequence.next_input(task))
            return cancelled(task, self._sequence.broken)
        except UsageError as problem:
            if not hasattr(task, "id"):
                raise
            return failed_before_start(task, problem)


def complete(run: Run, responses: dict[str, TaskResponse]) -> None:
    """Execute all tasks of a run and store the responses by task id.

    Raises:
        EngineFailed: the engine cannot continue; `responses` has the responses so far.
        KeyboardInterrupt: Ctrl-C; `responses` has all responses, including those of cancelled tasks. After a second Ctrl-C it
            has the responses so far.
    """
    source = _Source(run.source)
    try:
        run.open()
        for _ in _turns(run, source):
            _take(run, responses)
    except KeyboardInterrupt:
        run.cancel(source.rest())
        _take(run, responses)
        raise
    finally:
        run.close()


def _take(run: Run, responses: dict[str, TaskResponse]) -> None:
    """Move responses out of a run; an interruption in between repeats a step and loses none."""
    responses.update({response.id: response for response in run.ready.values()})
    run.ready.clear()


def iterate(run: Run) -> Generator[TaskResponse]:
    """Yield the responses of a run as they finish.

    Raises:
        Interrupted: after Ctrl-C, when the responses of the cancelled tasks have been yielded, and after a second Ctrl-C.
    """
    source = _Source(run.source)
    try:
        try:
            run.open()
            for _ in _turns(run, source):
                yield from _take_ready(run)
        except KeyboardInterrupt:
            run.cancel(source.rest())
            yield from _take_ready(run)
            raise
        finally:
            run.close()
    except KeyboardInterrupt:
        raise Interrupted({}) from None


def _turns(run: Run, source: _Source) -> Generator[None]:
    """Feed and collect until every task has its response; yield after each turn, for the caller to take `run.ready`."""
    while True:
        source.draw(run.room, run.drawn)
        run.feed()
        if source.exhausted and not run.outstanding:
            return
        run.collect(_COLLECT_SECONDS if source.exhausted or not run.room else 0.0)
        yield


def _take_ready(run: Run) -> Generator[TaskResponse]:
    """Yield what is ready; each response is removed when it has been yielded, also if Ctrl-C comes then."""
    ready = run.ready
    for number in list(ready):
        response = ready[number]
        try:
            yield response
        finally:
            del ready[number]


class _Source:
    """Draws tasks from an iterable."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._iterator = iter(tasks)
        self._finite = isinstance(tasks, Sized)
        self.exhausted = isinstance(tasks, tuple) and not tasks

    def draw(self, count: int, drawn: list[Task]) -> None:
        """Add up to `count` tasks to `drawn`, fewer if they come slowly."""
        if self.exhausted or not count:
            return
        before = len(drawn)
        deadline = time.monotonic() + _DRAW_SECONDS
        for task in itertools.islice(self._iterator, count):
            drawn.append(task)
            if time.monotonic() > deadline:
                return
        self.exhausted = len(drawn) - before < count

    def rest(self) -> list[Task]:
        """Return the tasks that were not drawn from a list or other collection; a generator is left alone."""
        return list(self._iterator) if self._finite else []


async def stream(run: Run) -> AsyncGenerator[TaskResponse, None]:
    """Yield the responses of a run as they finish; cancelling the caller stops everything that is under way.

    A thread waits for the engine, so the event loop stays free. Tasks are drawn on the event loop.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    source = _AsyncSource(run.source) if isinstance(run.source, AsyncIterable) else _Source(run.source)
    loop = asyncio.get_running_loop()
    waiter = ThreadPoolExecutor(1, thread_name_prefix="paragent-wait")
    try:
        run.open()
        while True:
            if isinstance(source, _Source):
                source.draw(run.room, run.drawn)
            else:
                await source.draw(run.room, run.drawn)
            run.feed()
            if source.exhausted and not run.outstanding:
                return
            seconds = _COLLECT_SECONDS if source.exhausted or not run.room else _DRAW_SECONDS
            await loop.run_in_executor(waiter, run.collect, seconds)
            for response in _take_ready(run):
                yield response
    finally:
        try:
            await asyncio.shield(loop.run_in_executor(waiter, run.close))
        finally:
            run.close_display()  # a second Ctrl-C does not wait for the engine
            waiter.shutdown(wait=False)


class _AsyncSource:
    """Draws tasks from an async iterable."""

    def __init__(self, tasks: AsyncIterable[Task]) -> None:
        self._iterator = aiter(tasks)
        self._next: asyncio.Future[Any] | None = None
        self.exhausted = False

    async def draw(self, count: int, drawn: list[Task]) -> None:
        """Add up to `count` tasks to `drawn`, waiting at most a moment for each."""
        import asyncio

        most = len(drawn) + count
        while len(drawn) < most and not self.exhausted:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._iterator))
            done, _ = await asyncio.wait({self._next}, timeout=_DRAW_SECONDS)
            if not done:
                break
            upcoming, self._next = self._next, None
            try:
                drawn.append(upcoming.result())
            except StopAsyncIteration:
                self.exhausted = True
