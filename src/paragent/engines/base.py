"""The contract of engines: carry calls to wherever there are hands for them, and bring back one outcome each."""

from __future__ import annotations

import abc
import itertools
import threading
from typing import TYPE_CHECKING, Self

from paragent.worker.protocol import Call

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from paragent.config import RunConfig
    from paragent.errors import EngineFailed
    from paragent.tasks import Outcome

__all__ = ["Call", "RuntimeEngine", "thread_failure"]


class RuntimeEngine(abc.ABC):
    """Carries calls. A subclass decides where they run; retries, order, windows and progress are the driver's.

    The promises, checked by `paragent.testing.EngineContract`:

    - Every call that was submitted has exactly one outcome, whatever happened to it, unless the engine was closed.
    - Limits count from the start of the code and stop it. A dead worker costs only what it was running.
    - No more than `config.workers` workers, no more than `config.concurrency` calls at a time in each.
    - `submit`, `wait` and `cancel` may be called from different threads; constructing an engine starts nothing.
    """

    carries_modules = False
    """Workers may be where the program's own modules are not, so parcels bring them along."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.numbers = itertools.count()
        """Where the numbers of calls come from, so that runs that share an engine do not use one twice."""
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Reserve the engine for one run; return False if another one has it."""
        return self._claimed.acquire(blocking=False)

    def unclaim(self) -> None:
        """End the reservation."""
        self._claimed.release()

    @property
    def window(self) -> int:
        """How many calls without an outcome the engine wants to hold; the driver gives it no more than that."""
        return 2 * self.config.workers * max(self.config.sync_limit, self.config.async_limit)

    def expect(self, calls: int) -> None:  # noqa: B027 - a hint, which an engine may ignore
        """Hear that about so many calls will follow soon: an engine whose workers start quickly may start them already.

        It never fails; what keeps workers from starting is told by `submit` and `wait`.
        """

    @abc.abstractmethod
    def submit(self, calls: Sequence[Call]) -> None:
        """Take charge of `calls`; returns at once, starting workers where needed.

        Raises:
            EngineFailed: the engine cannot carry anything, and says what to do about it.
        """

    @abc.abstractmethod
    def wait(self, timeout: float) -> list[Outcome]:
        """Return the outcomes that came in since the last call, waiting up to `timeout` seconds for the first.

        When it is interrupted (`KeyboardInterrupt`), the next call returns what this one would have returned.

        Raises:
            EngineFailed: no outcome will ever come, for example because workers cannot be started.
        """

    @abc.abstractmethod
    def cancel(self, grace: float) -> None:
        """Stop everything that runs: async code is cancelled and has `grace` seconds to clean up, then, and for sync code,
        workers are killed. Every call gets its outcome all the same; the engine can be used again."""

    @abc.abstractmethod
    def close(self) -> None:
        """End every worker and free everything; idempotent. Outcomes that nobody waited for are dropped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def thread_failure(name: str, error: BaseException) -> EngineFailed:
    """Return the error that `submit` and `wait` raise when a thread of the engine cannot start or ended unexpectedly."""
    from paragent._internal.tracebacks import (  # not at the top: workers load this module, and never need it
        message_of,
        type_name,
    )
    from paragent.errors import EngineFailed

    failure = EngineFailed(
        f"the engine's thread {name!r} failed ({type_name(error)}: {message_of(error)}). Where the system has no room for "
        "another thread, raise its limit (ulimit -u) or lower worker_num and concurrency; else please report this"
    )
    failure.__cause__ = error
    return failure
