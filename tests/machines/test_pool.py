"""The pool with `process` machines."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paragent import (
    LeaseLost,
    LeaseTimeout,
    Machine,
    MachineFailed,
    MachineSettings,
    MachineState,
    PoolFailed,
    PoolStopped,
    UsageError,
    VMPoolManager,
)
from paragent._internal import worker_ids
from paragent.machines.cleanup import cache_folder, dead_owners, owned_processes
from paragent.machines.lease import LeaseContext
from paragent.machines.providers.process import ProcessProvider
from paragent.testing.programs import alive
from tests.waiting import wait_until


class SlowReset(ProcessProvider):
    seconds: ClassVar[float] = 0.5

    async def reset(self, machine: Machine) -> Machine:
        await asyncio.sleep(self.seconds)
        return await super().reset(machine)


class ForgetfulReset(ProcessProvider):
    """Does not reset machines."""

    async def reset(self, machine: Machine) -> Machine:
        return machine


class DiskOnly(ProcessProvider):
    """Resets the disk but not the memory."""

    async def reset(self, machine: Machine) -> Machine:
        for path in (self._local.folder(machine.id) / "home").iterdir():
            path.unlink()
        return machine


class NeverBoots(ProcessProvider):
    async def create(self, machine_id: str) -> Machine:
        raise MachineFailed("there is no kernel in the image")


class DirtyImage(ProcessProvider):
    """The image contains the marker of a holder."""

    async def create(self, machine_id: str) -> Machine:
        machine = await super().create(machine_id)
        (self._local.folder(machine.id) / "home" / ".paragent-marker").touch()
        return machine


class NeverReady(ProcessProvider):
    """Starts a machine and never returns it."""

    made: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []

    async def create(self, machine_id: str) -> Machine:
        machine = await super().create(machine_id)
        self.made.append(machine.id)
        await asyncio.sleep(300)
        return machine

    async def stop(self, machine_id: str) -> None:
        self.stopped.append(machine_id)
        await super().stop(machine_id)


def pool_of(size: int, provider: Any = "process", **more: Any) -> VMPoolManager:
    more.setdefault("name", "test")
    more.setdefault("spares", 0)
    return VMPoolManager(provider, size, **more)


def test_a_machine_runs_commands_and_transfers_files() -> None:
    with pool_of(1) as pool, pool.lease(timeout=20) as machine:
        assert machine.platform() == "Linux"
        assert machine.execute(["echo", "a b"]).output == "a b\n"
        failed = machine.execute("echo oops >&2; exit 3")
        assert (failed.ok, failed.returncode, failed.error) == (False, 3, "oops\n")
        data = os.urandom(200_000)
        machine.put_file("deep/er/file", data)
        assert machine.get_file("deep/er/file") == data
        with pytest.raises(MachineFailed, match="No such file"):
            machine.get_file("nothing")
        with pytest.raises(MachineFailed, match="timed out"):
            machine.execute("sleep 60", timeout=0.2)
        with pytest.raises(MachineFailed, match="No such file"):
            machine.execute(["no-such-program"])
        assert pickle.loads(pickle.dumps(machine)) == machine


def test_a_holder_finds_nothing_of_an_earlier_holder() -> None:
    with pool_of(1) as pool:
        for number in range(3):
            with pool.lease(timeout=20) as machine:
                assert "left" not in machine.execute("ls").output
                machine.put_file(f"left-{number}", b"x")


def test_async_and_sync_leases_share_a_pool() -> None:
    async def work(pool: VMPoolManager, number: int) -> str:
        async with pool.lease(timeout=30) as machine:
            return (await machine.aexecute(["echo", str(number)])).output.strip()

    async def together(pool: VMPoolManager) -> list[str]:
        return await asyncio.gather(*(work(pool, number) for number in range(6)))

    with pool_of(2) as pool:
        assert asyncio.run(together(pool)) == [str(number) for number in range(6)]


def test_a_request_that_timed_out_leaves_the_queue() -> None:
    with pool_of(1) as pool:
        held = pool.allocate(timeout=20)
        with pytest.raises(LeaseTimeout, match=r"0\.1 s"), pool.lease(timeout=0.1):
            pass
        assert pool.status().waiting == 0
        held.release()
        with pool.lease(timeout=20):
            pass


def test_a_cancelled_wait_leaves_the_queue() -> None:
    async def cancelled(pool: VMPoolManager) -> None:
        waiting = asyncio.create_task(pool.lease().__aenter__())
        await asyncio.to_thread(wait_until, lambda: pool.status().waiting == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with pool_of(1) as pool:
        held = pool.allocate(timeout=20)
        asyncio.run(cancelled(pool))
        wait_until(lambda: pool.status().waiting == 0)
        held.release()
        with pool.lease(timeout=20):
            pass


def test_release_is_idempotent_and_renewing_an_ended_lease_fails() -> None:
    with pool_of(1) as pool:
        lease = pool.allocate(timeout=20)
        pool.release(lease)
        pool.release(lease)
        with pytest.raises(LeaseLost):
            lease.renew()


def test_a_holder_without_heartbeats_loses_the_machine_and_is_rejected() -> None:
    with pool_of(1) as pool:
        lost = pool.allocate(timeout=20, duration=0.3, heartbeat=False)
        with pool.lease(timeout=20) as machine:
            assert machine.execute("ls").output == ""
            with pytest.raises(MachineFailed):
                lost.machine.execute("ls")
            with pytest.raises(LeaseLost):
                lost.renew()
        lost.release()


@pytest.mark.slow
def test_only_the_machines_of_the_worker_that_has_ended_are_taken_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers have the same host and pid, as two containers may have, or a pid that is used again."""
    with pool_of(2) as pool:
        leases = []
        for worker in ("worker-1", "worker-2"):
            monkeypatch.setattr(worker_ids, "_own", worker)
            leases.append(pool.allocate(timeout=20, duration=3000))
        monkeypatch.setattr(worker_ids, "_own", "")
        worker_ids.announce_end("worker-3")
        assert all(lease.renew() > 2000 for lease in leases)
        worker_ids.announce_end("worker-1")
        with pool.lease(timeout=20) as machine:
            assert machine.execute("ls").output == ""
        assert leases[1].renew() > 2000
        with pytest.raises(LeaseLost):
            leases[0].renew()
    worker_ids.announce_end("worker-2")  # the pool has stopped


