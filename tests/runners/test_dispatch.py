"""Whatever an engine reports, everything that is owed is settled exactly once, and charged fairly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from paragent._internal.clock import ManualClock
from paragent.config import RunConfig
from paragent.engines import Call, RuntimeEngine
from paragent.runners.dispatch import Driver
from paragent.runners.responses import Owed, Settlement
from paragent.runners.retry import smaller_company
from paragent.serialization import Parcel
from paragent.tasks import Ending, ErrorInfo, Outcome

TARGET = Parcel(b"", {})


def take(driver: Driver) -> list[Settlement]:
    driver.settle(0.0)
    settled, driver.settled = list(driver.settled.values()), {}
    return settled


def abandoned(driver: Driver) -> list[Settlement]:
    driver.abandon(Ending.CANCELLED)
    return list(driver.settled.values())


class ScriptedEngine(RuntimeEngine):
    """Ends calls as a script says, the same way for ever after its last word."""

    def __init__(self, script: Sequence[Outcome]) -> None:
        super().__init__(RunConfig(worker_num=1, concurrency=4))
        self.script = list(script)
        self.calls: list[Call] = []
        self.waiting: list[Call] = []

    def submit(self, calls: Sequence[Call]) -> None:
        self.calls += calls
        self.waiting += calls

    def wait(self, timeout: float) -> list[Outcome]:
        done = []
        for call in self.waiting:
            said = self.script.pop(0) if self.script else Outcome(0, Ending.RETURNED)
            done.append(Outcome(call.number, said.ending, error=said.error, alone=said.alone, seconds=1.0))
        self.waiting = []
        return done

    def cancel(self, grace: float) -> None:
        self.script = [Outcome(0, Ending.CANCELLED)] * len(self.waiting)

    def close(self) -> None:
        self.waiting = []


def outcome(ending: Ending, *, retryable: bool = True, alone: bool = True) -> Outcome:
    error = ErrorInfo("E", "m", retryable=retryable) if ending in {Ending.RAISED, Ending.LOST} else None
    return Outcome(0, ending, error=error, alone=alone)


def settle_one(script: Sequence[Outcome], max_retries: int | None = None) -> tuple[Owed, Ending, ScriptedEngine]:
    engine = ScriptedEngine(script)
    driver = Driver(engine)
    owed = Owed("t", TARGET, 1, max_retries=max_retries)
    driver.accept([owed])
    settled = []
    while driver.outstanding:
        settled += take(driver)
    assert [settlement.owed for settlement in settled] == [owed]
    return owed, settled[0].outcome.ending, engine


def test_a_lost_worker_costs_two_more_attempts_unless_said_otherwise() -> None:
    lost = [outcome(Ending.LOST)] * 10
    owed, ending, _ = settle_one(lost)
    assert (owed.attempt, ending) == (3, Ending.LOST)
    owed, ending, _ = settle_one(lost, max_retries=0)
    assert (owed.attempt, ending) == (1, Ending.LOST)
    owed, ending, _ = settle_one(lost[:4], max_retries=4)
    assert (owed.attempt, ending) == (5, Ending.RETURNED)


def test_an_attempt_after_a_lost_one_is_alone_in_its_worker() -> None:
    _, _, engine = settle_one([outcome(Ending.LOST)])
    assert [call.max_group for call in engine.calls] == [0, 1]


def test_of_several_suspects_none_is_charged_until_one_is_found_alone() -> None:
    engine = ScriptedEngine([outcome(Ending.LOST, alone=False)] * 4)
    driver = Driver(engine)
    owed = [Owed(str(i), TARGET, i, max_retries=0) for i in range(4)]
    driver.accept(owed)
    assert take(driver) == []
    assert [piece.attempt for piece in owed] == [1] * 4
    assert all(1 <= call.max_group < 4 for call in engine.waiting)
    assert {settlement.outcome.ending for settlement in take(driver)} == {Ending.RETURNED}


def test_no_more_is_accepted_than_the_engine_wants_to_hold() -> None:
    engine = ScriptedEngine([])
    driver = Driver(engine)
    assert driver.room == engine.window > 1
    driver.accept([Owed(str(i), TARGET, i) for i in range(engine.window - 1)])
    assert driver.room == 1
    driver.accept([Owed("x", TARGET, 1), Owed("y", TARGET, 1)])
    assert driver.room == 0
    take(driver)
    assert driver.room == engine.window


def test_a_failure_is_final_unless_retries_were_asked_for() -> None:
    failed = [outcome(Ending.RAISED)] * 10
    assert settle_one(failed)[0].attempt == 1
    assert settle_one(failed, max_retries=2)[0].attempt == 3
    assert settle_one([outcome(Ending.RAISED, retryable=False)], max_retries=2)[0].attempt == 1


def test_a_time_limit_is_a_budget_and_not_tried_again() -> None:
    owed, ending, _ = settle_one([outcome(Ending.TIMED_OUT)], max_retries=5)
    assert (owed.attempt, ending) == (1, Ending.TIMED_OUT)


def test_displaced_attempts_are_not_charged() -> None:
    owed, ending, engine = settle_one([outcome(Ending.DISPLACED)] * 7)
    assert (owed.attempt, ending) == (1, Ending.RETURNED)
    assert len(engine.calls) == 8


def test_the_time_that_was_not_work_is_told() -> None:
    clock = ManualClock(100.0)
    driver = Driver(ScriptedEngine([]), clock)
    driver.accept([Owed("t", TARGET, 1, accepted=100.0)])
    clock.advance(5.0)
    [settlement] = take(driver)
    assert settlement.waited == 4.0


def test_after_cancel_nothing_is_tried_again() -> None:
    engine = ScriptedEngine([])
    driver = Driver(engine)
    driver.accept([Owed(str(i), TARGET, i, max_retries=5) for i in range(3)])
    driver.cancel(0.0)
    engine.script = [outcome(Ending.LOST), outcome(Ending.CANCELLED), outcome(Ending.RETURNED)]
    endings = [settlement.outcome.ending for settlement in take(driver)]
    assert endings == [Ending.CANCELLED, Ending.CANCELLED, Ending.RETURNED]


def test_abandon_settles_everything_at_once() -> None:
    driver = Driver(ScriptedEngine([]))
    driver.accept([Owed(str(i), TARGET, i) for i in range(3)])
    assert {settlement.outcome.ending for settlement in abandoned(driver)} == {Ending.CANCELLED}
    assert driver.outstanding == 0


endings = st.builds(
    outcome,
    st.sampled_from([ending for ending in Ending if ending is not Ending.CANCELLED]),
    retryable=st.booleans(),
    alone=st.booleans(),
)


@settings(max_examples=200)
@given(st.lists(endings, max_size=60), st.integers(1, 20), st.none() | st.integers(0, 3))
def test_everything_owed_is_settled_exactly_once(script: list[Outcome], count: int, max_retries: int | None) -> None:
    engine = ScriptedEngine(script)
    driver = Driver(engine)
    owed = [Owed(str(i), TARGET, i, max_retries=max_retries) for i in range(count)]
    driver.accept(owed)
    settled = []
    for _ in range(len(script) + 2):
        settled += take(driver)
    assert driver.outstanding == 0
    assert sorted(settlement.owed.label for settlement in settled) == sorted(piece.label for piece in owed)
    allowed = 2 if max_retries is None else max_retries
    assert all(1 <= piece.attempt <= allowed + 1 for piece in owed)
    assert len({call.number for call in engine.calls}) == len(engine.calls)


@given(st.integers(2, 100_000), st.integers(0, 100_000), st.integers(1, 64))
def test_suspects_end_up_alone_in_a_few_steps(suspects: int, company: int, workers: int) -> None:
    steps = 0
    most = math.ceil(math.log(suspects, max(2, workers))) + 1
    while suspects > 1:
        smaller = smaller_company(suspects, company, workers)
        assert 1 <= smaller < suspects
        suspects = company = smaller
        steps += 1
    assert steps <= most
