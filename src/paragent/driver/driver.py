"""The loop every kind of work goes through, whatever engine carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._clock import Clock, monotonic
from paragent.driver.records import Owed, Settlement
from paragent.driver.retry import Verdict, judge
from paragent.driver.suspects import smaller_company
from paragent.engines.base import Call
from paragent.tasks import Ending, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.engines.base import RuntimeEngine

__all__ = ["Driver"]


class Driver:
    """Keeps an engine supplied within its window and settles what comes back.

    It has no thread of its own: whoever uses it calls `accept` while there is `room`, and `settle` for results. It belongs
    to one thread at a time.
    """

    def __init__(self, engine: RuntimeEngine, clock: Clock = monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._numbers = engine.numbers
        self._under_way: dict[int, Owed] = {}
        self._cancelled = False

    @property
    def outstanding(self) -> int:
        """How much was accepted and is not settled."""
        return len(self._under_way)

    @property
    def room(self) -> int:
        """How much more may be accepted now."""
        return max(0, self._engine.window - len(self._under_way))

    def accept(self, owed: Sequence[Owed]) -> None:
        """Take charge of work; each piece will be settled exactly once."""
        self._send(owed)

    def settle(self, timeout: float) -> list[Settlement]:
        """Return what was settled, waiting up to `timeout` seconds for something to happen.

        Raises:
            EngineFailed: the engine cannot go on; `abandon` settles what is left.
        """
        settled: list[Settlement] = []
        again: list[Owed] = []
        outcomes = self._engine.wait(timeout)
        now = self._clock()
        under_way = self._under_way
        for outcome in outcomes:
            owed = under_way.pop(outcome.number)
            if outcome.ending is not Ending.RETURNED and self._goes_on(owed, outcome, outcomes):
                again.append(owed)
            else:
                waited = now - owed.accepted - outcome.seconds
                settled.append(Settlement(owed, outcome, max(0.0, waited)))
        if again:
            self._send(again)
        return settled

    def _goes_on(self, owed: Owed, outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
        """Return whether an attempt that did not return is followed by another, and note on `owed` how."""
        verdict = judge(owed, outcome)
        if verdict is Verdict.SETTLE:
            return False
        if self._cancelled:
            outcome.ending = Ending.CANCELLED
            return False
        if verdict is Verdict.RETRY:
            owed.attempt += 1
            if outcome.ending is Ending.LOST:
                owed.company = 1  # it may kill the next worker too: nobody else shall be in there
        elif verdict is Verdict.NARROW:
            suspects = sum(1 for other in outcomes if other.ending is Ending.LOST and not other.alone)
            owed.company = smaller_company(suspects, owed.company, self._engine.config.workers)
        return True

    def cancel(self, grace: float) -> None:
        """Have the engine stop everything; the settlements of what is outstanding follow from `settle`, with no more retries."""
        self._cancelled = True
        self._engine.cancel(grace)

    def abandon(self, reason: Ending) -> list[Settlement]:
        """Settle everything that is outstanding without waiting for it."""
        now = self._clock()
        left = [
            Settlement(owed, Outcome(number, reason), now - owed.accepted) for number, owed in self._under_way.items()
        ]
        self._under_way.clear()
        return left

    def _send(self, owed: Sequence[Owed]) -> None:
        calls = []
        numbers, under_way = self._numbers, self._under_way
        for piece in owed:
            number = next(numbers)
            under_way[number] = piece
            calls.append(
                Call(number, piece.target, piece.argument, piece.label, piece.limit, piece.is_async, piece.company)
            )
        self._engine.submit(calls)
