"""The two ways to go through a run: a plain iterator, and an async one."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterable, Sized
from typing import TYPE_CHECKING, Any

from paragent.errors import Interrupted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Generator, Iterable

    from paragent.config import RunConfig
    from paragent.engines import RuntimeEngine
    from paragent.runners.run import Run
    from paragent.tasks import Task, TaskResponse

__all__ = ["iterate", "stream"]

_SLICE = 0.005
"""Seconds of drawing tasks from a generator before answers are looked at again."""
_TURN = 0.5
"""Seconds that one look for answers may take when there is nothing else to do."""


def iterate(tasks: Iterable[Task], config: RunConfig, engine: RuntimeEngine | None) -> Generator[TaskResponse]:
    """Check `tasks` now; return an iterator of their responses as they finish.

    Raises:
        UsageError: the tasks, as far as they are there already, cannot be run.
        Interrupted: (while iterating) after Ctrl-C, when the responses of the cancelled tasks have been yielded.
    """
    run = _prepare(tasks, config, engine)
    return _iterate(run, _Source(tasks))


def _prepare(tasks: Any, config: RunConfig, engine: RuntimeEngine | None) -> Run:
    """Return the run; its first workers start while the rest of the package is loaded and the tasks are checked and packed."""
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


def _iterate(run: Run, source: _Source) -> Generator[TaskResponse]:
    run.open()
    try:
        while True:
            source.draw(run.room, run.drawn)
            run.feed()
            if source.exhausted and not run.outstanding:
                return
            run.collect(_TURN if source.exhausted or not run.room else 0.0)
            yield from _hand_out(run)
    except KeyboardInterrupt:
        run.cancel(source.rest())
        yield from _hand_out(run)
        raise Interrupted({}) from None
    finally:
        run.close()


def _hand_out(run: Run) -> Generator[TaskResponse]:
    """Yield what is ready; each response leaves the run when it has been yielded, also if Ctrl-C comes then."""
    for number in list(run.ready):
        response = run.ready[number]
        try:
            yield response
        finally:
            del run.ready[number]


class _Source:
    """Tasks from an iterable, a few at a time."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._iterator = iter(tasks)
        self._finite = isinstance(tasks, Sized)
        self.exhausted = False

    def draw(self, count: int, drawn: list[Task]) -> None:
        """Add up to `count` tasks to `drawn`, fewer if they come slowly."""
        if self.exhausted or not count:
            return
        before = len(drawn)
        deadline = time.monotonic() + _SLICE
        for task in itertools.islice(self._iterator, count):
            drawn.append(task)
            if time.monotonic() > deadline:
                return
        self.exhausted = len(drawn) - before < count

    def rest(self) -> list[Task]:
        """Return the tasks that were not drawn, where they are all there already; a generator is left alone."""
        return list(self._iterator) if self._finite else []


async def stream(
    tasks: Iterable[Task] | AsyncIterable[Task], config: RunConfig, engine: RuntimeEngine | None
) -> AsyncIterator[TaskResponse]:
    """Yield responses as they finish; cancelling the caller stops everything that is under way.

    The engine is waited for in a thread, so the event loop stays free; tasks are drawn on the event loop.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    run = _prepare(tasks, config, engine)
    source = _AsyncSource(tasks) if isinstance(tasks, AsyncIterable) else _Source(tasks)
    loop = asyncio.get_running_loop()
    run.open()
    waiter = ThreadPoolExecutor(1, thread_name_prefix="paragent-wait")
    try:
        while True:
            if isinstance(source, _Source):
                source.draw(run.room, run.drawn)
            else:
                await source.draw(run.room, run.drawn)
            run.feed()
            if source.exhausted and not run.outstanding:
                return
            turn = _TURN if source.exhausted or not run.room else _SLICE
            await loop.run_in_executor(waiter, run.collect, turn)
            for response in _hand_out(run):
                yield response
    finally:
        await asyncio.shield(loop.run_in_executor(waiter, run.close))
        waiter.shutdown(wait=False)


class _AsyncSource:
    """Tasks from an async iterable, those that are there."""

    def __init__(self, tasks: AsyncIterable[Task]) -> None:
        self._iterator = aiter(tasks)
        self._next: asyncio.Future[Any] | None = None
        self.exhausted = False

    async def draw(self, count: int, drawn: list[Task]) -> None:
        """Add up to `count` tasks to `drawn`, waiting only a moment for each."""
        import asyncio

        most = len(drawn) + count
        while len(drawn) < most and not self.exhausted:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._iterator))
            done, _ = await asyncio.wait({self._next}, timeout=_SLICE)
            if not done:
                break
            upcoming, self._next = self._next, None
            try:
                drawn.append(upcoming.result())
            except StopAsyncIteration:
                self.exhausted = True
