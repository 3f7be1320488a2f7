"""Leases: the interface that every pool has, in this process or on another host, sync and async.

`AsyncPool` is the core: the pool's operations as coroutines on the pool's event loop. `Pool` offers them to any thread and to
other event loops, and keeps leases alive with heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from concurrent.futures import InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from paragent._internal.clock import monotonic
from paragent._internal.ids import new_id
from paragent._internal.processes import here, program
from paragent._internal.validation import seconds
from paragent._internal.worker_ids import worker_id
from paragent.errors import LeaseLost, LeaseTimeout, ParagentError, PoolStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from paragent.machines.machine import Machine, PoolStatus
    from paragent.machines.state_machine import MachineChange

__all__ = ["AsyncPool", "EventLoopBridge", "Lease", "LeaseContext", "Pool"]

_LEASE_SECONDS = 30.0
"""Default time after which a holder without heartbeats loses its machine: two heartbeats in a row may be lost."""
_HEARTBEATS = 3
"""Heartbeats within the duration of a lease."""
_REPLY_SECONDS = 60.0
"""For operations of the pool that do not wait for a machine."""
_RESET_SECONDS = 600.0

T = TypeVar("T")


class AsyncPool(Protocol):
    """The operations of a pool, on its event loop. Leases are identified by their fencing tokens."""

    async def acquire(
        self, request_id: str, holder: str, duration: float, limit: float | None, worker: str = ""
    ) -> tuple[int, Machine]:
        """Wait for a machine; return the token of the lease and the machine.

        Calls with the same `request_id` are the same request. A caller that stops waiting calls `withdraw`. `worker` is the id
        of the worker process that requests it, if it is one; the lease ends with that process.

        Raises:
            PoolStopped, PoolFailed: the pool has ended.
            LeaseLost: the lease of this request has ended.
            ConfigError: `duration` or `limit` is not a positive number of seconds.
        """

    async def withdraw(self, request_id: str) -> None:
        """Cancel a request; release its machine if it has got one."""

    async def renew(self, token: int) -> float:
        """Move the deadline of a lease; return the seconds until the deadline.

        Raises:
            LeaseLost: the lease has ended.
        """

    async def release(self, token: int) -> bool:
        """End a lease; return False if it has already ended."""

    async def reset(self, token: int) -> Machine:
        """Reset a leased machine for the same holder and return it; its address may have changed.

        Raises:
            LeaseLost: the lease has ended, or ends because the machine cannot be reset.
        """

    async def pause(self, token: int, paused: bool) -> None:
        """Pause or resume a leased machine, if its provider can.

        Raises:
            LeaseLost: the lease has ended, or ends because the machine failed.
        """

    async def status(self) -> PoolStatus:
        """Return the state of the pool."""

    async def changes(self, after: int) -> list[MachineChange]:
        """Return the state changes of machines with a number above `after`, oldest first; times are seconds since the epoch.

        A pool keeps the last 10,000. If `after` is above the number of changes, the pool was restarted, and all are returned.
        """

    async def retire(self, machine_id: str) -> None:
        """Replace a machine by a new one, now or when its lease ends.

        Raises:
            UsageError: there is no such live machine.
        """

    async def machine_log(self, machine_id: str) -> str:
        """Return the end of a machine's log, at most 64 KB; empty if there is none.

        Raises:
            UsageError: there is no such machine.
            MachineFailed: the log cannot be read now.
        """

    async def machine_screenshot(self, machine_id: str) -> bytes:
        """Return what the screen of a machine shows now, as PNG. Its holder does not notice it.

        Raises:
            UsageError: there is no such machine.
            MachineFailed: it has no screen, is being reset, or does not answer within 5 s.
        """


class EventLoopBridge:
    """Runs coroutines on the pool's event loop for other threads and loops.

    Args:
        loop: returns the event loop, or raises the reason why there is none.
    """

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        self._pending: set[Future[Any]] = set()
        """What other threads wait for."""
        self.failure: ParagentError | None = None
        """Why the loop ended unexpectedly, or None."""

    def submit(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> Future[T]:
        """Start `work` on the pool's loop, or on `loop`, and return its future."""
        try:
            target = loop or self._loop()
        except ParagentError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, target)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self.failure is not None:  # the loop ended a moment ago
            self.fail(self.failure)
        return future

    def wait(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `work` on the pool's loop and wait for its result in the calling thread.

        Raises:
            TimeoutError: it took too long; it is cancelled.
        """
        future = self.submit(work)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    async def wait_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the pool's loop and wait for its result in the calling loop."""
        return await asyncio.wrap_future(self.submit(work))

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the pool's loop, without waiting for it. Does nothing if the pool has stopped."""
        with contextlib.suppress(ParagentError, RuntimeError):  # RuntimeError: the loop was closed a moment ago
            self._loop().call_soon_threadsafe(function)

    def fail(self, error: ParagentError) -> None:
        """Let all pending and future work raise `error`, because the loop ended."""
        self.failure = error
        for future in list(self._pending):
            with contextlib.suppress(InvalidStateError):  # it has just ended
                future.set_exception(error)


class Lease:
    """A leased machine. It belongs to the holder until `release`.

    Heartbeats keep the lease while this process runs. If they stop (the process ends, the host sleeps, the pool cannot be
    reached), the pool takes the machine back after `duration` seconds, `lost` says why, and the machine rejects further
    requests of this holder.
    """

    def __init__(self, pool: AsyncPool, bridge: EventLoopBridge, token: int, machine: Machine, duration: float) -> None:
        self._pool, self._bridge = pool, bridge
        self.token = token
        """The fencing token: larger than that of every earlier lease."""
        self.machine = machine
        """The machine; a reset may change its address."""
        self.duration = duration
        """Seconds for which the lease was granted."""
        self.deadline = monotonic() + duration
        """When the lease ends, on the clock of `time.monotonic`."""
        self.lost: str | None = None
        """Why the lease has ended without being released, or None."""
        self._heartbeat: asyncio.Task[None] | None = None

    def renew(self) -> float:
        """Send a heartbeat now; return the seconds until the deadline.

        Raises:
            LeaseLost: the lease has ended.
        """
        return self._bridge.wait(self._renew(), _REPLY_SECONDS)

    def release(self) -> None:
        """Give the machine back. Releasing twice, or after the pool stopped, is not an error."""
        with contextlib.suppress(PoolStopped):
            self._bridge.wait(self.release_on_loop(), _REPLY_SECONDS)

    def reset(self) -> Machine:
        """Reset the machine, keep the lease and return the machine, whose address may have changed.

        Raises:
            LeaseLost: the lease has ended.
        """
        return self._bridge.wait(self._reset(), _RESET_SECONDS)

    def pause(self) -> None:
        """Pause the machine so that it uses no CPU, for example while a model answers.

        It answers no requests until `resume`, except for screenshots where the provider serves them. Its clock stops too.
        Only `qemu` can pause; machines of other providers continue to run.

        Raises:
            LeaseLost: the lease has ended.
        """
        self._bridge.wait(self._pool.pause(self.token, True), _REPLY_SECONDS)

    def resume(self) -> None:
        """Resume a paused machine. Resuming twice is not an error. Raises the same errors as `pause`."""
        self._bridge.wait(self._pool.pause(self.token, False), _REPLY_SECONDS)

    async def arenew(self) -> float:
        """Like `renew`, without blocking the event loop."""
        return await self._bridge.wait_async(self._renew())

    async def arelease(self) -> None:
        """Like `release`, without blocking the event loop."""
        with contextlib.suppress(PoolStopped):
            await self._bridge.wait_async(self.release_on_loop())

    async def areset(self) -> Machine:
        """Like `reset`, without blocking the event loop."""
        return await self._bridge.wait_async(self._reset())

    async def apause(self) -> None:
        """Like `pause`, without blocking the event loop."""
        await self._bridge.wait_async(self._pool.pause(self.token, True))

    async def aresume(self) -> None:
        """Like `resume`, without blocking the event loop."""
        await self._bridge.wait_async(self._pool.pause(self.token, False))

    # --- on the pool's loop -----------------------------------------------------------------------------------------

    def start_heartbeats(self) -> None:
        """Start to send heartbeats; call it on the pool's loop."""
        loop = asyncio.get_running_loop()
        self._heartbeat = loop.create_task(self._send_heartbeats(), name=f"lease {self.token}")

    async def release_on_loop(self) -> None:
        """Stop the heartbeats and release the machine; call it on the pool's loop."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self.lost is None:
            await self._pool.release(self.token)

    async def _send_heartbeats(self) -> None:
        while self.lost is None:
            await asyncio.sleep(self.duration / _HEARTBEATS)
            try:
                await self._renew()
            except LeaseLost:
                return
            except ParagentError as error:  # the pool cannot be reached: it may come back before the deadline
                if monotonic() >= self.deadline:
                    self.lost = f"no heartbeat reached the pool in time: {error}"

    async def _renew(self) -> float:
        try:
            left = await self._pool.renew(self.token)
        except LeaseLost as error:
            self.lost = str(error)
            raise
        self.deadline = monotonic() + left
        return left

    async def _reset(self) -> Machine:
        self.machine = await self._pool.reset(self.token)
        return self.machine


@dataclass(frozen=True, slots=True)
class _LeaseOptions:
    """The checked arguments of `Pool.lease` and `Pool.allocate`."""

    holder: str
    duration: float
    limit: float | None
    timeout: float | None
    heartbeat: bool


class LeaseContext:
    """Context manager for `with pool.lease() as machine:` and `async with`. Each use acquires one lease."""

    def __init__(self, pool: Pool, options: _LeaseOptions) -> None:
        self._pool, self._options = pool, options
        self.lease: Lease | None = None
        """The lease, inside the `with` block."""

    def __enter__(self) -> Machine:
        self.lease = self.acquire()
        return self.lease.machine

    def __exit__(self, *_: object) -> None:
        assert self.lease is not None
        self.lease.release()

    async def __aenter__(self) -> Machine:
        self.lease = await self.acquire_async()
        return self.lease.machine

    async def __aexit__(self, *_: object) -> None:
        assert self.lease is not None
        await asyncio.shield(asyncio.ensure_future(self.lease.arelease()))

    def acquire(self) -> Lease:
        """Wait for a machine and return its lease; the caller releases it."""
        bridge = self._pool.bridge
        waiter = _Waiter(self._pool.async_pool, bridge, self._options)
        try:
            return bridge.submit(waiter.wait()).result()
        except KeyboardInterrupt:
            bridge.call_soon(waiter.abandon)
            raise

    async def acquire_async(self) -> Lease:
        """Like `acquire`, without blocking the event loop."""
        bridge = self._pool.bridge
        waiter = _Waiter(self._pool.async_pool, bridge, self._options)
        try:
            return await bridge.wait_async(waiter.wait())
        except asyncio.CancelledError:
            bridge.call_soon(waiter.abandon)
            raise


class _Waiter:
    """One request for a machine. It runs on the pool's loop, so that cancelling and being served cannot interleave."""

    def __init__(self, pool: AsyncPool, bridge: EventLoopBridge, options: _LeaseOptions) -> None:
        self._pool, self._bridge, self._options = pool, bridge, options
        self._request_id = new_id("request")
        self._lease: Lease | None = None
        self._task: asyncio.Task[Any] | None = None
        self._release: asyncio.Task[None] | None = None
        self._abandoned = False

    async def wait(self) -> Lease:
        """Wait for a machine and return its lease."""
        options = self._options
        self._task = asyncio.current_task()
        try:
            if self._abandoned:
                raise asyncio.CancelledError
            async with asyncio.timeout(options.timeout):
                token, machine = await self._pool.acquire(
                    self._request_id, options.holder, options.duration, options.limit, worker_id()
                )
        except TimeoutError:
            await self._withdraw()
            raise LeaseTimeout(f"no machine became free within {options.timeout} s") from None
        except BaseException:
            await self._withdraw()
            raise
        self._lease = Lease(self._pool, self._bridge, token, machine, options.duration)
        if options.heartbeat:
            self._lease.start_heartbeats()
        return self._lease

    async def _withdraw(self) -> None:
        with contextlib.suppress(ParagentError):
            await asyncio.shield(asyncio.ensure_future(self._pool.withdraw(self._request_id)))

    def abandon(self) -> None:
        """Stop waiting: leave the queue, or release the machine."""
        self._abandoned = True
        if self._lease is not None:
            self._release = asyncio.get_running_loop().create_task(self._lease.release_on_loop())
        elif self._task is not None:
            self._task.cancel()


class Pool(ABC):
    """What `VMPoolManager` and `PoolClient` have in common. Every method may be called from any thread."""

    def __init__(self) -> None:
        self.bridge = EventLoopBridge(self._event_loop)
        """Runs coroutines on the pool's event loop."""
        self._lock = threading.Lock()
        """Protects the start and the end of the pool's thread or connection."""

    @property
    @abstractmethod
    def async_pool(self) -> AsyncPool:
        """The pool's operations as coroutines, for its own event loop.

        Raises:
            PoolStopped: the pool does not run.
        """

    @abstractmethod
    def _event_loop(self) -> asyncio.AbstractEventLoop: ...

    def lease(
        self,
        *,
        timeout: float | None = None,
        holder: str | None = None,
        duration: float = _LEASE_SECONDS,
        limit: float | None = None,
        heartbeat: bool = True,
    ) -> LeaseContext:
        """Lease a machine for the length of a `with` or `async with` block.

        Args:
            timeout: seconds to wait for a machine; None waits without limit.
            holder: shown in the table of machines; the default is the name given to `paragent.init` and `host:pid`.
            duration: seconds after which a holder without heartbeats loses the machine.
            limit: seconds after which the lease ends even if heartbeats arrive, for holders that hang.
            heartbeat: whether to send heartbeats; if not, call `Lease.renew`.

        Raises:
            ConfigError: a number of seconds is invalid.
            LeaseTimeout: (on entering) no machine became free in time.
            PoolStopped, PoolFailed: (on entering) the pool has ended.
        """
        seconds(duration, "duration")
        if limit is not None:
            seconds(limit, "limit", none=True)
        if timeout is not None:
            seconds(timeout, "timeout", zero=True, none=True)
        shown = holder or f"{program()} {here()}".strip()
        options = _LeaseOptions(shown, duration, limit, timeout, heartbeat)
        return LeaseContext(self, options)

    def allocate(
        self,
        *,
        timeout: float | None = None,
        holder: str | None = None,
        duration: float = _LEASE_SECONDS,
        limit: float | None = None,
        heartbeat: bool = True,
    ) -> Lease:
        """Lease a machine until `release`; arguments and errors as for `lease`."""
        context = self.lease(timeout=timeout, holder=holder, duration=duration, limit=limit, heartbeat=heartbeat)
        return context.acquire()

    def release(self, lease: Lease) -> None:
        """Give a machine back; releasing twice is not an error."""
        lease.release()

    def reset(self, lease: Lease) -> Machine:
        """Reset a leased machine; raises the same errors as `Lease.reset`."""
        return lease.reset()

    def status(self) -> PoolStatus:
        """Return the state of the pool and the table of machines."""
        return self.bridge.wait(self.async_pool.status(), _REPLY_SECONDS)

    def changes(self, after: int = 0) -> list[MachineChange]:
        """Return the state changes of machines with a number above `after`, oldest first; times are seconds since the epoch.

        A pool keeps the last 10,000. If `after` is above the number of changes, the pool was restarted, and all are returned.
        """
        return self.bridge.wait(self.async_pool.changes(after), _REPLY_SECONDS)

    def retire(self, machine_id: str) -> None:
        """Replace a machine by a new one, now or when its lease ends.

        Raises:
            UsageError: there is no such live machine.
        """
        self.bridge.wait(self.async_pool.retire(machine_id), _REPLY_SECONDS)

    def machine_log(self, machine_id: str) -> str:
        """Return the end of a machine's log, at most 64 KB; empty if there is none.

        Machines that are quarantined have a log as well. It is text that the machine wrote: it may contain anything.

        Raises:
            UsageError: there is no such machine.
            MachineFailed: the log cannot be read now.
        """
        return self.bridge.wait(self.async_pool.machine_log(machine_id), _REPLY_SECONDS)

    def machine_screenshot(self, machine_id: str) -> bytes:
        """Return what the screen of a machine shows now, as PNG. Its holder does not notice it.

        Raises:
            UsageError: there is no such machine.
            MachineFailed: it has no screen, is being reset, or does not answer within 5 s.
        """
        return self.bridge.wait(self.async_pool.machine_screenshot(machine_id), _REPLY_SECONDS)
