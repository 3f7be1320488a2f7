"""`CallTimes`: when the calls of a worker started and must end, and what its event loop executes now.

The worker writes these times and its owner reads them, through shared memory, so the owner can enforce limits even if the worker
cannot run any Python code: its code blocks the event loop, or holds the interpreter lock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from paragent.execution import Ending

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

__all__ = ["BLOCKED_AFTER", "BLOCKED_LIMIT", "CallTimes", "Overdue", "Times"]

BLOCKED_AFTER = 0.5
"""Seconds after which a step counts as blocking the event loop."""
BLOCKED_LIMIT = 60.0
"""Seconds that a call which enforces its own limit may block the event loop, however long its limit is. Meanwhile no other call
of the worker can do anything."""
_WORKER_GRACE = 2.0
"""Seconds that the worker has to end a call that blocks its event loop, before the owner kills the worker."""
_CANCEL_GRACE = 30.0
"""Seconds that code which enforces its own limit has to clean up after the limit; ending a program takes up to 12 s."""
_SILENT_AFTER = 3.0
"""Seconds without a sign of life after which an event loop counts as blocked by unknown code; it gives one twice a second."""
_LOOP_CELLS = 3
_REPLACED = -1.0


class Times(Protocol):
    """Points in time, as `time.monotonic()`, by the number of a call."""

    def __getitem__(self, number: int) -> float: ...
    def __setitem__(self, number: int, time: float) -> None: ...


class _TimesByNumber(dict[int, float]):
    """Times in this process, for calls with any number."""

    def __missing__(self, number: int) -> float:
        return 0.0

    def __setitem__(self, number: int, time: float) -> None:
        if time:
            super().__setitem__(number, time)
        else:
            self.pop(number, None)


class Overdue(NamedTuple):
    """Calls because of which a worker must be killed."""

    endings: dict[int, Ending]
    """How each of them ends. All other calls of the worker are displaced."""
    reason: str


_HELD_UP = (
    "its code held up the whole worker process and could not be stopped; run code that holds the interpreter lock, such as a "
    "slow regular expression, in another process with a time limit"
)
_IGNORED = f"its code was cancelled at its time limit and did not end within {_CANCEL_GRACE:g} s"


class CallTimes:
    """The times of the calls in one worker."""

    __slots__ = ("deadlines", "loop", "starts")

    starts: Times
    """When each call started; 0.0: it did not."""
    deadlines: Times
    """When each call must have ended, for calls that enforce their own time limit. 0.0: the call does not. Infinite: not limited
    now. Negative: not limited now, because code runs for which the limit does not count."""
    loop: Times
    """What the event loop executes: the number of the call plus 1 (0: unknown), since when; and its last sign of life while calls
    have limits (negative: the worker ends, because of a call that has its outcome)."""

    def __init__(self, starts: Times, deadlines: Times, loop: Times) -> None:
        self.starts, self.deadlines, self.loop = starts, deadlines, loop

    @staticmethod
    def cells(slots: int) -> int:
        """Return how many numbers the times of this many calls need in shared memory."""
        return 2 * slots + _LOOP_CELLS

    @classmethod
    def of_memory(cls, memory: memoryview[float]) -> CallTimes:
        """Return the times in shared memory, for calls whose numbers are below the number of slots."""
        slots = (len(memory) - _LOOP_CELLS) // 2
        return cls(memory[:slots], memory[slots : 2 * slots], memory[2 * slots :])

    @classmethod
    def by_number(cls) -> CallTimes:
        """Return times that only this process uses."""
        return cls(_TimesByNumber(), _TimesByNumber(), _TimesByNumber())

    @property
    def blocking(self) -> int:
        """The call whose code the event loop executes; -1 if there is none."""
        return int(self.loop[0]) - 1

    @property
    def blocking_since(self) -> float:
        """When the event loop began to execute it."""
        return self.loop[1]

    def end_of_step(self) -> float:
        """Return when the call whose code the event loop executes must let it continue; infinite if it has no such limit."""
        deadline = self.deadlines[self.blocking] if self.blocking >= 0 else 0.0
        if not deadline:
            return math.inf
        end = self.blocking_since + BLOCKED_LIMIT
        return min(deadline, end) if deadline > 0 else end

    def held_up(self, limited: Container[int], now: float) -> float:
        """Return for how many seconds calls of the event loop could not continue, which do not count for their limits.

        The loop executes many short steps, or one step of a call that its own limit ends.
        """
        if self.blocking not in limited and now - self.blocking_since > BLOCKED_AFTER:
            return 0.0
        return max(0.0, now - self.loop[2] - BLOCKED_AFTER)

    def replace_worker(self) -> None:
        """Let the owner know that the worker ends because of a call that has its outcome."""
        self.loop[2] = _REPLACED

    @property
    def replaced(self) -> bool:
        """Whether the worker ends because of a call that has its outcome."""
        return self.loop[2] == _REPLACED

    def overdue(self, running: Sequence[int], now: float) -> Overdue | None:
        """Return the calls with limits of their own that the worker should have ended by itself, or None.

        Unknown code that blocks the event loop belongs to any of the running calls. Like the calls of a worker that died, they
        are executed again in smaller groups until the one that blocks it is alone.
        """
        limited = [number for number in running if self.deadlines[number]]
        if not limited:
            return None
        if self.blocking in limited and now - self.blocking_since > BLOCKED_AFTER:
            late = now > self.end_of_step() + _WORKER_GRACE
            return Overdue({self.blocking: self._ending(self.blocking)}, _HELD_UP) if late else None
        silence = now - self.loop[2]
        past = [number for number in limited if 0 < self.deadlines[number] < now - _WORKER_GRACE]
        if silence > _SILENT_AFTER:
            if not past and silence < BLOCKED_LIMIT:
                return None
            alone = len(running) == 1
            return Overdue({number: self._ending(number) if alone else Ending.LOST for number in running}, _HELD_UP)
        ignoring = [number for number in past if self.deadlines[number] < now - _CANCEL_GRACE]
        return Overdue(dict.fromkeys(ignoring, Ending.TIMED_OUT), _IGNORED) if ignoring else None

    def _ending(self, number: int) -> Ending:
        return Ending.TIMED_OUT if self.deadlines[number] > 0 else Ending.LOST
