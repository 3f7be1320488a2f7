"""Admission and delivery of groups: no group is too stale, nothing is lost, nothing waits forever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paragent.training.pacing import Pacing


class Simulation:
    """A service with groups that finish in any order, and a trainer that takes groups and publishes versions."""

    def __init__(self, chance: random.Random, max_staleness: int, per_version: int, tasks: int) -> None:
        self.chance, self.max_staleness, self.per_version = chance, max_staleness, per_version
        self.pacing = Pacing(max_staleness, per_version)
        self.waiting = [f"g{number}" for number in range(tasks)]
        self.running: list[str] = []
        self.finished: list[str] = []
        self.born: dict[str, int] = {}
        self.delivered: list[str] = []
        self.staleness: list[int] = []

    def admit(self) -> bool:
        if not self.waiting or not self.pacing.may_admit():
            return False
        group = self.waiting.pop(0)
        self.pacing.admit(group)
        self.born[group] = self.pacing.version
        self.running.append(group)
        return True

    def finish(self) -> bool:
        """End a random group; sometimes its rollouts are replayed instead, and it ends later."""
        if not self.running or self.chance.random() < 0.3:
            return False
        self.finished.append(self.running.pop(self.chance.randrange(len(self.running))))
        return True

    def take(self) -> bool:
        group = self.pacing.next_delivery(self.finished)
        if group is None:
            return False
        self.finished.remove(group)
        self.pacing.deliver(group)
        self.delivered.append(group)
        self.staleness.append(self.pacing.version - self.born[group])
        return True

    def run(self, extra: int) -> None:
        """Let everything happen in random order; the trainer takes up to `extra` more groups than it promised."""
        total = len(self.waiting)
        wanted = self.per_version + self.chance.randint(0, extra)
        taken = 0
        idle = 0
        while len(self.delivered) < total:
            action = self.chance.choice([self.admit, self.finish, self.take, self.take])
            happened = action()
            if action == self.take and happened:
                taken += 1
            # The trainer publishes when it has what it wants, or when nothing more comes at this version.
            exhausted = idle > 200 and taken >= self.per_version
            if taken >= wanted or exhausted:
                assert self.pacing.publish(self.pacing.version + 1)
                wanted, taken = self.per_version + self.chance.randint(0, extra), 0
            idle = 0 if happened else idle + 1
            assert idle < 5000, "nothing happens any more"


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_staleness=st.integers(0, 5),
    per_version=st.integers(1, 5),
    tasks=st.integers(1, 60),
    extra=st.integers(0, 6),
)
def test_no_group_is_too_stale_and_none_is_lost(
    seed: int, max_staleness: int, per_version: int, tasks: int, extra: int
) -> None:
    simulation = Simulation(random.Random(seed), max_staleness, per_version, tasks)
    simulation.run(extra)
    assert sorted(simulation.delivered) == sorted(simulation.born), "each group is delivered once"
    assert max(simulation.staleness) <= max_staleness


def test_all_deliveries_of_the_allowed_versions_are_admitted_at_once() -> None:
    pacing = Pacing(max_staleness=2, groups_per_version=3)
    number = 0
    while pacing.may_admit():
        pacing.admit(f"g{number}")
        number += 1
    assert number == 9


def test_a_fast_group_waits_for_an_older_one_that_would_become_too_stale() -> None:
    pacing = Pacing(max_staleness=1, groups_per_version=1)
    pacing.admit("slow")
    pacing.admit("first")
    pacing.deliver("first")
    assert pacing.publish(1)
    pacing.admit("fast")
    assert pacing.next_delivery(["fast"]) is None, "with the next version, `slow` would be too stale"
    assert pacing.next_delivery(["fast", "slow"]) == "slow"
    pacing.deliver("slow")
    assert pacing.next_delivery(["fast"]) == "fast"


def test_without_staleness_a_version_gets_exactly_its_groups() -> None:
    pacing = Pacing(max_staleness=0, groups_per_version=2)
    for group in "ab":
        assert pacing.may_admit()
        pacing.admit(group)
    pacing.deliver("a")
    assert not pacing.may_admit(), "a third group would be sampled by this version and delivered with the next"
    pacing.deliver("b")
    assert not pacing.may_admit()
    assert pacing.publish(1)
    assert pacing.may_admit()


def test_a_trainer_that_publishes_too_early_is_noticed() -> None:
    pacing = Pacing(max_staleness=0, groups_per_version=2)
    pacing.admit("a")
    pacing.admit("b")
    pacing.deliver("a")
    assert not pacing.publish(1)
    assert pacing.next_delivery(["b"]) == "b", "nothing is discarded"


@pytest.mark.parametrize("version", [3, 7])
def test_groups_of_an_earlier_process_keep_the_version_of_their_admission(version: int) -> None:
    pacing = Pacing(max_staleness=4, groups_per_version=1, version=7)
    pacing.admit("old", version)
    pacing.admit("new")
    expected = None if version == 3 else "new"
    assert pacing.next_delivery(["new"]) == expected


def test_a_trainer_that_went_back_to_an_earlier_version_gets_its_groups() -> None:
    pacing = Pacing(max_staleness=1, groups_per_version=1, version=9)
    pacing.admit("a")
    assert pacing.publish(5)
    assert pacing.next_delivery(["a"]) == "a"
    assert pacing.may_admit()
