"""The loop every kind of work goes through, whatever engine carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paragent._internal.clock import Clock, monotonic
from paragent.engines.base import Call
from paragent.errors import EngineFailed
from paragent.runners.responses import Owed, Settlement
from paragent.runners.retry import Failure, RetryPolicy, smaller_company
from paragent.tasks import Ending, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.engines.base import RuntimeEngine

__all__ = ["Driver"]


class _Repeat(NamedTuple):
    """An attempt that is followed by another: as the charge will be when that one is sent."""

    owed: Owed
    outcome: Outcome
    attempt: int
    company: int


class Driver:
    """Keeps an engine supplied within its window and settles what comes back.

    It has no thread of its own: whoever uses it calls `accept` while there is `room`, and `settle` for results. It belongs
    to one thread at a time. Any method may be interrupted (Ctrl-C) at any point: what came from the engine is kept here until
    it was taken from `settled`, and each step can be repeated, so nothing is lost and nothing is settled twice.
    """

    def __init__(self, engine: RuntimeEngine, clock: Clock = monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._numbers = engine.numbers
        self._under_way: dict[int, Owed] = {}
        self._arrived: list[Outcome] = []
        """Outcomes that were taken from the engine and may not have been judged."""
        self._repeats: dict[int, _Repeat] = {}
        """Attempts, still among those under way, that are to be made again."""
        self.settled: dict[int, Settlement] = {}
        """What is settled, by number. The caller removes each settlement when it has put the result elsewhere."""
        self._cancelled = False
        self._failure: EngineFailed | None = None

    @property
    def outstanding(self) -> int:
        """How much was accepted and is not settled."""
        return len(self._under_way)

    @property
    def room(self) -> int:
        """How much more may be accepted now."""
        return max(0, self._engine.window - len(self._under_way))

    def holds(self, source: object) -> bool:
        """Return whether work with this source was accepted and is not settled."""
        return any(owed.source is source for owed in self._under_way.values())

    def accept(self, owed: Sequence[Owed]) -> None:
        """Take charge of work; each piece will be settled exactly once."""
        numbered = {number: piece for piece, number in zip(owed, self._numbers, strict=False)}
        self._under_way.update(numbered)
        self._submit(numbered)

    def settle(self, timeout: float) -> None:
        """Add to `settled` what has ended, waiting up to `timeout` seconds for something to happen.

        Raises:
            EngineFailed: the engine cannot go on; `abandon` settles what is left.
        """
        if self._failure:
            raise self._failure
        if not self._arrived:
            self._arrived.extend(self._engine.wait(timeout))
        self._judge_arrived()
        if self._repeats:
            try:
                self._repeat()
            except EngineFailed as failure:
                if not self.settled:
                    raise
                self._failure = failure  # told by the next call; this one has results

    def _judge_arrived(self) -> None:
        now = self._clock()
        under_way, settled, repeats = self._under_way, self.settled, self._repeats
        for outcome in self._arrived:
            number = outcome.number
            owed = under_way.get(number)
            if owed is None or number in repeats:
                continue  # it was judged before an interruption, or belongs to a run that was given up
            if outcome.ending is not Ending.RETURNED and (repeat := self._next_attempt(owed, outcome)) is not None:
                repeats[number] = repeat
            else:
                settled[number] = Settlement(owed, outcome, max(0.0, now - owed.accepted - outcome.seconds))
                del under_way[number]
        self._arrived.clear()

    def _next_attempt(self, owed: Owed, outcome: Outcome) -> _Repeat | None:
        """Return how an attempt that did not return is made again, or None if it is the last."""
        ending, attempt, company = outcome.ending, owed.attempt, owed.company
        suspected = ending is Ending.LOST and not outcome.alone
        charged = not suspected and ending is not Ending.DISPLACED
        if charged and not RetryPolicy.for_task(owed.max_retries).allows(_failure(outcome), attempt):
            return None
        if self._cancelled:
            outcome.ending = Ending.CANCELLED
            return None
        if suspected:
            suspects = sum(1 for other in self._arrived if other.ending is Ending.LOST and not other.alone)
            company = smaller_company(suspects, company, self._engine.config.workers)
        elif charged:
            attempt += 1
            if ending is Ending.LOST:
                company = 1  # it may kill the next worker too, so no other call may share that worker
        return _Repeat(owed, outcome, attempt, company)

    def _repeat(self) -> None:
        """Send attempts again, or settle them if the run was cancelled meanwhile."""
        repeats, under_way = self._repeats, self._under_way
        if self._cancelled:
            for number, (owed, outcome, _, _) in repeats.items():
                if number in under_way:
                    outcome.ending = Ending.CANCELLED
                    self.settled[number] = Settlement(owed, outcome, max(0.0, self._clock() - owed.accepted))
                    del under_way[number]
            repeats.clear()
            return
        renumbered: dict[int, Owed] = {}
        for owed, _, attempt, company in repeats.values():
            owed.attempt, owed.company = attempt, company
            renumbered[next(self._numbers)] = owed
        others = {number: owed for number, owed in under_way.items() if number not in repeats}
        self._under_way, self._repeats = others | renumbered, {}  # in one step, so that each is under way once
        self._submit(renumbered)

    def cancel(self, grace: float) -> None:
        """Have the engine stop everything; the settlements of what is outstanding follow from `settle`, with no more retries."""
        self._cancelled = True
        self._engine.cancel(grace)

    def abandon(self, reason: Ending) -> None:
        """Settle everything that is outstanding without waiting for it."""
        self._judge_arrived()
        now = self._clock()
        for number, owed in list(self._under_way.items()):
            self.settled[number] = Settlement(owed, Outcome(number, reason), now - owed.accepted)
            del self._under_way[number]

    def _submit(self, numbered: Mapping[int, Owed]) -> None:
        self._engine.submit(
            [
                Call(number, piece.target, piece.argument, piece.label, piece.limit, piece.is_async, piece.company)
                for number, piece in numbered.items()
            ]
        )


def _failure(outcome: Outcome) -> Failure:
    """Return how an attempt failed, for the retry policy."""
    if outcome.ending is Ending.LOST:
        return Failure.INFRASTRUCTURE
    if outcome.ending is Ending.RAISED and outcome.error and outcome.error.retryable:
        return Failure.TASK
    return Failure.FINAL
