"""The pool's hands: does what the ledger decides, on one event loop, and tells it what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from typing import TYPE_CHECKING

from paragent._internal.clock import monotonic
from paragent.errors import LeaseLost, ParagentError, PoolFailed, PoolStopped
from paragent.machines.cleanup import cache_folder, dead_runs
from paragent.machines.machine import Grant, MachineStatus, PoolStatus, adopt, verify_clean
from paragent.machines.state_machine import FINAL, EffectKind, LeaseRecord, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping
    from pathlib import Path

    from paragent.machines.providers.base import Instance, Provider
    from paragent.machines.state_machine import Effect, Ledger

__all__ = ["Keeper"]

_log = logging.getLogger("paragent.machines")

_STOP_SECONDS = 60.0
"""For ending one machine; a cloud answers a request to end one in seconds."""
_WAY_SECONDS = 0.25
"""How long a reset makes way for machines that are being handed out: somebody waits for those, nobody for the reset. Ten
hand-outs at once are through in a tenth of that."""
_LOOKS = 6
_LOOK_PAUSE = 0.5
"""How often it is looked for what is left of a run before its folder is kept for the next pool, and seconds in between."""
_LOGS_KEPT = 50
"""Files of quarantined machines that are kept for one pool, the newest ones."""


class Keeper:
    """Runs the machines of one pool. All of it belongs to one event loop."""

    def __init__(self, provider: Provider, ledger: Ledger, *, boots_at_once: int, resets_at_once: int) -> None:
        self.provider, self.ledger = provider, ledger
        self._boots = asyncio.Semaphore(boots_at_once)
        self._resets = asyncio.Semaphore(resets_at_once)
        self._instances: dict[str, Instance] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        """The last thing that was begun for each machine; things for one machine happen one after the other."""
        self._waiting: dict[str, asyncio.Future[Grant]] = {}
        self._grants: dict[int, Grant] = {}
        self._changed = asyncio.Event()
        self._handing_out = 0
        self._none_handed_out = asyncio.Event()
        """Whether no machine is on its way to a holder."""
        self._alarm: asyncio.TimerHandle | None = None
        self._health: asyncio.Task[None] | None = None
        self._second_look: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare, clear up after earlier runs, and begin to boot all machines; raises as `Provider.prepare`."""
        await self._remove_leftovers()
        await self.provider.prepare()
        self.ledger.open()
        self._settle()
        self._health = asyncio.get_running_loop().create_task(self._watch())

    async def _remove_leftovers(self) -> None:
        dead = {folder.name: folder for folder in dead_runs(self.provider.run.pool)}
        if not dead:
            return
        if not await self._end_all(dead.keys(), "removing machine %s, which an earlier pool left"):
            return  # their folders stay, so that the next pool tries again
        self._second_look = asyncio.get_running_loop().create_task(self._look_again(dead))
        if not self.provider.late_seconds:
            await self._second_look

    async def _look_again(self, dead: Mapping[str, Path]) -> None:
        """End what dead runs had made and was not listed at first; then forget those runs.

        A pool that stops before leaves that to the next one, as the folders stay.
        """
        if self.provider.late_seconds:
            await asyncio.sleep(self.provider.late_seconds)
            try:
                if not await self._end_all(dead.keys(), "removing machine %s, which an earlier pool left"):
                    return
            except ParagentError as error:
                _log.warning("it cannot be found out what earlier pools left; the next pool tries again: %s", error)
                return
        for folder in dead.values():
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _end_all(self, runs: Collection[str], message: str) -> bool:
        """End what bears the mark of one of `runs`, until a last look finds nothing; return whether it did.

        A cloud lists what was created or ended a moment ago late, so one look is not enough.

        Raises:
            MachineFailed: it cannot be found out what there is.
        """
        for _ in range(_LOOKS):
            left = await self.provider.list_own(runs)
            if not left:
                return True
            for instance_id in left:
                _log.warning(message, instance_id)
                try:
                    async with asyncio.timeout(_STOP_SECONDS):
                        await self.provider.stop(instance_id)
                except (ParagentError, OSError) as error:  # TimeoutError is an OSError
                    _log.warning("machine %s could not be ended: %s", instance_id, error)
            await asyncio.sleep(_LOOK_PAUSE)
        _log.error("not all machines could be ended; the next pool of this name tries again: %s", ", ".join(left))
        return False

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; it is looked at after every change of the ledger."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> bool:
        """End all machines and everybody's waiting; leases are revoked. Return whether nothing is left."""
        for task in (self._health, self._second_look):
            if task is not None:
                task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        self.ledger.drain()
        for token in list(self.ledger.leases):
            self.ledger.release(token)
        self._settle()
        while self._work:
            await asyncio.wait(list(self._work.values()))
        try:
            return await self._end_all([self.provider.run.id], "ending machine %s, which is still there")
        except ParagentError as error:
            _log.error("not all machines could be ended; the next pool of this name tries again: %s", error)
            return False
        finally:
            await self.provider.close()

    # --- what holders ask -------------------------------------------------------------------------------------------

    async def acquire(self, request_id: str, holder: str, duration: float, limit: float | None) -> Grant:
        """Wait for a machine; the same id again waits for the same one. Whoever stops waiting calls `withdraw`.

        Raises:
            PoolStopped, PoolFailed, LeaseLost, ConfigError: as `Ledger.ask`.
        """
        lease = self.ledger.ask(request_id, holder, duration, limit)
        if lease is not None and lease.handed_out and lease.token in self._grants:
            return self._grants[lease.token]
        future = self._waiting.get(request_id)
        if future is None:
            future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._settle()
        return await asyncio.shield(future)

    def withdraw(self, request_id: str) -> None:
        """Nobody waits for this request any more."""
        self.ledger.withdraw(request_id)
        self._answer(request_id, PoolStopped("the request was withdrawn"))
        self._settle()

    def withdraw_pending(self, request_id: str) -> None:
        """Take a request out of the queue if it still waits."""
        if request_id in self._waiting and not self.ledger.has_lease(request_id):
            self.withdraw(request_id)

    def renew(self, token: int) -> float:
        """Move a lease's deadline; return the seconds until then. Raises as `Ledger.renew`."""
        seconds = self.ledger.renew(token)
        self._set_alarm()
        return seconds

    def release(self, token: int) -> bool:
        """Give a machine back."""
        released = self.ledger.release(token)
        self._settle()
        return released

    async def reset(self, token: int) -> Grant:
        """Make a leased machine as new for the same holder.

        Raises:
            LeaseLost: the lease has ended, or ends because the machine cannot be reset.
        """
        lease = self.ledger.leases.get(token)
        if lease is None or not lease.handed_out:
            raise LeaseLost(f"lease {token} has ended")
        machine_id = lease.machine_id
        await self._begin(machine_id, self._reset_for_holder(machine_id, lease))
        grant = self._grants.get(token)
        if grant is None or token not in self.ledger.leases:
            raise LeaseLost(f"lease {token} has ended: {self.ledger.reason(machine_id) or 'it was too late'}")
        return grant

    async def pause(self, token: int, paused: bool) -> None:
        """Let a leased machine stand still, or go on, where its provider can.

        Raises:
            LeaseLost: the lease has ended, or ends because the machine is gone.
        """
        lease = self.ledger.leases.get(token)
        if lease is None or not lease.handed_out:
            raise LeaseLost(f"lease {token} has ended")
        await self._begin(lease.machine_id, self._pause(lease.machine_id, lease, paused))
        if token not in self.ledger.leases:
            reason = self.ledger.reason(lease.machine_id) or "it was too late"
            raise LeaseLost(f"lease {token} has ended: {reason}")

    async def _pause(self, machine_id: str, lease: LeaseRecord, paused: bool) -> None:
        if self.ledger.leases.get(lease.token) is not lease:
            return
        instance = self._instances[machine_id]
        try:
            await (self.provider.rest(instance) if paused else self.provider.wake(instance))
        except (ParagentError, OSError) as error:
            self._broke(machine_id, Trouble.HEALTH, error)

    def retire(self, machine_id: str) -> None:
        """Replace a machine; raises as `Ledger.retire`."""
        self.ledger.retire(machine_id)
        self._settle()

    def drain(self) -> None:
        """Grant nothing more."""
        self.ledger.drain()
        self._settle()

    def status(self) -> PoolStatus:
        """Return the table of machines."""
        now, rows = monotonic(), []
        for record in self.ledger.machines.values():
            instance = self._instances.get(record.id)
            rows.append(
                MachineStatus(
                    record.id,
                    record.state,
                    now - record.since,
                    record.lease.holder if record.lease else "",
                    record.uses,
                    f"{instance.host}:{instance.port}" if instance else "",
                    record.reason,
                )
            )
        ledger, kind = self.ledger, type(self.provider).__name__.removesuffix("Provider").lower()
        return PoolStatus(
            self.provider.run.pool,
            kind,
            ledger.size,
            ledger.spares,
            ledger.waiting,
            ledger.draining,
            ledger.failure,
            tuple(rows),
            ledger.hand_overs,
            ledger.leased_seconds,
            ledger.seconds,
        )

    # --- what the ledger asks ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Do what the ledger has decided."""
        while self.ledger.effects:
            self._do(self.ledger.effects.popleft())
        while self.ledger.rejected:
            failure = self.ledger.failure
            reason = PoolFailed(failure) if failure else PoolStopped("the pool was drained while this request waited")
            self._answer(self.ledger.rejected.popleft(), reason)
        for token in self._grants.keys() - self.ledger.leases.keys():
            del self._grants[token]
        self._set_alarm()
        self._changed.set()

    def _do(self, effect: Effect) -> None:
        machine_id, lease = effect.machine_id, effect.lease
        if effect.kind is EffectKind.BOOT:
            self._begin(machine_id, self._boot(machine_id))
        elif effect.kind is EffectKind.RESET:
            self._begin(machine_id, self._reset(machine_id))
        elif effect.kind is EffectKind.DISCARD:
            self._begin(machine_id, self._discard(machine_id, effect.quarantined), instead=True)
        elif lease is not None:
            self._begin(machine_id, self._hand_out(machine_id, lease))

    def _begin(
        self, machine_id: str, work: Coroutine[None, None, None], *, instead: bool = False
    ) -> asyncio.Task[None]:
        """Do something for a machine after, or instead of, what is being done for it."""
        before = self._work.get(machine_id)
        if instead and before is not None:
            before.cancel()

        async def in_turn() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work

        task = asyncio.get_running_loop().create_task(in_turn(), name=f"machine {machine_id}")
        self._work[machine_id] = task
        task.add_done_callback(lambda done: self._ended(machine_id, done, work))
        return task

    def _ended(self, machine_id: str, task: asyncio.Task[None], work: Coroutine[None, None, None]) -> None:
        work.close()  # cancelled before its turn came
        if self._work.get(machine_id) is task:
            del self._work[machine_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work for machine %s failed in a way it must not", machine_id, exc_info=error)
            self._broke(machine_id, Trouble.HEALTH, error)
        self._changed.set()

    async def _boot(self, machine_id: str) -> None:
        try:
            async with self._boots:
                self._instances[machine_id] = instance = await self.provider.create(machine_id)
                await self.provider.wait_until_ready(instance)
                await verify_clean(instance)
                await self.provider.rest(instance)
        except (ParagentError, OSError) as error:
            self._broke(machine_id, Trouble.BOOT, error)
        else:
            self.ledger.booted(machine_id)
            self._settle()

    async def _reset(self, machine_id: str) -> None:
        try:
            async with self._resets:
                await self._make_way()
                instance = await self._clean(machine_id)
                await self.provider.rest(instance)
        except (ParagentError, OSError) as error:
            self._broke(machine_id, Trouble.RESET, error)
        else:
            self.ledger.was_reset(machine_id)
            self._settle()

    async def _reset_for_holder(self, machine_id: str, lease: LeaseRecord) -> None:
        if self.ledger.leases.get(lease.token) is not lease:
            return
        try:
            instance = await self._clean(machine_id)
            machine = await adopt(machine_id, instance)
        except (ParagentError, OSError) as error:
            self._broke(machine_id, Trouble.RESET, error)
        else:
            self.provider.held_by(instance, machine.token or "")
            self._grants[lease.token] = Grant(lease.token, machine, lease.duration)

    async def _make_way(self) -> None:
        """Let those pass who wait for a machine."""
        if self._handing_out:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_handed_out.wait(), _WAY_SECONDS)

    async def _clean(self, machine_id: str) -> Instance:
        instance = await self.provider.reset(self._instances[machine_id])
        self._instances[machine_id] = instance
        await self.provider.wait_until_ready(instance)
        await verify_clean(instance)
        return instance

    async def _hand_out(self, machine_id: str, lease: LeaseRecord) -> None:
        instance = self._instances[machine_id]
        self._handing_out += 1
        self._none_handed_out.clear()
        try:
            await self.provider.wake(instance)
            machine = await adopt(machine_id, instance)
        except (ParagentError, OSError) as error:
            self._broke(machine_id, Trouble.HAND_OUT, error)
            return
        finally:
            self._handing_out -= 1
            if not self._handing_out:
                self._none_handed_out.set()
        if self.ledger.handed_out(lease.token):
            self.provider.held_by(instance, machine.token or "")
            grant = self._grants[lease.token] = Grant(lease.token, machine, lease.duration)
            self._answer(lease.request_id, grant)
            self._set_alarm()

    async def _discard(self, machine_id: str, quarantined: bool) -> None:
        instance = self._instances.pop(machine_id, None)
        if instance is None:
            return
        try:
            if quarantined:
                await asyncio.to_thread(self._keep_logs, machine_id, instance.id)
            async with asyncio.timeout(_STOP_SECONDS):
                await self.provider.stop(instance.id)
        except (ParagentError, OSError) as error:
            _log.error("machine %s (%s) could not be ended: %s", machine_id, instance.id, error)

    def _keep_logs(self, machine_id: str, instance_id: str) -> None:
        run = self.provider.run
        home = cache_folder("logs", run.pool)
        for log in self.provider.logs(instance_id):
            with contextlib.suppress(OSError):
                target = home / f"{run.id}-{machine_id}-{log.name}"
                shutil.copyfile(log, target)
                self.ledger.note(machine_id, f" (log: {target})")
        kept = sorted(home.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in kept[:-_LOGS_KEPT]:
            old.unlink(missing_ok=True)

    # --- watching ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at every machine that nobody works on, again and again."""
        while True:
            await asyncio.sleep(self.provider.health_seconds)
            for machine_id, instance in list(self._instances.items()):
                record = self.ledger.machines.get(machine_id)
                if machine_id in self._work or record is None or record.state in FINAL:
                    continue
                try:
                    alive = await self.provider.alive(instance)
                except (ParagentError, OSError) as error:
                    _log.info("machine %s cannot be looked at: %s", machine_id, error)
                    continue
                if not alive and self._instances.get(machine_id) is instance and machine_id not in self._work:
                    self._broke(machine_id, Trouble.HEALTH, PoolStopped("it does not run any more"))

    def _broke(self, machine_id: str, trouble: Trouble, error: BaseException) -> None:
        _log.warning("machine %s %s: %s; another one takes its place", machine_id, trouble, error)
        self.ledger.broke(machine_id, trouble, str(error))
        if self.ledger.failure:
            _log.error("the pool gives up: %s", self.ledger.failure)
        self._settle()

    def _set_alarm(self) -> None:
        when = self.ledger.alarm
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if when is not None:
            delay = max(when - monotonic(), 0.0)
            self._alarm = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        for lease in self.ledger.expire():
            over = lease.deadline == lease.limit
            reason = "has held it for as long as it may" if over else f"was silent for {lease.duration:.1f} s"
            _log.warning("machine %s is taken back: %s %s", lease.machine_id, lease.holder, reason)
        self._settle()

    def _answer(self, request_id: str, answer: Grant | Exception) -> None:
        future = self._waiting.pop(request_id, None)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
            future.exception()  # whoever waited may be gone: that is no forgotten error
        else:
            future.set_result(answer)
