"""Sharing out calls: nobody gets too many, nothing is forgotten, the order holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paragent.engines._scheduler import Dispatch, Limits, Pace, Seat
from paragent.engines.base import Call
from paragent.serialization import Parcel
from paragent.tasks import Ending, Outcome

TARGET = Parcel(b"", {})


def call(number: int, *, is_async: bool = False, company: int = 0) -> Call:
    return Call(number, TARGET, None, str(number), is_async=is_async, company=company)


def end(
    seat: Seat, number: int, ending: Ending = Ending.RETURNED, seconds: float = 0.0
) -> tuple[list[float], list[float]]:
    return seat.remove_ended([Outcome(number, ending, seconds=seconds)])


def test_few_calls_are_spread_over_all_seats() -> None:
    dispatch = Dispatch(Limits(1, 1000, shared=False))
    dispatch.add([call(i, is_async=True) for i in range(4)])
    seats = [Seat(), Seat(), Seat(), Seat()]
    assert sorted(len(calls) for _, calls in dispatch.assign(seats)) == [1, 1, 1, 1]


def test_nothing_is_held_in_reserve_until_calls_are_known_to_be_short() -> None:
    dispatch = Dispatch(Limits(1, 1, shared=True))
    dispatch.add([call(i) for i in range(100)])
    seat = Seat()
    dispatch.assign([seat])
    assert len(seat.calls) == 1
    dispatch.observe(end(seat, next(iter(seat.calls)), seconds=0.0001))
    dispatch.assign([seat])
    assert len(seat.calls) > 50


def test_a_call_that_was_sent_back_says_nothing_about_how_long_calls_take() -> None:
    dispatch = Dispatch(Limits(1, 1, shared=True))
    dispatch.observe(([1.0], []))
    dispatch.add([call(i) for i in range(100)])
    seat = Seat()
    for _ in range(50):
        dispatch.assign([seat])
        dispatch.observe(end(seat, next(iter(seat.calls)), Ending.DISPLACED))
    dispatch.assign([seat])
    assert len(seat.calls) == 1


def test_what_fits_free_hands_is_nobodys_reserve() -> None:
    dispatch = Dispatch(Limits(2, 2, shared=True))
    dispatch.observe(([0.0001], []))
    busy, idle = Seat(), Seat()
    busy.add([call(1), call(2)])
    dispatch.add([call(3), call(4)])
    dispatch.assign([busy, idle])
    assert sorted(idle.calls) == [3, 4]


def test_suspects_have_a_seat_to_themselves() -> None:
    dispatch = Dispatch(Limits(10, 10, shared=True))
    seats = [Seat(), Seat()]
    dispatch.add([call(i, company=2) for i in range(3)] + [call(i) for i in range(10, 20)])
    dispatch.assign(seats)
    groups = [sorted(seat.calls) for seat in seats]
    assert sorted(groups) == [[0, 1], [2]]
    for number in (0, 1):
        end(next(seat for seat in seats if number in seat.calls), number)
    dispatch.assign(seats)
    assert sorted(len(seat.calls) for seat in seats) == [1, 10]


def test_a_seat_is_kept_free_for_suspects_that_wait() -> None:
    dispatch = Dispatch(Limits(2, 2, shared=True))
    seats = [Seat(), Seat()]
    dispatch.add([call(i) for i in range(4)])
    dispatch.assign(seats)
    dispatch.add([call(9, company=1), *(call(i) for i in range(20, 40))])
    first = seats[0]
    for number in list(first.calls):
        end(first, number)
        dispatch.assign(seats)
    assert list(first.calls) == [9]


def test_a_seat_for_a_single_call_gets_no_second() -> None:
    dispatch = Dispatch(Limits(1, 1, shared=True, once=True))
    dispatch.add([call(1), call(2)])
    seat = Seat()
    dispatch.assign([seat])
    end(seat, 1)
    assert dispatch.assign([seat]) == []


def test_only_a_full_seat_beside_an_idle_one_is_asked_to_give_back() -> None:
    dispatch = Dispatch(Limits(1, 1, shared=True))
    full, idle = Seat(), Seat()
    full.add([call(1), call(2)])
    assert dispatch.overfull([full, idle]) == [full]
    idle.add([call(3)])
    assert dispatch.overfull([full, idle]) == []


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 1000))
def test_the_reserve_is_bounded(seconds: list[float], limit: int) -> None:
    pace = Pace()
    pace.observe(seconds)
    assert 0 <= pace.ahead(limit) <= Pace.most(limit) - limit


class DispatchMachine(RuleBasedStateMachine):
    """Random arrivals and endings on three seats."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(2, 5, shared=False)
        self.dispatch = Dispatch(self.limits)
        self.seats = [Seat() for _ in range(3)]
        self.added = 0
        self.given: list[int] = []
        self.ended = 0

    @rule(count=st.integers(1, 8), is_async=st.booleans(), company=st.sampled_from([0, 0, 0, 1, 2]))
    def arrive(self, count: int, is_async: bool, company: int) -> None:
        self.dispatch.add([call(self.added + i, is_async=is_async, company=company) for i in range(count)])
        self.added += count

    @rule()
    def assign(self) -> None:
        for seat, calls in self.dispatch.assign(self.seats):
            self.given += [c.number for c in calls]
            smallest = min((c.company for c in seat.calls.values() if c.company), default=0)
            assert not smallest or len(seat.calls) <= smallest

    @rule(which=st.integers(0, 2), seconds=st.floats(0.5, 2.0))
    def end(self, which: int, seconds: float) -> None:
        seat = self.seats[which]
        if seat.calls:
            self.dispatch.observe(end(seat, next(iter(seat.calls)), seconds=seconds))
            self.ended += 1

    @invariant()
    def nothing_is_lost_or_given_twice(self) -> None:
        held = sum(len(seat.calls) for seat in self.seats)
        assert self.added == len(self.dispatch) + held + self.ended
        assert len(set(self.given)) == len(self.given)

    @invariant()
    def nobody_holds_more_than_the_limit(self) -> None:
        for seat in self.seats:
            assert seat.counts[False] <= self.limits.sync
            assert seat.counts[True] <= self.limits.asynchronous

    def teardown(self) -> None:
        for _ in range(self.added + 1):
            self.assign()
            for which in range(3):
                while self.seats[which].calls:
                    self.end(which, 1.0)
        assert self.ended == self.added, "some calls would wait for ever"


TestDispatchMachine = DispatchMachine.TestCase
TestDispatchMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
