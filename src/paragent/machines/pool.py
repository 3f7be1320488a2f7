"""`VMPoolManager`: M machines for N workers, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.text import counted
from paragent._internal.threads import run_loop, start_thread, write_traceback
from paragent._internal.validation import integer, reject_unknown, seconds
from paragent._internal.worker_ids import observe_ends, stop_observing
from paragent.errors import ConfigError, PoolStopped, UsageError
from paragent.machines.cleanup import Owner, kill_owned
from paragent.machines.controller import PoolController, changes_after
from paragent.machines.lease import Pool
from paragent.machines.providers import MachineSettings, open_provider, provider_class
from paragent.machines.state_machine import PoolStateMachine

if TYPE_CHECKING:
    import threading

    from paragent.machines.providers import Provider
    from paragent.machines.service import PoolServer
    from paragent.machines.state_machine import MachineChange
    from paragent.transport.address import TlsConf
    from paragent.transport.auth import Token

__all__ = ["VMPoolManager"]

_START_SECONDS = 900.0
"""For the provider's preparation, which may boot a desktop under emulation, and for the first machine."""
_OVERCOMMIT = 8
"""How often the memory of this host may be promised to machines: clones share most of it, and use it only in part."""
_STOP_SECONDS = 180.0
"""For stopping all machines; a cloud takes longest."""


