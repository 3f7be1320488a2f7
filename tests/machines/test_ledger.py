"""The lease state machine, driven by examples and through random histories, without a machine and without waiting."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paragent._internal.clock import ManualClock
from paragent.errors import ConfigError, LeaseLost, PoolFailed, PoolStopped, UsageError
from paragent.machines.state_machine import FINAL, LIVE, EffectKind, LeaseRecord, Ledger, MachineState, Trouble


class Book:
    """A ledger whose machines do everything at once."""

    def __init__(self, size: int, spares: int = 0, **more: Any) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger(size, spares, clock=self.clock, **more)
        self.ledger.open()
        self.granted: list[LeaseRecord] = []
        self.settle()

    def settle(self, *, reset: bool = True) -> None:
        kept = []
        while self.ledger.effects:
            effect = self.ledger.effects.popleft()
            if effect.kind is EffectKind.BOOT:
                self.ledger.booted(effect.machine_id)
            elif effect.kind is EffectKind.RESET and reset:
                self.ledger.was_reset(effect.machine_id)
            elif effect.kind is EffectKind.RESET:
                kept.append(effect)
            elif effect.kind is EffectKind.HAND_OUT:
                assert effect.lease is not None
                self.granted.append(effect.lease)
                self.ledger.handed_out(effect.lease.token)
        self.ledger.effects.extend(kept)

    def states(self) -> list[str]:
        return [str(machine.state) for machine in self.ledger.machines.values()]

    def ask(self, request: str, **more: Any) -> LeaseRecord:
        self.ledger.ask(request, "holder", more.pop("duration", 10.0), **more)
        self.settle(reset=False)
        return self.granted[-1]


def test_first_come_first_served() -> None:
    book = Book(2)
    for number in range(6):
        book.ledger.ask(f"r{number}", "h", 10)
    book.settle()
    while book.ledger.leases:
        book.ledger.release(min(book.ledger.leases))
        book.settle()
    assert [lease.request_id for lease in book.granted] == [f"r{n}" for n in range(6)]
    tokens = [lease.token for lease in book.granted]
    assert tokens == sorted(set(tokens))


def test_a_released_machine_is_reset_before_anybody_gets_it() -> None:
    book = Book(1)
    lease = book.ask("a")
    assert book.ledger.ask("b", "h", 10) is None
    assert book.ledger.release(lease.token)
    book.settle(reset=False)
    assert book.states() == ["resetting"]
    assert book.ledger.waiting == 1
    book.settle()
    assert [lease.request_id for lease in book.granted] == ["a", "b"]


def test_a_spare_goes_out_while_the_other_is_reset_but_never_more_than_size() -> None:
    book = Book(1, spares=1)
    lease = book.ask("a")
    assert book.ledger.ask("b", "h", 10) is None, "the spare is no second machine"
    book.ledger.release(lease.token)
    assert book.ledger.ask("b", "h", 10) is not None
    assert sorted(book.states()) == ["leased", "resetting"]


def test_release_is_idempotent() -> None:
    book = Book(1)
    lease = book.ask("a")
    assert book.ledger.release(lease.token)
    assert not book.ledger.release(lease.token)
    book.settle()
    assert book.states() == ["free"]


def test_a_request_asked_twice_is_one_request() -> None:
    book = Book(1)
    first = book.ask("a")
    assert book.ledger.ask("a", "h", 10) is first
    book.ledger.ask("b", "h", 10)
    book.ledger.ask("c", "h", 10)
    book.ledger.ask("b", "h", 10)
    assert book.ledger.waiting == 2
    book.ledger.release(first.token)
    with pytest.raises(LeaseLost, match="new id"):
        book.ledger.ask("a", "h", 10)


def test_a_silent_holder_loses_the_machine_at_the_deadline() -> None:
    book = Book(1)
    lease = book.ask("a", duration=10.0)
    book.clock.advance(9)
    assert book.ledger.renew(lease.token) == 10
    book.clock.advance(9)
    assert book.ledger.expire() == []
    assert book.ledger.alarm == 19
    book.clock.advance(1)
    with pytest.raises(LeaseLost):
        book.ledger.renew(lease.token)
    assert book.ledger.expire() == [lease]
    assert not book.ledger.release(lease.token)
    assert book.states() == ["resetting"]


def test_a_limit_is_not_moved_by_heartbeats() -> None:
    book = Book(1)
    lease = book.ask("a", duration=10.0, limit=15.0)
    book.clock.advance(9)
    assert book.ledger.renew(lease.token) == 6


def test_a_limit_shorter_than_a_lease_holds_from_the_start() -> None:
    book = Book(1)
    lease = book.ask("a", duration=10.0, limit=5.0)
    book.clock.advance(5)
    assert book.ledger.expire() == [lease]


def test_withdrawing_leaves_the_queue_or_gives_back() -> None:
    book = Book(1)
    book.ask("a")
    book.ledger.ask("b", "h", 10)
    book.ledger.ask("c", "h", 10)
    book.ledger.withdraw("b")
    book.ledger.withdraw("a")
    book.settle()
    assert [lease.request_id for lease in book.granted] == ["a", "c"]


def test_a_machine_that_breaks_on_the_way_costs_the_holder_nothing() -> None:
    book = Book(1)
    book.ledger.ask("a", "h", 10)
    book.ledger.ask("b", "h", 10)
    book.ledger.broke("m0", Trouble.HAND_OUT, "no answer")
    book.settle()
    assert [(lease.request_id, lease.machine_id) for lease in book.granted] == [("a", "m0"), ("a", "m1")]
    assert book.ledger.machines["m0"].reason == "could not be handed out: no answer"


def test_a_machine_that_breaks_with_its_holder_ends_the_lease_and_is_replaced() -> None:
    book = Book(2)
    lease = book.ask("a")
    book.ledger.broke(lease.machine_id, Trouble.HEALTH, "killed")
    book.settle()
    with pytest.raises(LeaseLost):
        book.ledger.renew(lease.token)
    assert sorted(book.states()) == ["free", "free", "quarantined"]


def test_machines_that_break_over_and_over_end_the_pool() -> None:
    book = Book(2, patience=3)
    ledger = book.ledger
    ledger.ask("a", "h", 10)
    ledger.ask("b", "h", 10)
    ledger.ask("c", "h", 10)
    book.settle()
    for _ in range(3):
        machine = next(m.id for m in ledger.machines.values() if m.state in LIVE)
        ledger.broke(machine, Trouble.BOOT, "no kernel")
    assert ledger.failure is not None
    assert "3 machines in a row did not boot" in ledger.failure
    assert list(ledger.rejected) == ["c"]
    with pytest.raises(PoolFailed, match="no kernel"):
        ledger.ask("d", "h", 10)


def test_a_success_forgives() -> None:
    book = Book(1, patience=2)
    for _ in range(5):
        machine = next(m.id for m in book.ledger.machines.values() if m.state in LIVE)
        book.ledger.broke(machine, Trouble.BOOT, "slow")
        book.settle()
    assert book.ledger.failure is None


@pytest.mark.parametrize("trouble", [Trouble.RESET, Trouble.HAND_OUT, Trouble.HEALTH])
def test_every_kind_of_trouble_is_forgiven_by_its_own_success(trouble: Trouble) -> None:
    book = Book(1, patience=2)
    for number in range(5):
        lease = book.ask(f"r{number}")
        book.ledger.release(lease.token)
        book.settle()
        machine = next(m.id for m in book.ledger.machines.values() if m.state in LIVE)
        book.ledger.broke(machine, trouble, "once")
        book.settle()
    assert book.ledger.failure is None


def test_draining_waits_for_holders_and_refuses_others() -> None:
    book = Book(2)
    lease = book.ask("a")
    book.ask("b")
    book.ledger.ask("c", "h", 10)
    book.ledger.drain()
    assert list(book.ledger.rejected) == ["c"]
    with pytest.raises(PoolStopped):
        book.ledger.ask("d", "h", 10)
    assert not book.ledger.drained
    book.ledger.release(lease.token)
    book.ledger.withdraw("b")
    assert book.ledger.drained


def test_a_retired_machine_is_replaced_when_its_holder_is_done() -> None:
    book = Book(1)
    lease = book.ask("a")
    book.ledger.retire("m0")
    assert book.states() == ["leased"]
    book.ledger.release(lease.token)
    book.settle()
    assert book.states() == ["stopped", "free"]
    with pytest.raises(UsageError, match="m1"):
        book.ledger.retire("m0")


def test_a_machine_retired_while_it_is_reset_is_given_to_nobody() -> None:
    book = Book(1)
    lease = book.ask("a")
    book.ledger.release(lease.token)
    book.ledger.retire(lease.machine_id)
    book.ledger.was_reset(lease.machine_id)
    assert book.states() == ["stopped", "booting"]
    assert book.ledger.ask("b", "h", 10) is None
    book.settle()
    assert [(lease.request_id, lease.machine_id) for lease in book.granted] == [("a", "m0"), ("b", "m1")]


def test_the_book_remembers_a_bounded_past() -> None:
    book = Book(1)
    for number in range(100):
        book.ledger.retire(f"m{number}")
        book.settle()
    assert len(book.ledger.machines) == 51
    book.ask("held")
    for number in range(10_001):
        book.ledger.ask(f"r{number}", "h", 10)
        book.ledger.withdraw(f"r{number}")
    with pytest.raises(LeaseLost):
        book.ledger.ask("r1", "h", 10)
    assert book.ledger.ask("r0", "h", 10) is None, "nobody sends it again after ten thousand others: it is a new one"


@pytest.mark.parametrize("machines", [1, 50, 51, 80, 200])
def test_all_of_many_machines_that_break_at_once_are_to_be_ended(machines: int) -> None:
    book = Book(machines, patience=10_000)
    for number in range(machines):
        book.ledger.broke(f"m{number}", Trouble.HEALTH, "the host lost power")
    discarded = [effect for effect in book.ledger.effects if effect.kind is EffectKind.DISCARD]
    assert [effect.machine_id for effect in discarded] == [f"m{number}" for number in range(machines)]
    assert all(effect.quarantined for effect in discarded)
    assert book.ledger.reason("m0") in {"", "stopped answering: the host lost power"}


def test_leases_of_a_machine_are_counted() -> None:
    book = Book(1)
    for number in range(3):
        book.ledger.release(book.ask(f"r{number}").token)
        book.settle()
    assert book.ledger.machines["m0"].uses == 3


def test_the_time_that_machines_were_with_holders_is_counted() -> None:
    book = Book(2)
    first = book.ask("a")
    book.clock.advance(5)
    book.ledger.release(first.token)
    book.settle()
    book.ask("b")
    book.clock.advance(2)
    assert (book.ledger.leased_seconds, book.ledger.seconds) == (7, 7)


@pytest.mark.parametrize(("size", "spares", "patience"), [(0, 0, 3), (1, -1, 3), (1, 0, 0)])
def test_impossible_pools_are_refused(size: int, spares: int, patience: int) -> None:
    with pytest.raises(ConfigError):
        Ledger(size, spares, patience=patience)


def test_an_impossible_lease_is_refused() -> None:
    with pytest.raises(ConfigError):
        Book(1).ledger.ask("a", "h", 0)


def test_ten_thousand_lease_operations_a_second() -> None:
    """With 1,000 waiting for 10 machines; the best of three, so that a busy machine does not matter."""

    def rate() -> float:
        book = Book(10)
        ledger = book.ledger
        for number in range(1_000):
            ledger.ask(f"w{number}", "h", 10)
        started, operations = time.perf_counter(), 0
        for number in range(3_000):
            book.settle()
            lease = next(iter(ledger.leases.values()))
            ledger.renew(lease.token)
            ledger.release(lease.token)
            ledger.ask(f"x{number}", "h", 10)
            operations += 3
        return operations / (time.perf_counter() - started)

    assert max(rate() for _ in range(3)) > 10_000


class History(RuleBasedStateMachine):
    """Anything may happen at any time; whatever does, the invariants hold."""

    @initialize(size=st.integers(1, 4), spares=st.integers(0, 2), patience=st.integers(2, 5))
    def begin(self, size: int, spares: int, patience: int) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger(size, spares, clock=self.clock, patience=patience)
        self.ledger.open()
        self.asked = 0
        self.order: list[str] = []
        self.withdrawn: set[str] = set()
        self.dirty: set[str] = set()
        self.work: dict[str, EffectKind] = {}
        self.tokens: list[int] = []
        self.served: list[str] = []
        self.booting: set[str] = set()
        self.discarded: set[str] = set()
        self.collect()

    def collect(self) -> None:
        """Take the effects as the owner of a ledger does, and check each against the state it belongs to."""
        while self.ledger.effects:
            effect = self.ledger.effects.popleft()
            machine = effect.machine_id
            if effect.kind is EffectKind.BOOT:
                self.booting.add(machine)
            if effect.kind is EffectKind.DISCARD:
                assert machine not in self.discarded, "a machine was ended twice"
                self.discarded.add(machine)
                if (record := self.ledger.machines.get(machine)) is not None:
                    assert effect.quarantined == (record.state is MachineState.QUARANTINED)
                self.work.pop(machine, None)
                self.dirty.discard(machine)
                continue
            if effect.kind is EffectKind.HAND_OUT:
                assert effect.lease is not None
                assert machine not in self.dirty, "a dirty machine was handed out"
                self.dirty.add(machine)
                self.tokens.append(effect.lease.token)
                self.served.append(effect.lease.request_id)
            self.work[machine] = effect.kind

    def doing(self, kind: EffectKind) -> list[str]:
        return sorted(machine for machine, work in self.work.items() if work is kind)

    @rule()
    def ask(self) -> None:
        self.asked += 1
        try:
            self.ledger.ask(f"r{self.asked}", "h", 10.0)
        except (PoolStopped, PoolFailed):
            assert self.ledger.draining or self.ledger.failure
        else:
            self.order.append(f"r{self.asked}")
        self.collect()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        request = f"r{data.draw(st.integers(1, self.asked))}"
        waiting, leases = self.ledger.waiting, len(self.ledger.leases)
        try:
            self.ledger.ask(request, "h", 10.0)
        except (LeaseLost, PoolStopped, PoolFailed):
            pass
        else:
            if request not in self.order:
                self.order.append(request)
                self.collect()
                return
        assert (self.ledger.waiting, len(self.ledger.leases)) == (waiting, leases)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request = f"r{data.draw(st.integers(1, self.asked))}"
        self.withdrawn.add(request)
        self.ledger.withdraw(request)
        self.collect()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        held = token in self.ledger.leases
        assert self.ledger.release(token) is held
        assert self.ledger.release(token) is False
        self.collect()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        lease = self.ledger.leases.get(token)
        if lease is None or lease.deadline <= self.clock():
            with pytest.raises(LeaseLost):
                self.ledger.renew(token)
        else:
            assert self.ledger.renew(token) == 10.0

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.ledger.expire()
        assert all(lease.deadline > self.clock() for lease in self.ledger.leases.values())
        self.collect()

    @rule(data=st.data(), well=st.booleans())
    def work_ends(self, data: st.DataObject, well: bool) -> None:
        if not self.work:
            return
        machine = data.draw(st.sampled_from(sorted(self.work)))
        kind = self.work.pop(machine)
        lease = self.ledger.machines[machine].lease
        if not well:
            self.ledger.broke(machine, Trouble(_TROUBLE[kind]), "chance")
        elif kind is EffectKind.BOOT:
            self.ledger.booted(machine)
        elif kind is EffectKind.RESET:
            self.dirty.discard(machine)
            self.ledger.was_reset(machine)
        elif lease is not None:
            self.ledger.handed_out(lease.token)
        self.collect()

    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from(sorted(self.ledger.machines)))
        self.ledger.broke(machine, Trouble.HEALTH, "chance")
        self.collect()

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from(sorted(self.ledger.machines)))
        if self.ledger.machines[machine].state in LIVE:
            self.ledger.retire(machine)
        self.collect()

    @precondition(lambda self: self.asked > 8)
    @rule()
    def drain(self) -> None:
        self.ledger.drain()
        self.collect()

    @invariant()
    def one_holder_each(self) -> None:
        if not hasattr(self, "ledger"):
            return
        held = [lease.machine_id for lease in self.ledger.leases.values()]
        assert len(held) == len(set(held)) <= self.ledger.size
        for machine in self.ledger.machines.values():
            assert (machine.state is MachineState.LEASED) == (machine.lease is not None) == (machine.id in held)

    @invariant()
    def the_size_stays(self) -> None:
        if hasattr(self, "ledger") and not (self.ledger.draining or self.ledger.failure):
            assert self.ledger.live == self.ledger.size + self.ledger.spares

    @invariant()
    def nobody_waits_beside_a_free_machine(self) -> None:
        if not hasattr(self, "ledger") or self.ledger.draining or self.ledger.failure:
            return
        free = any(machine.state is MachineState.FREE for machine in self.ledger.machines.values())
        assert not (self.ledger.waiting and free and len(self.ledger.leases) < self.ledger.size)

    @invariant()
    def nobody_waits_for_a_pool_that_has_ended(self) -> None:
        if hasattr(self, "ledger") and (self.ledger.draining or self.ledger.failure):
            assert self.ledger.waiting == 0
            assert all(m.state in FINAL | {MachineState.LEASED} for m in self.ledger.machines.values())

    @invariant()
    def every_machine_that_is_not_alive_is_ended(self) -> None:
        if hasattr(self, "ledger"):
            alive = {machine.id for machine in self.ledger.machines.values() if machine.state in LIVE}
            assert self.booting - self.discarded == alive

    @invariant()
    def tokens_grow_and_the_queue_is_fair(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.tokens == sorted(set(self.tokens))
        first = list(dict.fromkeys(self.served))
        assert first == [request for request in self.order if request in set(first)]


_TROUBLE = {EffectKind.BOOT: Trouble.BOOT, EffectKind.RESET: Trouble.RESET, EffectKind.HAND_OUT: Trouble.HAND_OUT}

TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
