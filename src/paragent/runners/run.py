"""One run: tasks are fed in, responses come out; the fronts for sync and async callers are thin around it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from paragent.engines import open_engine
from paragent.errors import DuplicateTaskId, EngineFailed, UsageError
from paragent.runners.dispatch import Driver
from paragent.runners.progress import open_reporter
from paragent.runners.responses import Owed, Preparer, cancelled, check_ids, failed_before_start, require_task, respond
from paragent.runners.sequence import Chain, SeenIds
from paragent.tasks import Ending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paragent.config import RunConfig
    from paragent.engines import RuntimeEngine
    from paragent.tasks import Task, TaskResponse

__all__ = ["Run"]

_CANCEL_GRACE = 1.0
"""Seconds that async agents have to clean up when the run is cancelled."""
_CANCEL_PATIENCE = 5.0
"""Seconds beyond the grace to wait for the engine's word on what it cancelled."""


class Run:
    """A run over one engine, which it closes in the end unless the caller only lends it. Belongs to one thread at a time.

    Ctrl-C may interrupt any method. Tasks stay in `drawn` until the driver has them, and responses in `ready` until the caller
    removes them, so that after `cancel` every task has exactly one response.

    Constructing a run checks and packs the tasks if they are all there already, and gives none to the engine.

    Raises:
        UsageError: something in `tasks` is no task, has no agent, cannot be sent to a worker, or an id stands twice.
    """

    def __init__(
        self, config: RunConfig, engine: RuntimeEngine | None, tasks: Iterable[Any] | Any, *, lent: bool = True
    ) -> None:
        self._config = config
        self._owns_engine = engine is None or not lent
        self._engine = engine if engine is not None else open_engine(config)
        self._preparer = Preparer(config, carries_modules=self._engine.carries_modules)
        self._chain = Chain() if config.sequence_dependent else None
        self._packed: dict[str, Owed] = {}
        self._seen: SeenIds | None = SeenIds()
        self._total: int | None = None
        if isinstance(tasks, Sized):
            known: list[Task] = list(tasks)  # type: ignore[call-overload]
            check_ids(known)
            self._packed = {task.id: self._preparer.owed(task, task.input) for task in known}
            self._seen, self._total = None, len(known)
        self.drawn: list[Task] = []
        """Tasks for `feed`."""
        self.ready: dict[int, TaskResponse] = {}
        """Responses, by a number of their own. Whoever hands one out removes it."""
        self._uncounted: list[TaskResponse] = []
        """Responses that the display was not told of."""

    def open(self) -> None:
        """Take hold of the engine.

        Raises:
            UsageError: the engine that was lent is busy with another run.
        """
        if not self._engine.claim():
            raise UsageError("this engine is busy with another run; open one engine for each run that overlaps")
        self._driver = Driver(self._engine)
        self._reporter = open_reporter(self._config, self._total)

    @property
    def outstanding(self) -> int:
        """How many tasks were fed and have no response that was handed out."""
        return self._driver.outstanding + len(self._driver.settled) + len(self.ready)

    @property
    def room(self) -> int:
        """How many more tasks may be fed now."""
        return self._driver.room if self._chain is None else int(self.outstanding == 0)

    def feed(self, tasks: Iterable[Task] = ()) -> None:
        """Take charge of `tasks` and of those in `drawn`; each gets exactly one response in `ready`."""
        self.drawn.extend(tasks)
        owed: list[Owed] = []
        refused: dict[int, TaskResponse] = {}
        for task in self.drawn:
            prepared = self._prepared(task)
            if isinstance(prepared, Owed):
                owed.append(prepared)
            else:
                refused[next(self._engine.numbers)] = prepared
        if owed:
            self._driver.accept(owed)
        if refused:
            self._uncounted.extend(refused.values())
            self.ready, self.drawn = self.ready | refused, []  # in one step, so that each has one response
        else:
            self.drawn = []

    def collect(self, timeout: float) -> None:
        """Add to `ready` the responses that are there, waiting up to `timeout` seconds for the first.

        Raises:
            EngineFailed: the engine cannot go on.
        """
        self._collect(0.0 if self.ready or self._driver.settled else timeout)

    def _collect(self, timeout: float) -> None:
        driver, ready = self._driver, self.ready
        if driver.outstanding:
            driver.settle(timeout)
        for number in list(driver.settled):
            response = respond(driver.settled[number])
            ready[number] = response
            self._uncounted.append(response)
            del driver.settled[number]
        if self._chain:
            for response in ready.values():
                self._chain.note(response)
        if self._reporter:
            self._reporter.note(self._uncounted, driver.outstanding)
        self._uncounted.clear()

    def cancel(self, unfed: Iterable[Task] = ()) -> None:
        """Stop everything; then `ready` has a response for each task that has none, the `unfed` ones included."""
        unfed = [*(task for task in self.drawn if not self._driver.holds(task)), *unfed]
        with contextlib.suppress(EngineFailed):  # what it cannot tell any more is cancelled below
            self._driver.cancel(_CANCEL_GRACE)
            deadline = time.monotonic() + _CANCEL_GRACE + _CANCEL_PATIENCE
            while self._driver.outstanding and time.monotonic() < deadline:
                self._collect(0.1)
        self._driver.abandon(Ending.CANCELLED)
        self._collect(0.0)
        numbers = self._engine.numbers
        self.ready.update((next(numbers), cancelled(task, "cancelled before it started")) for task in unfed)
        self.drawn = []

    def close(self) -> None:
        """Free what the run holds: an engine of its own is closed, a borrowed one is emptied."""
        if self._owns_engine:
            self._engine.close()
        elif self._driver.outstanding:
            self.cancel()
        self._engine.unclaim()
        if self._reporter:
            self._reporter.close()

    def _prepared(self, task: Task) -> Owed | TaskResponse:
        """Return what is owed for a task, or its response if it will not be run."""
        if self._packed and self._chain is None and (piece := self._packed.pop(task.id, None)) is not None:
            return piece
        try:
            require_task(task)
            if self._seen is not None and not self._seen.add(task.id):
                raise DuplicateTaskId(task.id)
            if self._chain is None:
                return self._preparer.owed(task, task.input)
            if self._chain.broken is None:
                return self._preparer.owed(task, self._chain.given(task))
            return cancelled(task, self._chain.broken)
        except UsageError as problem:
            if not hasattr(task, "id"):
                raise
            return failed_before_start(task, problem)
