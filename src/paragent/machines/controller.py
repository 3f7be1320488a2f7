"""Pool controller: executes the state machine's commands and reports the results to it.

It is the pool as coroutines (`AsyncPool`). Its thread-safe interface is `VMPoolManager`, its network interface `PoolServer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from paragent._internal.clock import monotonic
from paragent.errors import (
    LeaseLost,
    LeaseTimeout,
    MachineFailed,
    ParagentError,
    PoolFailed,
    PoolStopped,
    UsageError,
)
from paragent.machines.cleanup import dead_owners
from paragent.machines.inspection import MachineInspector
from paragent.machines.machine import MachineStatus, PoolStatus, assign_to_holder, verify_clean
from paragent.machines.state_machine import FINAL, CommandKind, FailureKind, LeaseRecord, MachineState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping
    from pathlib import Path

    from paragent.machines.machine import Machine
    from paragent.machines.providers.base import Provider
    from paragent.machines.state_machine import Command, MachineChange, MachineRecord, PoolStateMachine

__all__ = ["PoolController", "changes_after"]

_log = logging.getLogger("paragent.machines")

_STOP_SECONDS = 60.0
"""For stopping one machine; a cloud answers such a request within seconds."""
_YIELD_SECONDS = 0.25
"""How long a reset waits while machines are given to clients: clients wait for those, and none waits for the reset.
Ten at once take a tenth of that."""
_LIST_ATTEMPTS = 6
"""How often leftovers are listed before the owner's folder is kept for the next pool."""
LIST_PAUSE_SECONDS = 0.5
"""Between two listings."""


def changes_after(state: PoolStateMachine, after: int) -> list[MachineChange]:
    """Return the changes with a number above `after`, with times in seconds since the epoch; see `AsyncPool.changes`."""
    if after > state.change_count:
        after = 0
    missing = min(state.change_count - after, len(state.changes))
    epoch = time.time() - monotonic()
    newest = itertools.islice(reversed(state.changes), missing)
    return [replace(change, at=change.at + epoch) for change in newest][::-1]


