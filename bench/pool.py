"""Machine pools: how long tasks wait for machines, the time from one lease to the next, start time and memory."""

from __future__ import annotations

import asyncio
import re
import statistics
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from bench.measure import Contender, Measurement, Run, Target
from paragent import VMPoolManager
from paragent._internal.clock import ManualClock
from paragent._internal.ids import new_id
from paragent.machines.state_machine import CommandKind, PoolStateMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paragent.machines import Lease, Machine

__all__ = ["MEASUREMENTS", "lease_changes", "proportional"]

_OURS = "paragent"
_LOAD, _BOOT = "snapshot-load", "a boot per lease"
_IDLE = "bench.idle_machines:IdleMachines"
_LIMIT = 300.0
_HOLD_SECONDS = 0.1
"""Seconds on average: with 10 machines 100 leases per second, so that the process that acts for all machines is not the
bottleneck."""
_TASK_SECONDS, _WORKERS, _MACHINES = 1.0, 16, 8


def _tasks(spares: int) -> Callable[[int], AbstractContextManager[Run]]:
    """16 workers with tasks of one second, 8 machines that take half a second to reset."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        provider = "bench.idle_machines:HalfSecondReset"
        with VMPoolManager(provider, _MACHINES, spares=spares, name="bench") as pool:
            pool.wait_until_free(_MACHINES + spares, _LIMIT)

            def task(_: int) -> None:
                with pool.lease(timeout=_LIMIT):
                    sleep(_TASK_SECONDS)

            def run() -> float:
                pool.wait_until_free(_MACHINES + spares, _LIMIT)
                started = perf_counter()
                with ThreadPoolExecutor(_WORKERS) as workers:
                    assert len(list(workers.map(task, range(size)))) == size
                return perf_counter() - started

            yield run

    return opened


def lease_changes(
    opened_pool: Callable[[], VMPoolManager], use: Callable[[Machine], object], spares: int
) -> Callable[[int], AbstractContextManager[Run]]:
    """From one holder's release to the end of the next one's first `use`, while the next one waits in the queue."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with opened_pool() as pool, ThreadPoolExecutor(1) as other:
            pool.wait_until_free(1 + spares, _LIMIT)
            yield lambda: statistics.median(_changes(pool, use, other, size))

    return opened


def _changes(
    pool: VMPoolManager, use: Callable[[Machine], object], other: ThreadPoolExecutor, count: int
) -> Iterator[float]:
    """Yield the seconds of each change; the next holder keeps its lease until the change after it."""

    def next_holder() -> tuple[Lease, float]:
        lease = pool.allocate(timeout=_LIMIT)
        assert use(lease.machine)
        return lease, perf_counter()

    lease, _ = next_holder()
    for _ in range(count):
        answered = other.submit(next_holder)
        while not pool.status().waiting or (pool.status().spares and not _a_spare_is_free(pool)):
            sleep(0.005)
        released = perf_counter()
        lease.release()
        lease, at = answered.result(_LIMIT)
        yield at - released
    lease.release()


def _small(provider: Any, spares: int) -> Callable[[int], AbstractContextManager[Run]]:
    return lease_changes(
        lambda: VMPoolManager(provider, 1, spares=spares, name="bench"),
        lambda machine: machine.execute(["true"]).ok,
        spares,
    )


def _a_spare_is_free(pool: VMPoolManager) -> bool:
    return any(machine.state == "free" for machine in pool.status().machines)


@contextmanager
def _ready(size: int) -> Iterator[Run]:
    """From nothing to `size` free machines; the golden state is cached."""
    with VMPoolManager("qemu", 1, spares=0, name="bench"):
        pass

    def run() -> float:
        started = perf_counter()
        pool = VMPoolManager("qemu", size, spares=0, name="bench").start(wait_for=None)
        seconds = perf_counter() - started
        pool.stop()
        return seconds

    yield run


@contextmanager
def _memory(size: int) -> Iterator[Run]:
    """All machines leased, each after one command; shared pages are counted once."""
    with VMPoolManager("qemu", size, spares=0, name="bench") as pool:
        pool.wait_until_free(size, _LIMIT)

        def run() -> float:
            leases = [pool.allocate(timeout=_LIMIT) for _ in range(size)]
            for lease in leases:
                assert lease.machine.execute("ls /").ok
            used = sum(proportional(int(lease.machine.details["pid"])) for lease in leases)
            for lease in leases:
                lease.release()
            return used

        yield run