@pytest.mark.slow
def test_heartbeats_keep_a_lease_until_its_limit() -> None:
    with pool_of(1) as pool:
        lease = pool.allocate(timeout=20, duration=0.6, limit=1.5)
        began = time.monotonic()
        wait_until(lambda: lease.lost)
        assert time.monotonic() - began > 1.0


def test_a_holder_can_reset_its_machine() -> None:
    with pool_of(1) as pool:
        lease = pool.allocate(timeout=20)
        lease.machine.put_file("x", b"x")
        assert "x" not in pool.reset(lease).execute("ls").output
        assert lease.machine.execute("pwd").ok
        lease.release()


@pytest.mark.slow
def test_a_killed_machine_is_replaced_and_its_lease_is_lost() -> None:
    with pool_of(2) as pool:
        pool.wait_until_free(2, 20)
        lease = pool.allocate(timeout=20, duration=1.0)
        os.kill(int(lease.machine.details["pid"]), signal.SIGKILL)
        wait_until(lambda: lease.lost)
        wait_until(lambda: pool.status().count(MachineState.FREE) == 2)
        quarantined = [m for m in pool.status().machines if m.state is MachineState.QUARANTINED]
        assert [m.id for m in quarantined] == [lease.machine.id]
        assert "stopped answering" in quarantined[0].reason
        wait_until(
            lambda: (
                "log: " in pool.status().machines[[m.id for m in pool.status().machines].index(lease.machine.id)].reason
            )
        )


def test_a_dead_free_machine_is_not_leased() -> None:
    with pool_of(1, spares=1) as pool:
        pool.wait_until_free(2, 20)
        for process in owned_processes([run.name for run in runs_of("test")]):
            os.kill(process, signal.SIGKILL)
        with pool.lease(timeout=20) as machine:
            assert machine.execute("true").ok


def test_a_machine_with_a_marker_after_its_reset_is_quarantined() -> None:
    with pool_of(1, ForgetfulReset) as pool:
        for _ in range(2):
            with pool.lease(timeout=20) as machine:
                assert "dirty" not in machine.execute("ls").output
                machine.put_file("dirty", b"")
        wait_until(lambda: pool.status().count(MachineState.QUARANTINED) == 2)
        assert "marker" in pool.status().machines[0].reason


def test_a_machine_with_its_memory_after_its_reset_is_quarantined() -> None:
    with pool_of(1, DiskOnly) as pool:
        with pool.lease(timeout=20) as machine:
            machine.put_file("dirty", b"")
        wait_until(lambda: pool.status().count(MachineState.QUARANTINED) == 1)


def test_each_use_of_a_lease_context_is_a_new_lease() -> None:
    async def use(leasing: LeaseContext) -> None:
        for _ in range(2):
            async with leasing as machine:
                assert (await machine.aexecute("true")).ok

    with pool_of(1) as pool:
        leasing = pool.lease(timeout=20)
        for _ in range(2):
            with leasing as machine:
                assert machine.execute("true").ok
        asyncio.run(use(leasing))


