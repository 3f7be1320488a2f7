"""State changes of machines, as a pool reports them for the journal of a run."""

from __future__ import annotations

import os
import pickle
import signal
import time
from typing import ClassVar

import pytest

from paragent import Machine, MachineFailed, MachineState, PoolClient, VMPoolManager
from paragent.machines.providers.process import ProcessProvider
from paragent.machines.state_machine import MachineChange, PoolStateMachine
from tests.waiting import wait_until

MS = MachineState


class ResetFails(ProcessProvider):
    """Cannot reset a machine, the first time."""

    failed: ClassVar[list[str]] = []

    async def reset(self, machine: Machine) -> Machine:
        if not self.failed:
            self.failed.append(machine.id)
            raise MachineFailed("the disk is gone")
        return await super().reset(machine)


def states(changes: list[MachineChange], machine: str) -> list[str]:
    return [change.state for change in changes if change.machine == machine]


def test_the_changes_of_a_lease_cycle() -> None:
    began = time.time()
    with VMPoolManager("process", 1, name="changes", spares=0) as pool:
        with pool.lease(timeout=20, holder="me t1") as machine:
            seen = machine.id
        wait_until(lambda: pool.changes()[-1].state is MS.FREE)
        cycle = pool.changes()
        pool.retire(seen)
        wait_until(lambda: len(pool.changes()) == 8)
        assert pool.status().changes == 8
    after = pool.changes(5)
    assert states(cycle, seen) == ["booting", "free", "leased", "resetting", "free"]
    assert [change.holder for change in cycle] == ["", "", "me t1", "", ""]
    assert [change.number for change in cycle] == [1, 2, 3, 4, 5]
    assert began <= cycle[0].at <= cycle[-1].at <= time.time()
    assert (states(after, "m0"), after[0].detail) == (["stopped"], "retired")
    assert states(after, "m1") == ["booting", "free", "stopped"], "the pool has stopped"


@pytest.mark.parametrize("when", ["leased", "resetting"])
def test_a_machine_that_fails_is_quarantined_with_the_reason(when: str) -> None:
    ResetFails.failed.clear()
    with VMPoolManager(ResetFails, 1, name="quarantine", spares=0) as pool:
        with pool.lease(timeout=20, holder="me") as machine:
            if when == "leased":
                os.kill(int(machine.details["pid"]), signal.SIGKILL)
                wait_until(lambda: any(change.state is MS.QUARANTINED for change in pool.changes()), 30)
        wait_until(lambda: "m1" in {change.machine for change in pool.changes() if change.state is MS.FREE}, 30)
        changes = pool.changes()
    [failed] = [change for change in changes if change.state is MS.QUARANTINED]
    if when == "leased":
        assert (failed.machine, failed.holder) == ("m0", "me")
        assert failed.detail.startswith("stopped answering: ")
    else:
        assert states(changes, "m0") == ["booting", "free", "leased", "resetting", "quarantined"]
        assert (failed.holder, failed.detail) == ("", "could not be reset: the disk is gone")


def test_a_client_reads_the_changes_of_a_served_pool() -> None:
    with VMPoolManager("process", 2, name="served-changes", spares=0) as pool:
        pool.serve()
        wait_until(lambda: pool.status().count(MS.FREE) == 2)
        with pickle.loads(pickle.dumps(pool)) as client:
            assert isinstance(client, PoolClient)
            seen = client.status().changes
            assert seen == len(client.changes()) == 4
            with client.lease(timeout=20, holder="far"):
                [leased] = client.changes(seen)
            assert (leased.number, leased.state, leased.holder) == (5, MS.LEASED, "far")
            assert abs(time.time() - leased.at) < 60
            assert client.changes(1_000_000)[0].number == 1, "a client of an earlier pool at this address"


def test_a_pool_keeps_a_bounded_number_of_changes() -> None:
    pool = PoolStateMachine(1)
    pool.open()
    pool.machine_booted("m0")
    for number in range(6_000):
        lease = pool.request(f"r{number}", "h", 10.0)
        assert lease is not None
        pool.release(lease.token)
        pool.machine_reset("m0")
    assert (len(pool.changes), pool.change_count) == (10_000, 18_002)
    assert pool.changes[-1].number == 18_002