class VMPoolManager(Pool):
    """A pool of `size` machines that many workers share. As a context manager it starts and stops the pool.

    Args:
        provider: a name (`qemu`, `process`, ...), a subclass of `Provider` or the path to one.
        size: how many machines may be leased at a time (M).
        spares: how many more machines are kept ready, so that requests need not wait for a reset; None: the provider's default.
        name: a pool removes what killed pools of the same name left behind on this host.
        max_failures: consecutive failures of one kind after which the pool fails; None: two more than it has machines.
        max_resets: how many resets run at a time; None: as many as there are machines.
        settings: the settings of the machines; alternatively, pass the fields of `MachineSettings` as keywords.

    Raises:
        ConfigError: a number is out of range, or a setting is unknown.
        UnknownName, MissingExtra: there is no such provider, or its packages are not installed.
    """

    def __init__(
        self,
        provider: str | type[Provider] = "qemu",
        size: int = 3,
        *,
        spares: int | None = None,
        name: str = "default",
        max_failures: int | None = None,
        max_resets: int | None = None,
        settings: MachineSettings | None = None,
        **machine: Any,
    ) -> None:
        super().__init__()
        self._provider = provider_class(provider)
        self._settings = _settings(settings, machine)
        spares = self._provider.default_spares if spares is None else spares
        integer(size, "the size of a pool", least=1)
        max_failures = size + integer(spares, "spares", least=0) + 2 if max_failures is None else max_failures
        # Tokens of a later pool are larger than those of this one.
        self._state = PoolStateMachine(size, spares, max_failures=max_failures, first_token=time.time_ns())
        self._max_resets = size + spares if max_resets is None else integer(max_resets, "max_resets", least=1)
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._controller: PoolController | None = None
        self._owner: Owner | None = None
        self._servers: list[PoolServer] = []
        self._closing = False
        """Whether the loop may end."""

    # --- start and stop ---------------------------------------------------------------------------------------------

    def start(self, *, wait_for: int | None = 1) -> VMPoolManager:
        """Boot all machines in parallel; return when `wait_for` of them are free (None: all, 0: none).

        Raises:
            PoolFailed: too many machines failed in a row.
            UsageError, MachineFailed: the provider cannot work here.
        """
        with self._lock:
            if self._thread is not None:
                raise PoolStopped("this pool was started already; create a new one")
            self._loop = loop = asyncio.new_event_loop()
            self._thread = start_thread(
                run_loop, loop, lambda: self._closing, name="paragent-pool", failed=self._loop_failed
            )
        try:
            self.bridge.wait(self._start(), _START_SECONDS)
            observe_ends(self._end_worker)
            self.wait_until_free(self._state.size if wait_for is None else wait_for, _START_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def _loop_failed(self, name: str, error: BaseException) -> None:
        """Fail everything that waits for the pool, which does nothing without its loop."""
        write_traceback(f"the thread {name!r} ended unexpectedly; everything that waits for the pool fails", error)
        reason = f"the pool's event loop ended unexpectedly ({type(error).__name__}: {error}); start another pool"
        self.bridge.fail(PoolStopped(reason))

    async def _start(self) -> None:
        self._owner = Owner(self._name)
        provider = open_provider(self._provider, self._settings, self._owner)
        machines = self._state.size + self._state.spares
        _check_memory(provider, machines)
        self._controller = PoolController(provider, self._state, max_boots=machines, max_resets=self._max_resets)
        await self._controller.start()

    def _end_worker(self, worker: str) -> None:
        """Take back the machines of a worker that has ended; from any thread."""
        assert self._controller is not None
        self.bridge.call_soon(functools.partial(self._controller.end_worker, worker))

    def wait_until_free(self, machines: int, timeout: float) -> None:
        """Return when this many machines are free or leased.

        Raises:
            PoolFailed: too many machines failed in a row.
            LeaseTimeout: it took longer than `timeout` seconds.
            ConfigError: `timeout` is not a number of seconds.
        """
        seconds(timeout, "timeout", zero=True)
        self.bridge.wait(self.async_pool.wait_until_usable(machines, timeout), timeout + 5)

    def drain(self, timeout: float | None = None) -> bool:
        """Grant no more leases and wait until all leases have ended; return False if that took longer than `timeout`.

        Raises:
            ConfigError: `timeout` is not a number of seconds.
        """
        if timeout is not None:
            seconds(timeout, "timeout", zero=True, none=True)
        controller = self.async_pool

        async def drain() -> bool:
            await controller.drain()
            return await controller.wait_until_drained(timeout)

        return self.bridge.submit(drain()).result()

    def stop(self) -> None:
        """Stop all machines, leased ones included. Stopping twice is not an error.

        If the pool's event loop failed, local machines are killed; the next pool of this name stops all others.
        """
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        stop_observing(self._end_worker)
        for server in self._servers:
            server.close()
        try:
            self._stop_machines(loop)
        finally:
            self._closing = True
            with contextlib.suppress(OSError, RuntimeError):  # of a loop that failed
                loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(_STOP_SECONDS)
            with contextlib.suppress(*((OSError, RuntimeError) if self.bridge.failure else ())):
                loop.close()

    def _stop_machines(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.bridge.failure is None:
            try:
                self.bridge.submit(self._stop_controller(), loop).result(_STOP_SECONDS)
            except PoolStopped as error:
                if error is not self.bridge.failure:
                    raise
            else:
                return
        if self._owner is not None:
            kill_owned(self._owner.id)
            self._owner.close(keep=True)

    async def _stop_controller(self) -> None:
        clean = False
        try:
            clean = self._controller is None or await self._controller.stop()
        finally:
            if self._owner is not None:
                self._owner.close(keep=not clean)
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

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why the pool failed, or None."""
        return str(self.bridge.failure) if self.bridge.failure else self._state.failure

    @property
    def draining(self) -> bool:
        """Whether the pool grants no more leases because it is being drained or stopped."""
        return self._state.draining

    def changes(self, after: int = 0) -> list[MachineChange]:
        """Return the state changes of machines, as every pool does; also when this one has stopped."""
        try:
            return super().changes(after)
        except PoolStopped:
            return changes_after(self._state, after)  # no loop changes it any more

    @property
    def async_pool(self) -> PoolController:
        """The pool's operations as coroutines, for its own event loop.

        Raises:
            PoolStopped: the pool is not running.
        """
        self._event_loop()
        assert self._controller is not None
        return self._controller

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if self.bridge.failure is not None:
            raise PoolStopped(str(self.bridge.failure))
        if loop is None:
            raise PoolStopped("the pool is not running: start it, or use it as a context manager")
        return loop

    # --- other processes ----------------------------------------------------------------------------------------------

    def serve(
        self, host: str = "127.0.0.1", port: int = 0, *, token: Token | None = None, tls: TlsConf | None = None
    ) -> PoolServer:
        """Let workers of other processes and hosts lease from this pool with `PoolClient`, until the pool stops.

        Raises:
            ConfigError: the pool cannot listen at this address.
        """
        from paragent.machines.service import PoolServer

        server = PoolServer(self.async_pool, self.bridge, host, port, token=token, tls=tls)
        self._servers.append(server)
        return server

    @property
    def address(self) -> str:
        """`host:port` at which the pool is served.

        Raises:
            UsageError: it is not served.
        """
        if not self._servers:
            raise UsageError(
                "this pool is not served, so it has no address and cannot be pickled: call pool.serve() first"
            )
        return str(self._servers[-1].address)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled pool becomes a `PoolClient` of this one."""
        from paragent.machines.client import PoolClient

        return (PoolClient, (self.address,))


def _check_memory(provider: Provider, machines: int) -> None:
    """Check that this host has enough memory, before it starts so many machines that the system kills other processes.

    Raises:
        ConfigError: it has far too little, even if most memory of the machines is shared or unused.
    """
    each = provider.host_memory_mib
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if each is None or machines * each <= host * _OVERCOMMIT:
        return
    raise ConfigError(
        f"{counted(machines, 'machine')} of {each:,} MiB need {machines * each >> 10:,} GiB, and this host has "
        f"{host >> 10:,} GiB of memory; use fewer machines (--num-vms), or less memory for each (--vm-memory; "
        "pool serve: --memory)"
    )


def _settings(given: MachineSettings | None, named: dict[str, Any]) -> MachineSettings:
    """Return the settings of machines, from a record or from keywords.

    Raises:
        ConfigError: a keyword is not a field of `MachineSettings`, or both are given.
    """
    known = [field.name for field in fields(MachineSettings)]
    reject_unknown("MachineSettings", "field", named, known)
    if given is not None and named:
        raise ConfigError(f"pass {', '.join(named)} as fields of `settings`, or leave `settings` out")
    return given or MachineSettings(**named)
