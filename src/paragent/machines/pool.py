"""`VMPoolManager`: M machines for N workers, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.threads import run_loop, start_thread, write_traceback
from paragent._internal.validation import integer, seconds
from paragent.errors import ConfigError, LeaseTimeout, PoolFailed, PoolStopped, UsageError
from paragent.machines.cleanup import Run, end_marked
from paragent.machines.controller import Keeper
from paragent.machines.lease import PoolFace
from paragent.machines.providers import MachineSettings, open_provider, provider_class
from paragent.machines.state_machine import Ledger, MachineState

if TYPE_CHECKING:
    import threading

    from paragent.machines.lease import LeaseRequest
    from paragent.machines.machine import Grant, PoolStatus
    from paragent.machines.providers import Provider
    from paragent.machines.service import PoolServer
    from paragent.transport.auth import Token
    from paragent.transport.tls import TlsConf

__all__ = ["VMPoolManager"]

_START_SECONDS = 900.0
"""For the provider's preparation, which may freeze a desktop under emulation, and the first machine."""
_STOP_SECONDS = 180.0
"""For ending all machines; a cloud needs the longest."""


class VMPoolManager(PoolFace):
    """A pool of `size` machines that many workers share; a context manager that starts and stops it.

    Args:
        provider: A name (`qemu`, `process`, ...), a subclass of `Provider` or the path to one.
        size: How many machines may be leased at a time (M).
        spares: How many more are kept ready, so that nobody waits for a reset; None: what suits the provider.
        name: Pools of one name on one host clear up after each other when they were killed.
        patience: After how many troubles of one kind in a row the pool gives up; None: two more than it has machines.
        resets_at_once: How many resets run at a time; None: as many as there are machines.
        settings: What machines are like; or give the fields of `MachineSettings` as keywords.

    Raises:
        ConfigError: a number is out of range, or a setting is unknown.
        UnknownName, MissingExtra: there is no such provider, or its packages are missing.
    """

    def __init__(
        self,
        provider: str | type[Provider] = "qemu",
        size: int = 3,
        *,
        spares: int | None = None,
        name: str = "default",
        patience: int | None = None,
        resets_at_once: int | None = None,
        settings: MachineSettings | None = None,
        **machine: Any,
    ) -> None:
        super().__init__()
        self._provider = provider_class(provider)
        self._settings = _settings(settings, machine)
        spares = self._provider.default_spares if spares is None else spares
        patience = size + spares + 2 if patience is None else patience
        # Tokens of a later pool are larger, so that a holder of this one is refused by its machines, too.
        self._ledger = Ledger(size, spares, patience=patience, first_token=time.time_ns())
        self._resets = size + spares if resets_at_once is None else integer(resets_at_once, "resets_at_once", least=1)
        self._name = name
        self._thread: threading.Thread | None = None
        self._running: asyncio.AbstractEventLoop | None = None
        self._keeper: Keeper | None = None
        self._run: Run | None = None
        self._servers: list[PoolServer] = []
        self._closing = False
        """Whether the loop may end."""

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self, *, wait_for: int | None = 1) -> VMPoolManager:
        """Boot all machines in parallel; return when `wait_for` of them are free (None: all, 0: none).

        Raises:
            PoolFailed: machines break over and over.
            UsageError, MachineFailed: the provider cannot work here.
        """
        with self._lock:
            if self._thread is not None:
                raise PoolStopped("this pool was started already; make a new one")
            self._running = loop = asyncio.new_event_loop()
            self._thread = start_thread(
                run_loop, loop, lambda: self._closing, name="paragent-pool", failed=self._loop_failed
            )
        try:
            self.wait(self._begin(), _START_SECONDS)
            self.wait_until_free(self._ledger.size if wait_for is None else wait_for, _START_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def _loop_failed(self, name: str, error: BaseException) -> None:
        """Fail what waits for the pool: without its loop nothing will happen any more."""
        write_traceback(f"the thread {name!r} ended unexpectedly; what waits for the pool fails", error)
        reason = f"the pool's event loop ended unexpectedly ({type(error).__name__}: {error}); start another pool"
        self._fail_all(PoolStopped(reason))

    async def _begin(self) -> None:
        self._run = Run(self._name)
        provider = open_provider(self._provider, self._settings, self._run)
        machines = self._ledger.size + self._ledger.spares
        self._keeper = Keeper(provider, self._ledger, boots_at_once=machines, resets_at_once=self._resets)
        await self._keeper.start()

    def wait_until_free(self, machines: int, timeout: float) -> None:
        """Return when so many machines are free or leased.

        Raises:
            PoolFailed: machines break over and over.
            LeaseTimeout: it took longer than `timeout` seconds.
            ConfigError: `timeout` is not a number of seconds.
        """
        seconds(timeout, "timeout", zero=True)

        async def wait() -> None:
            try:
                async with asyncio.timeout(timeout):
                    await self._open().wait_for(lambda: bool(self._ledger.failure) or self._usable() >= machines)
            except TimeoutError:
                raise LeaseTimeout(f"{self._usable()} of {machines} machines are ready after {timeout:.0f} s") from None
            if self._ledger.failure:
                raise PoolFailed(self._ledger.failure)

        self.wait(wait(), timeout + 5)

    @property
    def failure(self) -> str | None:
        """Why the pool gave up, or None."""
        return str(self._failed) if self._failed else self._ledger.failure

    def _usable(self) -> int:
        wanted = {MachineState.FREE, MachineState.LEASED}
        return sum(1 for machine in self._ledger.machines.values() if machine.state in wanted)

    def drain(self, timeout: float | None = None) -> bool:
        """Grant nothing more and wait until all machines came back; False if that took longer than `timeout`.

        Raises:
            ConfigError: `timeout` is not a number of seconds.
        """
        if timeout is not None:
            seconds(timeout, "timeout", zero=True, none=True)

        async def wait() -> bool:
            keeper = self._open()
            keeper.drain()
            try:
                async with asyncio.timeout(timeout):
                    await keeper.wait_for(lambda: self._ledger.drained)
            except TimeoutError:
                return False
            return True

        return self._submit(wait()).result()

    def stop(self) -> None:
        """End all machines, whoever holds them; again is no error.

        If the pool's event loop is broken, local machines are killed, and others are ended by the next pool of this name.
        """
        with self._lock:
            loop, self._running = self._running, None
        if loop is None:
            return
        for server in self._servers:
            server.close()
        try:
            self._end_machines(loop)
        finally:
            self._closing = True
            with contextlib.suppress(OSError, RuntimeError):  # of a broken loop
                loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(_STOP_SECONDS)
            with contextlib.suppress(*((OSError, RuntimeError) if self._failed else ())):
                loop.close()

    def _end_machines(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._failed is None:
            try:
                self._run_on(loop, self._finish()).result(_STOP_SECONDS)
            except PoolStopped as error:
                if error is not self._failed:
                    raise
            else:
                return
        if self._run is not None:
            end_marked(self._run.id)
            self._run.close(keep=True)

    async def _finish(self) -> None:
        clean = False
        try:
            clean = self._keeper is None or await self._keeper.stop()
        finally:
            if self._run is not None:
                self._run.close(keep=not clean)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*others, return_exceptions=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.stop)))

    # --- other processes ----------------------------------------------------------------------------------------------

    def serve(
        self, host: str = "127.0.0.1", port: int = 0, *, token: Token | None = None, tls: TlsConf | None = None
    ) -> PoolServer:
        """Let workers of other processes and hosts lease from this pool; they use `PoolClient`. Ends with the pool.

        Raises:
            ConfigError: the address cannot be listened at.
        """
        from paragent.machines.service import PoolServer

        self._loop()
        server = PoolServer(self, host, port, token=token, tls=tls)
        self._servers.append(server)
        return server

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process this pool is a client of this one."""
        if not self._servers:
            raise UsageError("a pool travels to other processes as its address: call pool.serve() first")
        from paragent.machines.client import PoolClient

        return (PoolClient, (str(self._servers[-1].address),))

    # --- what a face is made of ---------------------------------------------------------------------------------------

    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._running
        if self._failed is not None:
            raise PoolStopped(str(self._failed))
        if loop is None:
            raise PoolStopped("the pool is not running: start it, or use it as a context manager")
        return loop

    def _open(self) -> Keeper:
        assert self._keeper is not None
        return self._keeper

    async def _acquire(self, request: LeaseRequest) -> Grant:
        return await self._open().acquire(*request)

    async def _withdraw(self, request_id: str) -> None:
        self._open().withdraw(request_id)

    async def _withdraw_pending(self, request_id: str) -> None:
        """Take a request out of the queue whose client is gone; a lease that it has got ends by its deadline."""
        self._open().withdraw_pending(request_id)

    async def _renew(self, token: int) -> float:
        return self._open().renew(token)

    async def _release(self, token: int) -> bool:
        return self._open().release(token)

    async def _reset(self, token: int) -> Grant:
        return await self._open().reset(token)

    async def _pause(self, token: int, paused: bool) -> None:
        await self._open().pause(token, paused)

    async def _status(self) -> PoolStatus:
        return self._open().status()

    async def _retire(self, machine_id: str) -> None:
        self._open().retire(machine_id)


def _settings(given: MachineSettings | None, named: dict[str, Any]) -> MachineSettings:
    """Return what machines are like, from a record or from keywords.

    Raises:
        ConfigError: a keyword is no field of `MachineSettings`, or both are given.
    """
    known = [field.name for field in fields(MachineSettings)]
    if unknown := [name for name in named if name not in known]:
        raise ConfigError(f"there is no setting {unknown[0]!r} of machines; there are: {', '.join(known)}")
    if given is not None and named:
        raise ConfigError(f"give {', '.join(named)} as fields of `settings`, or leave `settings` out")
    return given or MachineSettings(**named)
