"""The contract of engines: carry calls to wherever there are hands for them, and bring back one outcome each."""

from __future__ import annotations

import abc
import itertools
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from paragent.config import RunConfig
    from paragent.errors import EngineFailed
    from paragent.parcels import Parcel
    from paragent.tasks import Outcome

__all__ = ["Call", "RuntimeEngine", "thread_failure"]


class Call:
    """One attempt as an engine sees it: `unpack(target)(unpack(argument))`, under a limit. It can be pickled.

    No dataclass, as the other records that workers know: making one takes as long as loading three modules.
    """

    __slots__ = ("argument", "company", "is_async", "label", "limit", "number", "target")

    number: int
    """Names the call; its outcome carries the same number. Unique in the life of an engine."""
    target: Parcel
    """What to call; unpacked anew for every call, so that calls do not share state."""
    argument: Any
    """A `Parcel`, or a plain immutable value."""
    label: str
    """The task's id: marks prints and logs, and is what `current_task()` returns to the code."""
    limit: float | None
    """Seconds of work after which the code is stopped."""
    is_async: bool
    """The target returns a coroutine: run it on an event loop with many others."""
    company: int
    """How many calls may be in one worker together with this one, itself included; 0: any number. Used to find out which
    of several calls kills workers."""

    def __init__(
        self,
        number: int,
        target: Parcel,
        argument: Any,
        label: str,
        limit: float | None = None,
        is_async: bool = False,
        company: int = 0,
    ) -> None:
        self.number = number
        self.target = target
        self.argument = argument
        self.label = label
        self.limit = limit
        self.is_async = is_async
        self.company = company


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
    from paragent._faults import message_of, type_name  # not at the top: workers load this module, and never need it
    from paragent.errors import EngineFailed

    failure = EngineFailed(
        f"the engine's thread {name!r} failed ({type_name(error)}: {message_of(error)}). Where the system has no room for "
        "another thread, raise its limit (ulimit -u) or lower worker_num and concurrency; else please report this"
    )
    failure.__cause__ = error
    return failure