def test_an_owner_folder_that_is_being_created_is_not_dead() -> None:
    (cache_folder("owners", "young") / ".young-1").mkdir()
    (cache_folder("owners", "young") / "young-2").mkdir()
    assert [run.name for run in dead_owners("young")] == ["young-2"]


def test_a_pool_fails_after_consecutive_failed_resets() -> None:
    with pool_of(1, ForgetfulReset, max_failures=3) as pool:

        def use_up() -> None:
            for _ in range(10):
                with pool.lease(timeout=20):
                    pass

        with pytest.raises(PoolFailed, match="3 machines in a row could not be reset"):
            use_up()
        assert pool.status().failure


def test_a_pool_fails_with_the_reason_if_machines_do_not_boot() -> None:
    with pytest.raises(PoolFailed, match=r"in a row did not boot.*no kernel"):
        pool_of(2, NeverBoots).start()
    assert runs_of("test") == []


def test_an_image_with_a_marker_is_not_leased() -> None:
    with pytest.raises(PoolFailed, match=r"in a row did not boot.*the marker of an earlier holder"):
        pool_of(1, DirtyImage, max_failures=2).start()


def test_a_machine_that_is_being_created_is_stopped_with_the_pool() -> None:
    pool = pool_of(1, NeverReady).start(wait_for=0)
    wait_until(lambda: NeverReady.made)
    pool.stop()
    assert NeverReady.stopped == NeverReady.made
    assert runs_of("test") == []


def test_tokens_of_a_later_pool_are_larger() -> None:
    tokens = []
    for _ in range(2):
        with pool_of(1) as pool:
            lease = pool.allocate(timeout=20)
            tokens.append(lease.token)
            lease.release()
    assert tokens[0] < tokens[1]


def test_a_repeated_request_gets_the_same_machine() -> None:
    """While it waits and after it was granted: a client whose connection broke does not know which."""
    with pool_of(2) as pool:
        pool.wait_until_free(2, 20)
        held = [pool.allocate(timeout=20) for _ in range(2)]
        request = ("the-same", "a holder", 20.0, None)
        asked = [pool.bridge.submit(pool.async_pool.acquire(*request)) for _ in range(2)]
        wait_until(lambda: pool.status().waiting == 1)
        for lease in held:
            lease.release()
        first, second = (future.result(20) for future in asked)
        again = pool.bridge.submit(pool.async_pool.acquire(*request)).result(20)
        assert first == second == again
        wait_until(lambda: pool.status().count(MachineState.FREE) == 1)
        assert pool.status().count(MachineState.LEASED) == 1
        token, _ = first
        assert pool.bridge.wait(pool.async_pool.release(token), 20)


@pytest.mark.slow
def test_logs_of_failed_machines_are_kept_up_to_a_limit() -> None:
    home = cache_folder("logs", "logged")
    for number in range(60):
        (home / f"old-{number}").touch()
        os.utime(home / f"old-{number}", (number, number))
    with pool_of(1, name="logged") as pool:
        lease = pool.allocate(timeout=20, duration=1.0)
        os.kill(int(lease.machine.details["pid"]), signal.SIGKILL)
        wait_until(lambda: len(list(home.iterdir())) == 50)
    kept = {log.name for log in home.iterdir()}
    assert "old-59" in kept
    assert len([name for name in kept if not name.startswith("old-")]) == 1


def test_max_resets_limits_concurrent_resets() -> None:
    class Counted(ProcessProvider):
        under_way: ClassVar[list[int]] = []
        most: ClassVar[int] = 0

        async def reset(self, machine: Machine) -> Machine:
            Counted.under_way.append(1)
            Counted.most = max(Counted.most, len(Counted.under_way))
            try:
                return await super().reset(machine)
            finally:
                Counted.under_way.pop()

    with pool_of(3, Counted, max_resets=1) as pool:
        pool.wait_until_free(3, 20)
        for lease in [pool.allocate(timeout=20) for _ in range(3)]:
            lease.release()
        wait_until(lambda: pool.status().count(MachineState.FREE) == 3)
    assert Counted.most == 1


def test_requests_do_not_wait_for_resets() -> None:
    """While the machines of the first holders are reset, the spares are leased."""

    class Held(ProcessProvider):
        may_end: ClassVar[threading.Event] = threading.Event()

        async def reset(self, machine: Machine) -> Machine:
            await asyncio.to_thread(self.may_end.wait, 60)
            return await super().reset(machine)

    with pool_of(2, Held, spares=2, max_resets=4) as pool:
        pool.wait_until_free(4, 30)
        try:
            for _ in range(4):
                with pool.lease(timeout=20):
                    pass
        finally:
            Held.may_end.set()