class PoolController:
    """The machines of one pool. Everything runs on one event loop.

    Args:
        provider: creates, resets and stops machines.
        state: decides what to do.
        max_boots: boots that run at a time.
        max_resets: resets that run at a time.
    """

    def __init__(self, provider: Provider, state: PoolStateMachine, *, max_boots: int, max_resets: int) -> None:
        self._provider, self._state = provider, state
        self._boots = asyncio.Semaphore(max_boots)
        self._resets = asyncio.Semaphore(max_resets)
        self._machines: dict[str, Machine] = {}
        """Machines as the provider returned them, by the pool's id."""
        self._operations: dict[str, asyncio.Task[None]] = {}
        """The latest operation of each machine; operations of one machine run one after the other."""
        self._requests: dict[str, asyncio.Future[tuple[int, Machine]]] = {}
        """Requests that wait for a machine, by request id."""
        self._leased: dict[int, Machine] = {}
        """Machines as their holders see them, by the token of the lease."""
        self._inspector = MachineInspector(provider)
        self._changed = asyncio.Event()
        self._activations = 0
        self._no_activations = asyncio.Event()
        """Set when the last activation in progress has ended."""
        self._expiry: asyncio.TimerHandle | None = None
        self._health_check: asyncio.Task[None] | None = None
        self._late_cleanup: asyncio.Task[None] | None = None
        self._opened = False
        """Whether the provider was prepared and machines may exist."""

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Remove leftovers of earlier pools, prepare the provider, start to boot all machines.

        Raises:
            UsageError, MachineFailed: as `Provider.prepare`.
        """
        await self._remove_leftovers()
        await self._provider.prepare()
        self._state.open()
        self._opened = True
        self._execute_commands()
        self._health_check = asyncio.get_running_loop().create_task(self._check_health())

    async def _remove_leftovers(self) -> None:
        dead = {folder.name: folder for folder in dead_owners(self._provider.owner.pool)}
        if not dead:
            return
        if not await self._stop_owned(dead.keys(), "removing machine %s, which an earlier pool left behind"):
            return  # the folders stay, so that the next pool tries again
        self._late_cleanup = asyncio.get_running_loop().create_task(self._remove_late_leftovers(dead))
        if not self._provider.listing_delay_seconds:
            await self._late_cleanup

    async def _remove_late_leftovers(self, dead: Mapping[str, Path]) -> None:
        """Stop machines of dead owners that were not listed at first, then remove the owners' folders.

        If the pool stops before, the folders stay and the next pool does it.
        """
        if self._provider.listing_delay_seconds:
            await asyncio.sleep(self._provider.listing_delay_seconds)
            try:
                if not await self._stop_owned(dead.keys(), "removing machine %s, which an earlier pool left behind"):
                    return
            except ParagentError as error:
                _log.warning("cannot list what earlier pools left behind; the next pool tries again: %s", error)
                return
        for folder in dead.values():
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _stop_owned(self, owners: Collection[str], message: str) -> bool:
        """Stop all machines of these owners until a listing is empty; return whether one was.

        One listing is not enough: a cloud lists machines late that were created or stopped a moment ago.

        Raises:
            MachineFailed: the machines cannot be listed.
        """
        for _ in range(_LIST_ATTEMPTS):
            left = await self._provider.list_owned(owners)
            if not left:
                return True
            for machine_id in left:
                _log.warning(message, machine_id)
                try:
                    async with asyncio.timeout(_STOP_SECONDS):
                        await self._provider.stop(machine_id)
                except (ParagentError, OSError) as error:  # TimeoutError is an OSError
                    _log.warning("machine %s could not be stopped: %s", machine_id, error)
            await asyncio.sleep(LIST_PAUSE_SECONDS)
        _log.error("some machines could not be stopped; the next pool of this name tries again: %s", ", ".join(left))
        return False

    async def stop(self) -> bool:
        """Revoke all leases, reject all requests and stop all machines; return whether no machine is left."""
        for task in (self._health_check, self._late_cleanup):
            if task is not None:
                task.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self._state.drain()
        for token in list(self._state.leases):
            self._state.release(token)
        self._execute_commands()
        while self._operations:
            await asyncio.wait(list(self._operations.values()))
        try:
            return await self._stop_owned([self._provider.owner.id], "stopping machine %s, which is still there")
        except ParagentError as error:
            if self._opened:  # else the provider does not work here, which `start` has raised
                _log.error("some machines could not be stopped; the next pool of this name tries again: %s", error)
            return False
        finally:
            await self._provider.close()

    async def wait_until_usable(self, machines: int, timeout: float) -> None:
        """Return when this many machines are free or leased.

        Raises:
            PoolFailed: the pool failed.
            LeaseTimeout: it took longer than `timeout` seconds.
        """
        state = self._state
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for(lambda: bool(state.failure) or state.usable >= machines)
        except TimeoutError:
            raise LeaseTimeout(f"{state.usable} of {machines} machines are ready after {timeout:.0f} s") from None
        if state.failure:
            raise PoolFailed(state.failure)

    async def wait_until_drained(self, timeout: float | None) -> bool:
        """Wait until no machine is alive; return False if that took longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for(lambda: self._state.drained)
        except TimeoutError:
            return False
        return True

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; it is evaluated after every change of state."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # --- AsyncPool --------------------------------------------------------------------------------------------------

    async def acquire(
        self, request_id: str, holder: str, duration: float, limit: float | None, worker: str = ""
    ) -> tuple[int, Machine]:
        lease = self._state.request(request_id, holder, duration, limit, worker)
        if lease is not None and lease.active and lease.token in self._leased:
            return lease.token, self._leased[lease.token]
        future = self._requests.get(request_id)
        if future is None:
            future = self._requests[request_id] = asyncio.get_running_loop().create_future()
        self._execute_commands()
        return await asyncio.shield(future)

    async def withdraw(self, request_id: str) -> None:
        self._state.withdraw(request_id)
        self._answer(request_id, PoolStopped("the request was withdrawn"))
        self._execute_commands()

    def end_worker(self, worker: str) -> None:
        """Take back the machines of a worker that has ended, without waiting for their deadlines; drop its requests."""
        for lease in self._state.end_worker(worker):
            if lease.machine_id:
                _log.warning("machine %s is taken back: its holder has ended: %s", lease.machine_id, lease.holder)
            self._answer(lease.request_id, PoolStopped("the worker that sent the request has ended"))
        self._execute_commands()

    async def withdraw_pending(self, request_id: str) -> None:
        """Cancel a request if it still waits; a lease that it has got ends by its deadline."""
        if request_id in self._requests and not self._state.is_granted(request_id):
            await self.withdraw(request_id)

    async def renew(self, token: int) -> float:
        left = self._state.renew(token)
        self._schedule_expiry()
        return left

    async def release(self, token: int) -> bool:
        released = self._state.release(token)
        self._execute_commands()
        return released

    async def reset(self, token: int) -> Machine:
        lease = self._active_lease(token)
        await self._start_operation(lease.machine_id, self._reset_for_holder(lease))
        machine = self._leased.get(token)
        if machine is None or token not in self._state.leases:
            raise self._lease_lost(lease)
        return machine

    async def pause(self, token: int, paused: bool) -> None:
        lease = self._active_lease(token)
        await self._start_operation(lease.machine_id, self._pause(lease, paused))
        if token not in self._state.leases:
            raise self._lease_lost(lease)

    async def retire(self, machine_id: str) -> None:
        self._state.retire(machine_id)
        self._execute_commands()

    async def drain(self) -> None:
        """Grant no more leases; machines stop when their leases end."""
        self._state.drain()
        self._execute_commands()

    async def status(self) -> PoolStatus:
        state = self._state
        kind = type(self._provider).__name__.removesuffix("Provider").lower()
        now = monotonic()
        return PoolStatus(
            pool=self._provider.owner.pool,
            provider=kind,
            size=state.size,
            spares=state.spares,
            waiting=state.waiting,
            draining=state.draining,
            failure=state.failure,
            machines=tuple(self._machine_status(record, now) for record in state.machines.values()),
            leases_granted=state.leases_granted,
            leased_seconds=state.leased_seconds,
            seconds=state.seconds,
            changes=state.change_count,
        )

    async def changes(self, after: int) -> list[MachineChange]:
        return changes_after(self._state, after)

    def _machine_status(self, record: MachineRecord, now: float) -> MachineStatus:
        machine, lease = self._machines.get(record.id), record.lease
        return MachineStatus(
            id=record.id,
            state=record.state,
            seconds=now - record.since,
            holder=lease.holder if lease else "",
            uses=record.uses,
            address=machine.address if machine else "",
            reason=record.reason or ("is replaced when its lease ends" if record.retiring else ""),
            lease_seconds=now - lease.since if lease and lease.active else None,
            resets=record.resets,
            failures=record.failures,
            screenshot=self._reachable(record) is not None,
            log=self._inspector.has_log(record.id, machine),
        )

    async def machine_log(self, machine_id: str) -> str:
        self._record(machine_id)
        return await self._inspector.log(machine_id, self._machines.get(machine_id))

    async def machine_screenshot(self, machine_id: str) -> bytes:
        record = self._record(machine_id)
        machine = self._reachable(record)
        if machine is None:
            raise MachineFailed(f"{machine_id} has no screen that can be shown now; its state is {record.state}")
        return await self._inspector.screenshot(machine_id, machine)

    def _record(self, machine_id: str) -> MachineRecord:
        record = self._state.machines.get(machine_id)
        if record is None:
            raise UsageError(f"there is no machine {machine_id!r} in this pool")
        return record

    def _reachable(self, record: MachineRecord) -> Machine | None:
        """Return a machine whose screen can be shown, with the token that its guest agent accepts now."""
        machine, lease = self._machines.get(record.id), record.lease
        if machine is None or not self._inspector.has_screen(machine):
            return None
        if record.state is MachineState.FREE:
            return machine
        leased = self._leased.get(lease.token) if lease is not None else None
        return None if leased is None else replace(machine, token=leased.token)

    def _active_lease(self, token: int) -> LeaseRecord:
        lease = self._state.leases.get(token)
        if lease is None or not lease.active:
            raise LeaseLost(f"lease {token} has ended")
        return lease

    def _lease_lost(self, lease: LeaseRecord) -> LeaseLost:
        reason = self._state.reason(lease.machine_id) or "it was released or has expired"
        return LeaseLost(f"lease {lease.token} has ended: {reason}")

    def _answer(self, request_id: str, answer: tuple[int, Machine] | Exception) -> None:
        future = self._requests.pop(request_id, None)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
            future.exception()  # marks it as retrieved: the caller may have stopped waiting
        else:
            future.set_result(answer)

    # --- commands of the state machine ------------------------------------------------------------------------------

    def _execute_commands(self) -> None:
        """Start the operations that the state machine has decided on, and answer requests that it rejected."""
        state = self._state
        while state.commands:
            self._execute(state.commands.popleft())
        while state.rejected:
            failure = state.failure
            reason = PoolFailed(failure) if failure else PoolStopped("the pool was drained while this request waited")
            self._answer(state.rejected.popleft(), reason)
        for token in self._leased.keys() - state.leases.keys():
            del self._leased[token]
        self._schedule_expiry()
        self._changed.set()

    def _execute(self, command: Command) -> None:
        machine_id, lease = command.machine_id, command.lease
        if command.kind is CommandKind.BOOT:
            self._start_operation(machine_id, self._boot(machine_id))
        elif command.kind is CommandKind.RESET:
            self._start_operation(machine_id, self._reset(machine_id))
        elif command.kind is CommandKind.DISCARD:
            self._start_operation(machine_id, self._discard(machine_id, command.quarantined), cancel_current=True)
        elif lease is not None:
            self._start_operation(machine_id, self._activate(lease))

    def _start_operation(
        self, machine_id: str, operation: Coroutine[None, None, None], *, cancel_current: bool = False
    ) -> asyncio.Task[None]:
        """Run an operation of a machine after its current one has ended or was cancelled."""
        current = self._operations.get(machine_id)
        if cancel_current and current is not None:
            current.cancel()

        async def in_turn() -> None:
            if current is not None:
                await asyncio.wait([current])
            await operation

        task = asyncio.get_running_loop().create_task(in_turn(), name=f"machine {machine_id}")
        self._operations[machine_id] = task
        task.add_done_callback(lambda done: self._operation_ended(machine_id, done, operation))
        return task

    def _operation_ended(
        self, machine_id: str, task: asyncio.Task[None], operation: Coroutine[None, None, None]
    ) -> None:
        operation.close()  # it has not started if the task was cancelled while it waited
        if self._operations.get(machine_id) is task:
            del self._operations[machine_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("unexpected error in an operation of machine %s", machine_id, exc_info=error)
            self._failed(machine_id, FailureKind.HEALTH, error)
        self._changed.set()

    async def _boot(self, machine_id: str) -> None:
        try:
            async with self._boots:
                self._machines[machine_id] = machine = await self._provider.create(machine_id)
                await self._provider.wait_until_ready(machine)
                await verify_clean(machine)
                await self._provider.pause(machine)
        except (ParagentError, OSError) as error:
            self._failed(machine_id, FailureKind.BOOT, error)
        else:
            self._state.machine_booted(machine_id)
            self._execute_commands()

    async def _reset(self, machine_id: str) -> None:
        try:
            async with self._resets:
                await self._wait_for_activations()
                machine = await self._reset_and_verify(machine_id)
                await self._provider.pause(machine)
        except (ParagentError, OSError) as error:
            self._failed(machine_id, FailureKind.RESET, error)
        else:
            self._state.machine_reset(machine_id)
            self._execute_commands()

    async def _reset_for_holder(self, lease: LeaseRecord) -> None:
        if self._state.leases.get(lease.token) is not lease:
            return
        try:
            machine = await self._reset_and_verify(lease.machine_id)
            leased = await assign_to_holder(machine, lease.machine_id)
        except (ParagentError, OSError) as error:
            self._failed(lease.machine_id, FailureKind.RESET, error)
        else:
            self._provider.set_holder_token(machine, leased.token or "")
            self._leased[lease.token] = leased

    async def _wait_for_activations(self) -> None:
        """Let machines be given to their holders first."""
        if self._activations:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._no_activations.wait(), _YIELD_SECONDS)

    async def _reset_and_verify(self, machine_id: str) -> Machine:
        machine = await self._provider.reset(self._machines[machine_id])
        self._machines[machine_id] = machine
        await self._provider.wait_until_ready(machine)
        await verify_clean(machine)
        return machine

    async def _activate(self, lease: LeaseRecord) -> None:
        machine = self._machines[lease.machine_id]
        self._activations += 1
        self._no_activations.clear()
        try:
            await self._provider.resume(machine)
            leased = await assign_to_holder(machine, lease.machine_id)
        except (ParagentError, OSError) as error:
            self._failed(lease.machine_id, FailureKind.ACTIVATE, error)
            return
        finally:
            self._activations -= 1
            if not self._activations:
                self._no_activations.set()
        if self._state.lease_activated(lease.token):
            self._provider.set_holder_token(machine, leased.token or "")
            self._leased[lease.token] = leased
            self._answer(lease.request_id, (lease.token, leased))
            self._schedule_expiry()

    async def _pause(self, lease: LeaseRecord, paused: bool) -> None:
        if self._state.leases.get(lease.token) is not lease:
            return
        machine = self._machines[lease.machine_id]
        try:
            await (self._provider.pause(machine) if paused else self._provider.resume(machine))
        except (ParagentError, OSError) as error:
            self._failed(lease.machine_id, FailureKind.HEALTH, error)

    async def _discard(self, machine_id: str, quarantined: bool) -> None:
        machine = self._machines.pop(machine_id, None)
        if machine is None:
            return
        try:
            if quarantined:
                for log in await asyncio.to_thread(self._inspector.keep_logs, machine_id, machine.id):
                    self._state.add_reason(machine_id, f" (log: {log})")
                self._inspector.forget_except(self._state.machines)
            async with asyncio.timeout(_STOP_SECONDS):
                await self._provider.stop(machine.id)
        except (ParagentError, OSError) as error:
            _log.error("machine %s (%s) could not be stopped: %s", machine_id, machine.id, error)

    # --- health and expiry ------------------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        """Check every machine that has no operation in progress, periodically."""
        while True:
            await asyncio.sleep(self._provider.health_check_seconds)
            for machine_id, machine in list(self._machines.items()):
                record = self._state.machines.get(machine_id)
                if machine_id in self._operations or record is None or record.state in FINAL:
                    continue
                try:
                    alive = await self._provider.alive(machine)
                except (ParagentError, OSError) as error:
                    _log.info("the state of machine %s is unknown: %s", machine_id, error)
                    continue
                if not alive and self._machines.get(machine_id) is machine and machine_id not in self._operations:
                    self._failed(machine_id, FailureKind.HEALTH, PoolStopped("it is not running any more"))

    def _failed(self, machine_id: str, kind: FailureKind, error: BaseException) -> None:
        _log.warning("machine %s %s: %s; a new one replaces it", machine_id, kind, error)
        self._state.machine_failed(machine_id, kind, str(error))
        if self._state.failure:
            _log.error("the pool failed: %s", self._state.failure)
        self._execute_commands()

    def _schedule_expiry(self) -> None:
        deadline = self._state.next_deadline
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if deadline is not None:
            delay = max(deadline - monotonic(), 0.0)
            self._expiry = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        for lease in self._state.expire():
            at_limit = lease.deadline == lease.final_deadline
            reason = "reached its time limit" if at_limit else f"sent no heartbeat for {lease.duration:.1f} s"
            _log.warning("machine %s is taken back: %s %s", lease.machine_id, lease.holder, reason)
        self._execute_commands()