def proportional(pid: int) -> float:
    """Return the memory of a process in MB; each shared page counts in proportion to the processes that share it (PSS)."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1000


def _many_requests(spread: float) -> Callable[[int], AbstractContextManager[Run]]:
    """`size` requests wait for 10 machines; returns the median time from a release to the next lease.

    Args:
        spread: how much the lengths of leases differ, as a fraction; with 0 all ten machines are released at once.
    """

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with VMPoolManager(_IDLE, 10, spares=10, name="bench") as pool:
            pool.wait_until_free(20, _LIMIT)
            yield lambda: pool.bridge.wait(_queue_up(pool, size, spread), _LIMIT)

    return opened


async def _queue_up(pool: VMPoolManager, size: int, spread: float) -> float:
    requester = new_id("requester")
    released: deque[float] = deque()
    times: list[float] = []
    tokens: dict[int, int] = {}

    async def hold(number: int) -> None:
        token, _ = await pool.async_pool.acquire(f"{requester}-{number}", "requester", 60.0, None)
        if released:
            times.append(perf_counter() - released.popleft())
        tokens[number] = token
        await asyncio.sleep(_HOLD_SECONDS * (1 + spread * (number * 0.618 % 1 - 0.5)))
        released.append(perf_counter())
        await pool.async_pool.release(token)

    await asyncio.gather(*(hold(number) for number in range(size)))
    served = sorted(tokens, key=lambda number: tokens[number])  # a later lease has a larger token
    assert max(abs(place - number) for place, number in enumerate(served)) <= 1, "the queue is not fair"
    return statistics.median(times) * 1e3


@contextmanager
def _state_machine(size: int) -> Iterator[Run]:
    """Request, renew and release on the state machine alone, while 1,000 requests wait for 10 machines."""

    def run() -> float:
        state = PoolStateMachine(10, clock=ManualClock())
        state.open()
        for number in range(1_000):
            state.request(f"w{number}", "h", 10.0)
        started = perf_counter()
        for number in range(size):
            while state.commands:
                command = state.commands.popleft()
                if command.kind is CommandKind.BOOT:
                    state.machine_booted(command.machine_id)
                elif command.kind is CommandKind.RESET:
                    state.machine_reset(command.machine_id)
            token = next(iter(state.leases))
            state.renew(token)
            state.release(token)
            state.request(f"x{number}", "h", 10.0)
        return 3 * size / (perf_counter() - started)

    yield run


MEASUREMENTS = (
    Measurement(
        name="vm_tasks",
        title="64 tasks on 8 machines",
        question="How long do 64 tasks of 1 s take with 16 workers and 8 machines that reset in 0.5 s? (ideal 12.0)",
        unit="s",
        size=64,
        quick_size=16,
        contenders=(Contender(_OURS, _tasks(0)),),
        targets=(Target("at most", 13.0),),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="vm_tasks_spares",
        title="64 tasks, 4 spare machines",
        question="The same with 4 spare machines? (ideal 8.0)",
        unit="s",
        size=64,
        quick_size=16,
        contenders=(Contender(_OURS, _tasks(4)),),
        targets=(Target("at most", 9.0),),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="vm_reset",
        title="Reset of a small machine",
        question="QEMU: how long from a release to the next lease's first answered command?",
        unit="s",
        size=5,
        quick_size=1,
        contenders=(
            Contender(_OURS, _small("qemu", 1), needs="qemu"),
            Contender(_LOAD, _small("bench.qemu_resets:SnapshotLoad", 0), needs="qemu"),
            Contender(_BOOT, _small("bench.qemu_resets:BootEach", 0), needs="qemu"),
        ),
        targets=(Target("at most", 0.3), Target("at most", 0.5, times=_LOAD), Target("at most", 0.1, times=_BOOT)),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="vm_ready",
        title="Ten small machines ready",
        question="How long until ten QEMU machines are ready, with a cached golden state?",
        unit="s",
        size=10,
        quick_size=2,
        contenders=(Contender(_OURS, _ready, needs="qemu"),),
        targets=(Target("at most", 4.0),),
        warm_up=False,
        most_rounds=3,
    ),
    Measurement(
        name="vm_memory",
        title="Memory of 16 small machines",
        question="How much memory do 16 concurrent QEMU machines take?",
        unit="MB",
        size=16,
        quick_size=2,
        contenders=(Contender(_OURS, _memory, needs="qemu"),),
        targets=(Target("at most", 2_000.0),),
        warm_up=False,
        most_rounds=1,
    ),
    Measurement(
        name="vm_contention",
        title="Next lease, 1,000 clients wait",
        question="1,000 clients wait for 10 machines: how long from a release to the next lease?",
        unit="ms",
        size=1_000,
        quick_size=100,
        contenders=(Contender(_OURS, _many_requests(1.0)),),
        targets=(Target("at most", 5.0),),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="vm_contention_burst",
        title="Next lease, released at once",
        question="The same when all ten machines are released at once?",
        unit="ms",
        size=1_000,
        quick_size=100,
        contenders=(Contender(_OURS, _many_requests(0.0)),),
        targets=(Target("at most", 5.0),),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="vm_pool_decisions",
        title="Lease operations",
        question="How many lease operations per second does the state machine handle?",
        unit="1/s",
        size=10_000,
        quick_size=1_000,
        contenders=(Contender(_OURS, _state_machine),),
        targets=(Target("at least", 10_000.0),),
    ),
)