def test_drain_waits_for_leases() -> None:
    with pool_of(1) as pool:
        lease = pool.allocate(timeout=20)
        assert pool.drain(timeout=0.1) is False
        with pytest.raises(PoolStopped), pool.lease(timeout=5):
            pass
        lease.release()
        assert pool.drain(timeout=20) is True


def test_a_retired_machine_is_replaced() -> None:
    with pool_of(1) as pool:
        pool.retire("m0")
        with pool.lease(timeout=20) as machine:
            assert machine.id == "m1"
        with pytest.raises(UsageError, match="m1"):
            pool.retire("m0")


def test_stop_ends_leased_machines() -> None:
    pool = pool_of(1).start()
    lease = pool.allocate(timeout=20)
    child = lease.machine.execute("setsid sleep 300 > /dev/null 2>&1 & echo $!").output
    pool.stop()
    pool.stop()
    lease.release()
    wait_until(lambda: not alive(int(child)))
    assert runs_of("test") == []
    with pytest.raises(PoolStopped):
        pool.status()


KILLED = """
import sys, time
from paragent import VMPoolManager
pool = VMPoolManager(sys.argv[1], 2, name="killed", spares=0).start(wait_for=None)
lease = pool.allocate()
lease.machine.execute("setsid sleep 300 > /dev/null 2>&1 & echo")
print("ready", flush=True)
time.sleep(300)
"""


@pytest.mark.slow
def test_machines_of_a_killed_pool_end_and_the_next_pool_cleans_up() -> None:
    check_killed_pool("process")


@pytest.mark.qemu
def test_machines_of_a_killed_qemu_pool_end_and_the_next_pool_cleans_up() -> None:
    check_killed_pool("qemu")


def check_killed_pool(provider: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, provider], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (run,) = runs_of("killed")
    machines = {pid for pid, owner in owned_processes([run.name]).items() if owner}
    assert len(machines) >= 2
    with pool_of(1, name="killed"):
        assert machines <= set(owned_processes([run.name])), "machines of a running pool are not touched"
    process.kill()
    process.communicate(timeout=20)
    assert dead_owners("killed") == [run]
    wait_until(lambda: len(owned_processes([run.name])) <= 1)  # a process that a machine started has no parent any more
    with pool_of(1, name="killed"):
        assert owned_processes([run.name]) == {}
        assert not run.exists()
    assert runs_of("killed") == []


def runs_of(pool: str) -> list[Path]:
    return sorted(cache_folder("owners", pool).iterdir())


def test_unknown_options_are_rejected() -> None:
    with pytest.raises(UsageError, match="no option 'colour'"):
        pool_of(1, settings=MachineSettings(options={"colour": "red"})).start()


BROKEN = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from paragent import PoolStopped, VMPoolManager
from tests.waiting import wait_until
from paragent.machines.cleanup import cache_folder, dead_owners, owned_processes

def end():
    raise SystemExit  # the loop goes on

async def running_loop():
    return asyncio.get_running_loop()

def fail():
    raise OSError("no more file descriptors")

pool = VMPoolManager("process", 1, spares=0, name="broken").start()
lease = pool.allocate()
loop = pool.bridge.wait(running_loop(), 20)
loop.call_soon_threadsafe(end)
with ThreadPoolExecutor(2) as others:
    waiting = [others.submit(pool.allocate), others.submit(pool.bridge.wait, asyncio.sleep(100), 100)]
    wait_until(lambda: pool.status().waiting == 1)
    loop.call_soon_threadsafe(setattr, loop, "_run_once", fail)
    for one in [*(one.result for one in waiting), pool.status, lease.renew, pool.allocate]:
        try:
            one()
        except PoolStopped as error:
            print(error)
assert "no more file descriptors" in pool.failure
(owner,) = [folder.name for folder in cache_folder("owners", "broken").iterdir()]
pool.stop()
pool.stop()
assert not owned_processes([owner])
with VMPoolManager("process", 1, spares=0, name="broken"):
    assert dead_owners("broken") == []
"""


@pytest.mark.slow
def test_everything_that_waits_fails_if_the_event_loop_ends() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the pool's event loop ended unexpectedly (OSError: no more file descriptors)") == 5
    assert "the thread 'paragent-pool' ended unexpectedly" in done.stderr


def test_an_empty_owner_has_no_processes() -> None:
    assert owned_processes([""]) == {}
