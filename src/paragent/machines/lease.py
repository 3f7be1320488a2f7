"""What every pool offers its users, here or on another host: leases that beat by themselves, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from concurrent.futures import InvalidStateError
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from paragent._internal.clock import monotonic
from paragent._internal.ids import new_id
from paragent._internal.processes import here, program
from paragent._internal.validation import seconds
from paragent.errors import LeaseLost, LeaseTimeout, ParagentError, PoolStopped

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future
    from types import TracebackType

    from paragent.machines.machine import Grant, Machine, PoolStatus

__all__ = ["LEASE_SECONDS", "Lease", "Leasing", "PoolFace"]

LEASE_SECONDS = 30.0
"""Until a holder that went silent loses its machine: three heartbeats may be late, and a laptop may hiccup."""
_BEATS = 3
"""Heartbeats in the time of a lease."""
_ANSWER_SECONDS = 60.0
"""For a pool to answer what needs no machine; a reset waits for one."""
_RESET_SECONDS = 600.0

T = TypeVar("T")


class LeaseRequest(NamedTuple):
    """What is asked of a pool."""

    id: str
    holder: str
    duration: float
    limit: float | None


class Lease:
    """A machine that is yours until you release it.

    Heartbeats keep it while this process lives. If they cannot (the process dies, the host sleeps, the pool is gone) the
    machine is taken back after `duration` seconds, `lost` says why, and the machine refuses what is still sent to it.
    """

    def __init__(self, face: PoolFace, request: LeaseRequest, grant: Grant) -> None:
        self._face, self.request = face, request
        self.token = grant.token
        self.machine: Machine = grant.machine
        """Where the machine is; a reset may change that."""
        self.duration = grant.duration
        self.deadline = monotonic() + grant.duration
        self.lost: str | None = None
        """Why the lease has ended without being released, or None."""
        self._beat: asyncio.Task[None] | None = None

    def renew(self) -> float:
        """Send a heartbeat now; return the seconds until the next one must have come.

        Raises:
            LeaseLost: the lease has ended.
        """
        return self._face.wait(self._renew(), _ANSWER_SECONDS)

    def release(self) -> None:
        """Give the machine back; again is no error, and neither is a pool that is gone."""
        with contextlib.suppress(PoolStopped):
            self._face.wait(self._release(), _ANSWER_SECONDS)

    def reset(self) -> Machine:
        """Make the machine as new and keep it; return it, as its address may be another one.

        Raises:
            LeaseLost: the lease has ended.
        """
        return self._face.wait(self._reset(), _RESET_SECONDS)

    async def arenew(self) -> float:
        """As `renew`, without holding the event loop."""
        return await self._face.wait_async(self._renew())

    def pause(self) -> None:
        """Let the machine stand still, so that it uses no processor: while a model thinks, for example.

        It answers nothing until `resume`, except for its picture where the provider serves that. Its clock stands still
        as well. Only `qemu` can do it; machines of other providers go on.

        Raises:
            LeaseLost: the lease has ended.
        """
        self._face.wait(self._face._pause(self.token, True), _ANSWER_SECONDS)

    def resume(self) -> None:
        """Let the machine go on; again is no error; raises as `pause`."""
        self._face.wait(self._face._pause(self.token, False), _ANSWER_SECONDS)

    async def apause(self) -> None:
        """As `pause`, without holding the event loop."""
        await self._face.wait_async(self._face._pause(self.token, True))

    async def aresume(self) -> None:
        """As `resume`, without holding the event loop."""
        await self._face.wait_async(self._face._pause(self.token, False))

    async def arelease(self) -> None:
        """As `release`, without holding the event loop."""
        with contextlib.suppress(PoolStopped):
            await self._face.wait_async(self._release())

    async def areset(self) -> Machine:
        """As `reset`, without holding the event loop."""
        return await self._face.wait_async(self._reset())

    # --- on the pool's loop -----------------------------------------------------------------------------------------

    def start_beating(self) -> None:
        """Begin to send heartbeats; on the pool's loop."""
        self._beat = asyncio.get_running_loop().create_task(self._keep_beating(), name=f"lease {self.token}")

    async def _keep_beating(self) -> None:
        while self.lost is None:
            await asyncio.sleep(self.duration / _BEATS)
            try:
                await self._renew()
            except LeaseLost:
                return
            except ParagentError as error:  # the pool cannot be reached: it may come back before the deadline
                if monotonic() >= self.deadline:
                    self.lost = f"no heartbeat reached the pool in time: {error}"

    async def _renew(self) -> float:
        try:
            seconds = await self._face._renew(self.token)
        except LeaseLost as error:
            self.lost = str(error)
            raise
        self.deadline = monotonic() + seconds
        return seconds

    async def _release(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self.lost is None:
            await self._face._release(self.token)

    async def _reset(self) -> Machine:
        self.machine = (await self._face._reset(self.token)).machine
        return self.machine


class Leasing:
    """`with pool.lease() as machine:` and `async with pool.lease() as machine:`; each use is one lease."""

    def __init__(self, face: PoolFace, request: LeaseRequest, timeout: float | None, heartbeat: bool) -> None:
        self._face, self._request, self._timeout, self._heartbeat = face, request, timeout, heartbeat
        self.lease: Lease | None = None
        """The lease, inside the `with`."""

    def __enter__(self) -> Machine:
        self.lease = self._face._take(self._request, self._timeout, self._heartbeat)
        return self.lease.machine

    def __exit__(self, *_: object) -> None:
        assert self.lease is not None
        self.lease.release()

    async def __aenter__(self) -> Machine:
        self.lease = await self._face._take_async(self._request, self._timeout, self._heartbeat)
        return self.lease.machine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.lease is not None
        await asyncio.shield(asyncio.ensure_future(self.lease.arelease()))


class _Ticket:
    """One wait for a machine. It belongs to the pool's loop, so that giving up and being served cannot miss each other."""

    def __init__(self, face: PoolFace, request: LeaseRequest, timeout: float | None, heartbeat: bool) -> None:
        self._face, self._request, self._timeout, self._heartbeat = face, request, timeout, heartbeat
        self._lease: Lease | None = None
        self._task: asyncio.Task[Any] | None = None
        self._abandoned = False

    async def serve(self) -> Lease:
        """Wait for a machine."""
        self._task = asyncio.current_task()
        try:
            if self._abandoned:
                raise asyncio.CancelledError
            async with asyncio.timeout(self._timeout):
                grant = await self._face._acquire(self._request)
        except TimeoutError:
            await self._withdraw()
            raise LeaseTimeout(f"no machine became free within {self._timeout} s") from None
        except BaseException:
            await self._withdraw()
            raise
        self._lease = Lease(self._face, self._request, grant)
        if self._heartbeat:
            self._lease.start_beating()
        return self._lease

    async def _withdraw(self) -> None:
        with contextlib.suppress(ParagentError):
            await asyncio.shield(asyncio.ensure_future(self._face._withdraw(self._request.id)))

    def abandon(self) -> None:
        """Nobody waits any more: leave the queue, or give the machine back."""
        self._abandoned = True
        if self._lease is not None:
            self._face.spawn(self._lease._release())
        elif self._task is not None:
            self._task.cancel()


class PoolFace(ABC):
    """A pool of machines. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._spawned: set[asyncio.Task[Any]] = set()
        self._under_way: set[Future[Any]] = set()
        """What other threads wait for."""
        self._failed: ParagentError | None = None
        """Why the loop has ended although it may not, or None."""
        self._lock = threading.Lock()
        """Protects the start and the end of the pool's thread or connection."""

    def lease(
        self,
        *,
        timeout: float | None = None,
        holder: str | None = None,
        duration: float = LEASE_SECONDS,
        limit: float | None = None,
        heartbeat: bool = True,
    ) -> Leasing:
        """Lease a machine for the length of a `with` or an `async with`.

        Args:
            timeout: Seconds to wait for a machine; None waits as long as it takes.
            holder: Who is shown in the table of machines; by default `host:pid`, after what `paragent.init` was told.
            duration: Seconds until a holder that went silent loses the machine.
            limit: Seconds after which the machine is taken back even from a holder whose heart beats: one that hangs.
            heartbeat: Whether heartbeats are sent by themselves; else call `Lease.renew`.

        Raises:
            ConfigError: a number is not one of seconds.
            LeaseTimeout: (on entering) no machine became free in time.
            PoolStopped, PoolFailed: (on entering) the pool has ended.
        """
        return Leasing(self, self._request(holder, duration, limit, timeout), timeout, heartbeat)

    def allocate(
        self,
        *,
        timeout: float | None = None,
        holder: str | None = None,
        duration: float = LEASE_SECONDS,
        limit: float | None = None,
        heartbeat: bool = True,
    ) -> Lease:
        """Lease a machine until `release`; arguments and errors as `lease`."""
        return self._take(self._request(holder, duration, limit, timeout), timeout, heartbeat)

    def release(self, lease: Lease) -> None:
        """Give a machine back; again is no error."""
        lease.release()

    def reset(self, lease: Lease) -> Machine:
        """Make a leased machine as new; raises as `Lease.reset`."""
        return lease.reset()

    def status(self) -> PoolStatus:
        """Return the table of machines."""
        return self.wait(self._status(), _ANSWER_SECONDS)

    def retire(self, machine_id: str) -> None:
        """Replace a machine by a fresh one, now or when its holder is done.

        Raises:
            UsageError: there is no such live machine.
        """
        self.wait(self._retire(machine_id), _ANSWER_SECONDS)

    # --- what the two kinds of pool are made of -----------------------------------------------------------------------

    @abstractmethod
    def _loop(self) -> asyncio.AbstractEventLoop: ...

    @abstractmethod
    async def _acquire(self, request: LeaseRequest) -> Grant: ...

    @abstractmethod
    async def _withdraw(self, request_id: str) -> None: ...

    @abstractmethod
    async def _renew(self, token: int) -> float: ...

    @abstractmethod
    async def _release(self, token: int) -> bool: ...

    @abstractmethod
    async def _reset(self, token: int) -> Grant: ...

    @abstractmethod
    async def _pause(self, token: int, paused: bool) -> None: ...

    @abstractmethod
    async def _status(self) -> PoolStatus: ...

    @abstractmethod
    async def _retire(self, machine_id: str) -> None: ...

    # --- crossing threads ---------------------------------------------------------------------------------------------

    def _request(self, holder: str | None, duration: float, limit: float | None, timeout: float | None) -> LeaseRequest:
        """Return what is asked of the pool.

        Raises:
            ConfigError: a number is not one of seconds.
        """
        seconds(duration, "duration")
        if limit is not None:
            seconds(limit, "limit", none=True)
        if timeout is not None:
            seconds(timeout, "timeout", zero=True, none=True)
        return LeaseRequest(new_id("request"), holder or f"{program()} {here()}".strip(), duration, limit)

    def _take(self, request: LeaseRequest, timeout: float | None, heartbeat: bool) -> Lease:
        request = request._replace(id=new_id("request"))
        ticket, loop = _Ticket(self, request, timeout, heartbeat), self._loop()
        try:
            return self._run_on(loop, ticket.serve()).result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(ticket.abandon)
            raise

    async def _take_async(self, request: LeaseRequest, timeout: float | None, heartbeat: bool) -> Lease:
        request = request._replace(id=new_id("request"))
        ticket, loop = _Ticket(self, request, timeout, heartbeat), self._loop()
        try:
            return await asyncio.wrap_future(self._run_on(loop, ticket.serve()))
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(ticket.abandon)
            raise

    def wait(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `work` on the pool's loop and wait for it, from another thread.

        Raises:
            TimeoutError: it took too long; it is cancelled.
        """
        future = self._submit(work)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    async def wait_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the pool's loop and wait for it, from another loop."""
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            loop = self._loop()
        except ParagentError:
            work.close()
            raise
        return self._run_on(loop, work)

    def _run_on(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Future[T]:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        if self._failed is not None:  # just now
            self._fail_all(self._failed)
        return future

    def _fail_all(self, error: ParagentError) -> None:
        """Have everything that other threads wait for, now and later, raise `error`, as its loop has ended."""
        self._failed = error
        for future in list(self._under_way):
            with contextlib.suppress(InvalidStateError):  # it is done meanwhile
                future.set_exception(error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` on the pool's loop, where this is called, and wait for nothing."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
