"""The pool's state machine: examples and random histories, without machines and without waiting."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paragent._internal.clock import ManualClock
from paragent.errors import ConfigError, LeaseLost, PoolFailed, PoolStopped, UsageError
from paragent.machines.state_machine import (
    FINAL,
    LIVE,
    CommandKind,
    FailureKind,
    LeaseRecord,
    MachineState,
    PoolStateMachine,
)


class FakeOwner:
    """Executes every command at once."""

    def __init__(self, size: int, spares: int = 0, **more: Any) -> None:
        self.clock = ManualClock()
        self.pool = PoolStateMachine(size, spares, clock=self.clock, **more)
        self.pool.open()
        self.granted: list[LeaseRecord] = []
        self.settle()

    def settle(self, *, reset: bool = True) -> None:
        kept = []
        while self.pool.commands:
            command = self.pool.commands.popleft()
            if command.kind is CommandKind.BOOT:
                self.pool.machine_booted(command.machine_id)
            elif command.kind is CommandKind.RESET and reset:
                self.pool.machine_reset(command.machine_id)
            elif command.kind is CommandKind.RESET:
                kept.append(command)
            elif command.kind is CommandKind.ACTIVATE:
                assert command.lease is not None
                self.granted.append(command.lease)
                self.pool.lease_activated(command.lease.token)
        self.pool.commands.extend(kept)

    def states(self) -> list[str]:
        return [str(machine.state) for machine in self.pool.machines.values()]

    def lease(self, request: str, **more: Any) -> LeaseRecord:
        self.pool.request(request, "holder", more.pop("duration", 10.0), **more)
        self.settle(reset=False)
        return self.granted[-1]


def test_requests_are_served_in_order() -> None:
    owner = FakeOwner(2)
    for number in range(6):
        owner.pool.request(f"r{number}", "h", 10)
    owner.settle()
    while owner.pool.leases:
        owner.pool.release(min(owner.pool.leases))
        owner.settle()
    assert [lease.request_id for lease in owner.granted] == [f"r{n}" for n in range(6)]
    tokens = [lease.token for lease in owner.granted]
    assert tokens == sorted(set(tokens))


def test_a_released_machine_is_reset_before_the_next_lease() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a")
    assert owner.pool.request("b", "h", 10) is None
    assert owner.pool.release(lease.token)
    owner.settle(reset=False)
    assert owner.states() == ["resetting"]
    assert owner.pool.waiting == 1
    owner.settle()
    assert [lease.request_id for lease in owner.granted] == ["a", "b"]


def test_a_spare_is_leased_during_a_reset_but_never_more_than_size() -> None:
    owner = FakeOwner(1, spares=1)
    lease = owner.lease("a")
    assert owner.pool.request("b", "h", 10) is None, "a spare does not count as a second machine"
    owner.pool.release(lease.token)
    assert owner.pool.request("b", "h", 10) is not None
    assert sorted(owner.states()) == ["leased", "resetting"]


def test_release_is_idempotent() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a")
    assert owner.pool.release(lease.token)
    assert not owner.pool.release(lease.token)
    owner.settle()
    assert owner.states() == ["free"]


def test_a_repeated_request_is_one_request() -> None:
    owner = FakeOwner(1)
    first = owner.lease("a")
    assert owner.pool.request("a", "h", 10) is first
    owner.pool.request("b", "h", 10)
    owner.pool.request("c", "h", 10)
    owner.pool.request("b", "h", 10)
    assert owner.pool.waiting == 2
    owner.pool.release(first.token)
    with pytest.raises(LeaseLost, match="new id"):
        owner.pool.request("a", "h", 10)


def test_a_lease_without_heartbeats_expires_at_its_deadline() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a", duration=10.0)
    owner.clock.advance(9)
    assert owner.pool.renew(lease.token) == 10
    owner.clock.advance(9)
    assert owner.pool.expire() == []
    assert owner.pool.next_deadline == 19
    owner.clock.advance(1)
    with pytest.raises(LeaseLost):
        owner.pool.renew(lease.token)
    assert owner.pool.expire() == [lease]
    assert not owner.pool.release(lease.token)
    assert owner.states() == ["resetting"]


def test_heartbeats_do_not_move_the_limit() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a", duration=10.0, limit=15.0)
    owner.clock.advance(9)
    assert owner.pool.renew(lease.token) == 6


def test_a_limit_shorter_than_the_duration_applies() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a", duration=10.0, limit=5.0)
    owner.clock.advance(5)
    assert owner.pool.expire() == [lease]


def test_withdraw_removes_a_request_or_releases_its_lease() -> None:
    owner = FakeOwner(1)
    owner.lease("a")
    owner.pool.request("b", "h", 10)
    owner.pool.request("c", "h", 10)
    owner.pool.withdraw("b")
    owner.pool.withdraw("a")
    owner.settle()
    assert [lease.request_id for lease in owner.granted] == ["a", "c"]


def test_a_worker_that_has_ended_gets_no_machine_and_others_keep_theirs() -> None:
    owner = FakeOwner(2)
    owner.lease("a", worker="worker-1")
    other = owner.lease("b", worker="worker-2")
    owner.pool.request("c", "h", 10, worker="worker-1")
    owner.pool.request("d", "h", 10, worker="worker-2")
    assert [request.request_id for request in owner.pool.end_worker("worker-1")] == ["c", "a"]
    owner.settle()
    assert [lease.request_id for lease in owner.granted] == ["a", "b", "d"]
    assert owner.pool.renew(other.token)
    with pytest.raises(LeaseLost, match="has ended"):
        owner.pool.request("e", "h", 10, worker="worker-1")  # it was sent before the end and arrives after it
    assert owner.pool.end_worker("worker-1") == []


def test_a_machine_that_fails_before_activation_requeues_its_request_first() -> None:
    owner = FakeOwner(1)
    owner.pool.request("a", "h", 10)
    owner.pool.request("b", "h", 10)
    owner.pool.machine_failed("m0", FailureKind.ACTIVATE, "no answer")
    owner.settle()
    assert [(lease.request_id, lease.machine_id) for lease in owner.granted] == [("a", "m0"), ("a", "m1")]
    assert owner.pool.machines["m0"].reason == "could not be given to its holder: no answer"


def test_a_leased_machine_that_fails_ends_its_lease_and_is_replaced() -> None:
    owner = FakeOwner(2)
    lease = owner.lease("a")
    owner.pool.machine_failed(lease.machine_id, FailureKind.HEALTH, "killed")
    owner.settle()
    with pytest.raises(LeaseLost):
        owner.pool.renew(lease.token)
    assert sorted(owner.states()) == ["free", "free", "quarantined"]


def test_consecutive_failures_fail_the_pool() -> None:
    owner = FakeOwner(2, max_failures=3)
    pool = owner.pool
    pool.request("a", "h", 10)
    pool.request("b", "h", 10)
    pool.request("c", "h", 10)
    owner.settle()
    for _ in range(3):
        machine = next(m.id for m in pool.machines.values() if m.state in LIVE)
        pool.machine_failed(machine, FailureKind.BOOT, "no kernel")
    assert pool.failure is not None
    assert "3 machines in a row did not boot" in pool.failure
    assert list(pool.rejected) == ["c"]
    with pytest.raises(PoolFailed, match="no kernel"):
        pool.request("d", "h", 10)


def test_a_success_clears_the_count_of_failures() -> None:
    owner = FakeOwner(1, max_failures=2)
    for _ in range(5):
        machine = next(m.id for m in owner.pool.machines.values() if m.state in LIVE)
        owner.pool.machine_failed(machine, FailureKind.BOOT, "slow")
        owner.settle()
    assert owner.pool.failure is None


@pytest.mark.parametrize("kind", [FailureKind.RESET, FailureKind.ACTIVATE, FailureKind.HEALTH])
def test_every_kind_of_trouble_is_forgiven_by_its_own_success(kind: FailureKind) -> None:
    owner = FakeOwner(1, max_failures=2)
    for number in range(5):
        lease = owner.lease(f"r{number}")
        owner.pool.release(lease.token)
        owner.settle()
        machine = next(m.id for m in owner.pool.machines.values() if m.state in LIVE)
        owner.pool.machine_failed(machine, kind, "once")
        owner.settle()
    assert owner.pool.failure is None


def test_draining_waits_for_leases_and_rejects_requests() -> None:
    owner = FakeOwner(2)
    lease = owner.lease("a")
    owner.lease("b")
    owner.pool.request("c", "h", 10)
    owner.pool.drain()
    assert list(owner.pool.rejected) == ["c"]
    with pytest.raises(PoolStopped):
        owner.pool.request("d", "h", 10)
    assert not owner.pool.drained
    owner.pool.release(lease.token)
    owner.pool.withdraw("b")
    assert owner.pool.drained


def test_a_retired_machine_is_replaced_when_its_lease_ends() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a")
    owner.pool.retire("m0")
    assert owner.states() == ["leased"]
    owner.pool.release(lease.token)
    owner.settle()
    assert owner.states() == ["stopped", "free"]
    with pytest.raises(UsageError, match="m1"):
        owner.pool.retire("m0")


def test_a_machine_retired_during_its_reset_is_not_leased() -> None:
    owner = FakeOwner(1)
    lease = owner.lease("a")
    owner.pool.release(lease.token)
    owner.pool.retire(lease.machine_id)
    owner.pool.machine_reset(lease.machine_id)
    assert owner.states() == ["stopped", "booting"]
    assert owner.pool.request("b", "h", 10) is None
    owner.settle()
    assert [(lease.request_id, lease.machine_id) for lease in owner.granted] == [("a", "m0"), ("b", "m1")]


def test_history_is_bounded() -> None:
    owner = FakeOwner(1)
    for number in range(100):
        owner.pool.retire(f"m{number}")
        owner.settle()
    assert len(owner.pool.machines) == 51
    owner.lease("held")
    for number in range(10_001):
        owner.pool.request(f"r{number}", "h", 10)
        owner.pool.withdraw(f"r{number}")
    with pytest.raises(LeaseLost):
        owner.pool.request("r1", "h", 10)
    assert owner.pool.request("r0", "h", 10) is None, "the oldest ids are forgotten: it is a new request"


@pytest.mark.parametrize("machines", [1, 50, 51, 80, 200])
def test_all_machines_that_fail_at_once_are_discarded(machines: int) -> None:
    owner = FakeOwner(machines, max_failures=10_000)
    for number in range(machines):
        owner.pool.machine_failed(f"m{number}", FailureKind.HEALTH, "the host lost power")
    discarded = [command for command in owner.pool.commands if command.kind is CommandKind.DISCARD]
    assert [command.machine_id for command in discarded] == [f"m{number}" for number in range(machines)]
    assert all(command.quarantined for command in discarded)
    assert owner.pool.reason("m0") in {"", "stopped answering: the host lost power"}


def test_uses_of_a_machine_are_counted() -> None:
    owner = FakeOwner(1)
    for number in range(3):
        owner.pool.release(owner.lease(f"r{number}").token)
        owner.settle()
    assert owner.pool.machines["m0"].uses == 3


def test_leased_time_is_counted() -> None:
    owner = FakeOwner(2)
    first = owner.lease("a")
    owner.clock.advance(5)
    owner.pool.release(first.token)
    owner.settle()
    owner.lease("b")
    owner.clock.advance(2)
    assert (owner.pool.leased_seconds, owner.pool.seconds) == (7, 7)


@pytest.mark.parametrize(("size", "spares", "max_failures"), [(0, 0, 3), (1, -1, 3), (1, 0, 0)])
def test_invalid_pool_sizes_are_rejected(size: int, spares: int, max_failures: int) -> None:
    with pytest.raises(ConfigError):
        PoolStateMachine(size, spares, max_failures=max_failures)


def test_an_invalid_duration_is_rejected() -> None:
    with pytest.raises(ConfigError):
        FakeOwner(1).pool.request("a", "h", 0)


def test_ten_thousand_operations_per_second() -> None:
    """With 1,000 requests waiting for 10 machines; the best of three, so that a busy host does not matter."""

    def rate() -> float:
        owner = FakeOwner(10)
        pool = owner.pool
        for number in range(1_000):
            pool.request(f"w{number}", "h", 10)
        started, operations = time.perf_counter(), 0
        for number in range(3_000):
            owner.settle()
            lease = next(iter(pool.leases.values()))
            pool.renew(lease.token)
            pool.release(lease.token)
            pool.request(f"x{number}", "h", 10)
            operations += 3
        return operations / (time.perf_counter() - started)

    assert max(rate() for _ in range(3)) > 10_000


class History(RuleBasedStateMachine):
    """Events in any order; the invariants hold after each."""

    @initialize(size=st.integers(1, 4), spares=st.integers(0, 2), max_failures=st.integers(2, 5))
    def begin(self, size: int, spares: int, max_failures: int) -> None:
        self.clock = ManualClock()
        self.pool = PoolStateMachine(size, spares, clock=self.clock, max_failures=max_failures)
        self.pool.open()
        self.asked = 0
        self.order: list[str] = []
        self.withdrawn: set[str] = set()
        self.dirty: set[str] = set()
        self.work: dict[str, CommandKind] = {}
        self.tokens: list[int] = []
        self.served: list[str] = []
        self.booting: set[str] = set()
        self.discarded: set[str] = set()
        self.collect()

    def collect(self) -> None:
        """Take the commands as the owner does, and check each against the state of its machine."""
        while self.pool.commands:
            command = self.pool.commands.popleft()
            machine = command.machine_id
            if command.kind is CommandKind.BOOT:
                self.booting.add(machine)
            if command.kind is CommandKind.DISCARD:
                assert machine not in self.discarded, "a machine was discarded twice"
                self.discarded.add(machine)
                if (record := self.pool.machines.get(machine)) is not None:
                    assert command.quarantined == (record.state is MachineState.QUARANTINED)
                self.work.pop(machine, None)
                self.dirty.discard(machine)
                continue
            if command.kind is CommandKind.ACTIVATE:
                assert command.lease is not None
                assert machine not in self.dirty, "a dirty machine was leased"
                self.dirty.add(machine)
                self.tokens.append(command.lease.token)
                self.served.append(command.lease.request_id)
            self.work[machine] = command.kind

    def doing(self, kind: CommandKind) -> list[str]:
        return sorted(machine for machine, work in self.work.items() if work is kind)

    @rule()
    def ask(self) -> None:
        self.asked += 1
        try:
            self.pool.request(f"r{self.asked}", "h", 10.0)
        except (PoolStopped, PoolFailed):
            assert self.pool.draining or self.pool.failure
        else:
            self.order.append(f"r{self.asked}")
        self.collect()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        request = f"r{data.draw(st.integers(1, self.asked))}"
        waiting, leases = self.pool.waiting, len(self.pool.leases)
        try:
            self.pool.request(request, "h", 10.0)
        except (LeaseLost, PoolStopped, PoolFailed):
            pass
        else:
            if request not in self.order:
                self.order.append(request)
                self.collect()
                return
        assert (self.pool.waiting, len(self.pool.leases)) == (waiting, leases)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request = f"r{data.draw(st.integers(1, self.asked))}"
        self.withdrawn.add(request)
        self.pool.withdraw(request)
        self.collect()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        held = token in self.pool.leases
        assert self.pool.release(token) is held
        assert self.pool.release(token) is False
        self.collect()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        lease = self.pool.leases.get(token)
        if lease is None or lease.deadline <= self.clock():
            with pytest.raises(LeaseLost):
                self.pool.renew(token)
        else:
            assert self.pool.renew(token) == 10.0

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pool.expire()
        assert all(lease.deadline > self.clock() for lease in self.pool.leases.values())
        self.collect()

    @rule(data=st.data(), succeeded=st.booleans())
    def work_ends(self, data: st.DataObject, succeeded: bool) -> None:
        if not self.work:
            return
        machine = data.draw(st.sampled_from(sorted(self.work)))
        kind = self.work.pop(machine)
        lease = self.pool.machines[machine].lease
        if not succeeded:
            self.pool.machine_failed(machine, FailureKind(_FAILURES[kind]), "chance")
        elif kind is CommandKind.BOOT:
            self.pool.machine_booted(machine)
        elif kind is CommandKind.RESET:
            self.dirty.discard(machine)
            self.pool.machine_reset(machine)
        elif lease is not None:
            self.pool.lease_activated(lease.token)
        self.collect()

    @rule(data=st.data())
    def machine_fails(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from(sorted(self.pool.machines)))
        self.pool.machine_failed(machine, FailureKind.HEALTH, "chance")
        self.collect()

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from(sorted(self.pool.machines)))
        if self.pool.machines[machine].state in LIVE:
            self.pool.retire(machine)
        self.collect()

    @precondition(lambda self: self.asked > 8)
    @rule()
    def drain(self) -> None:
        self.pool.drain()
        self.collect()

    @invariant()
    def each_machine_has_one_lease(self) -> None:
        if not hasattr(self, "pool"):
            return
        held = [lease.machine_id for lease in self.pool.leases.values()]
        assert len(held) == len(set(held)) <= self.pool.size
        for machine in self.pool.machines.values():
            assert (machine.state is MachineState.LEASED) == (machine.lease is not None) == (machine.id in held)

    @invariant()
    def the_changes_are_numbered_and_end_in_the_current_states(self) -> None:
        if not hasattr(self, "pool"):
            return
        changes = list(self.pool.changes)
        assert [change.number for change in changes] == list(range(1, self.pool.change_count + 1))
        entered: dict[str, list[MachineState]] = {}
        for change in changes:
            entered.setdefault(change.machine, []).append(change.state)
            assert bool(change.holder) or change.state is not MachineState.LEASED
            assert bool(change.detail) == (change.state in FINAL)
        for machine in self.pool.machines.values():
            assert entered[machine.id][-1] is machine.state
        for states in entered.values():
            assert states[0] is MachineState.BOOTING
            assert all(later in _FOLLOWING[earlier] for earlier, later in pairwise(states))

    @invariant()
    def the_number_of_machines_is_constant(self) -> None:
        if hasattr(self, "pool") and not (self.pool.draining or self.pool.failure):
            assert self.pool.live == self.pool.size + self.pool.spares

    @invariant()
    def no_request_waits_while_a_machine_is_free(self) -> None:
        if not hasattr(self, "pool") or self.pool.draining or self.pool.failure:
            return
        free = any(machine.state is MachineState.FREE for machine in self.pool.machines.values())
        assert not (self.pool.waiting and free and len(self.pool.leases) < self.pool.size)

    @invariant()
    def no_request_waits_for_a_pool_that_ended(self) -> None:
        if hasattr(self, "pool") and (self.pool.draining or self.pool.failure):
            assert self.pool.waiting == 0
            assert all(m.state in FINAL | {MachineState.LEASED} for m in self.pool.machines.values())

    @invariant()
    def every_dead_machine_was_discarded(self) -> None:
        if hasattr(self, "pool"):
            alive = {machine.id for machine in self.pool.machines.values() if machine.state in LIVE}
            assert self.booting - self.discarded == alive

    @invariant()
    def tokens_grow_and_the_queue_is_fair(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.tokens == sorted(set(self.tokens))
        first = list(dict.fromkeys(self.served))
        assert first == [request for request in self.order if request in set(first)]


_FOLLOWING = {
    MachineState.BOOTING: {MachineState.FREE, *FINAL},
    MachineState.FREE: {MachineState.LEASED, *FINAL},
    MachineState.LEASED: {MachineState.RESETTING, *FINAL},
    MachineState.RESETTING: {MachineState.FREE, *FINAL},
    MachineState.QUARANTINED: set[MachineState](),
    MachineState.STOPPED: set[MachineState](),
}
_FAILURES = {
    CommandKind.BOOT: FailureKind.BOOT,
    CommandKind.RESET: FailureKind.RESET,
    CommandKind.ACTIVATE: FailureKind.ACTIVATE,
}

TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
