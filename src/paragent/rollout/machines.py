"""Machines of a run: the pool that the session starts or connects to, and the leases that workers take from it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.networks import local_address_towards
from paragent.errors import ConfigError, LeaseLost, MachineFailed, ParagentError, PoolFailed, ServerLost
from paragent.execution import waiting
from paragent.machines.state_machine import LIVE, MachineState
from paragent.models import Model
from paragent.rollout.episode import CLOSE_TIMEOUT, OPEN_TIMEOUT
from paragent.rollout.live_run import LiveMachine
from paragent.rollout.scoring import SCORE_TIMEOUT
from paragent.store import MachineEvent, RolloutActivity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.envs import Environment
    from paragent.machines import Lease, Machine, MachineSettings, PoolClient, PoolStatus, VMPoolManager
    from paragent.models import Completion
    from paragent.rollout.config import MachinesSection, RolloutConfig, RunSection
    from paragent.transport import TlsConf

__all__ = [
    "DEFAULT_PROVIDER",
    "LeasedMachine",
    "MachineCounts",
    "PausingModel",
    "PoolAccess",
    "SessionPool",
    "WorkerLeases",
    "host_address",
    "lease_limit",
    "machine_settings",
    "served_pool",
]

DEFAULT_PROVIDER = "qemu"
_POOL_NAME = "rollout"
"""All runs use the same pool name, so that the next run removes what a killed run left at a remote provider."""
_QUEUE_TIMEOUT = 86_400.0
"""Seconds to wait for a machine: one day, longer than any queue of rollouts that take an hour each. A pool that stops or
fails reports that at once."""
_POLL_INTERVAL = 0.5
"""Seconds between two checks whether the lease is still valid."""
_STATUS_INTERVAL = 1.0
"""Seconds between two status requests to a pool that is served elsewhere,"""
_OWN_STATUS_INTERVAL = 0.1
"""and to a pool of this process."""
_TIME_BESIDE_WORK = OPEN_TIMEOUT + SCORE_TIMEOUT + CLOSE_TIMEOUT
"""Seconds beyond the working time of a rollout."""
_LEAST_WAIT = 1800.0
"""Seconds that a lease allows at least for waiting at the endpoint: how long one turn waits when requests are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAccess:
    """How workers connect to the pool of a run, and what they may do there."""

    address: str
    secret: str | None = None
    """The token of a pool that was started for this run; None: the user's own token."""
    tls: TlsConf | None = None
    """For a pool that is served with TLS."""
    limit: float | None = None
    """Seconds after which the pool takes a machine back, even if its holder sends heartbeats."""
    pause: bool = False
    """Whether machines are paused while the model generates."""

    def __repr__(self) -> str:
        return f"PoolAccess(address={self.address!r})"  # never the secret

    def client(self) -> PoolClient:
        """Return a client of the pool; it connects when it is first used.

        Raises:
            ConfigError: the address is malformed.
        """
        from paragent.machines import PoolClient
        from paragent.transport import Token

        return PoolClient(self.address, token=Token(self.secret) if self.secret else None, tls=self.tls)


class WorkerLeases:
    """Leases machines for the rollouts of one worker, over one connection."""

    def __init__(self, access: PoolAccess) -> None:
        self._access = access
        self._client: PoolClient | None = None

    @contextlib.asynccontextmanager
    async def lease(self, holder: str) -> AsyncIterator[LeasedMachine]:
        """Lease a machine; the time in the queue counts as waiting, not as work.

        Raises:
            MachineFailed: the pool cannot be reached.
            LeaseTimeout: no machine became free.
            PoolFailed, PoolStopped: the pool has ended.
        """
        leasing = self._connect().lease(timeout=_QUEUE_TIMEOUT, holder=holder, limit=self._access.limit)
        try:
            with waiting(RolloutActivity.WAITING_FOR_MACHINE):
                await leasing.__aenter__()
        except ServerLost as error:
            raise MachineFailed(f"the pool at {self._access.address} cannot be reached: {error}") from error
        assert leasing.lease is not None
        try:
            yield LeasedMachine(leasing.lease, pause=self._access.pause)
        finally:
            with contextlib.suppress(ParagentError):  # a lease that cannot be released expires
                await leasing.__aexit__(None, None, None)

    def _connect(self) -> PoolClient:
        if self._client is None:
            self._client = self._access.client()
        return self._client

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


class LeasedMachine:
    """The machine of one rollout."""

    def __init__(self, lease: Lease, *, pause: bool = False) -> None:
        self._lease, self._pause = lease, pause

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self._lease.machine

    def wrap(self, model: Model) -> Model:
        """Return the model for this rollout: one that pauses the machine during requests, if that is configured."""
        return PausingModel(model, self._lease) if self._pause else model

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel the body of the `with` as soon as the lease is lost, because its further results would be meaningless.

        Raises:
            LeaseLost, MachineFailed: the machine was lost, even if the body did not notice.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancelling, cancelled = task.cancelling(), False
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal cancelled, timer
            if self._lease.lost is None:
                timer = loop.call_later(_POLL_INTERVAL, check)
            else:
                cancelled = task.cancel()

        check()
        try:
            yield
        except asyncio.CancelledError:
            if cancelled and task.uncancel() <= cancelling:
                raise LeaseLost(self._lease.lost or "the lease has ended") from None
            raise
        finally:
            timer.cancel()
        await self.confirm()

    async def confirm(self) -> None:
        """Check that this rollout still holds the machine and that the machine responds.

        The pool needs some time to notice a lost machine, so this is called before a result counts.

        Raises:
            LeaseLost: the machine has another holder, or none.
            MachineFailed: the machine does not respond.
        """
        try:
            await self._lease.arenew()
        except LeaseLost:
            raise
        except ParagentError:  # the pool is unreachable for now; heartbeats decide when that is too long
            if self._lease.lost is not None:
                raise LeaseLost(self._lease.lost) from None
        await asyncio.to_thread(self.machine.platform)

    def as_step(self) -> dict[str, Any]:
        """Return the machine as a step of the trajectory."""
        return {"kind": "machine", "machine": self.machine.id, "address": self.machine.address}


class PausingModel(Model):
    """Pauses a leased machine during each request to another model, which it does not close."""

    def __init__(self, model: Model, lease: Lease) -> None:
        super().__init__(model.settings)
        self.dialect = model.dialect
        self._model, self._lease = model, lease

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Request a completion; raises the errors of the other model, and `LeaseLost` if the machine is lost."""
        async with self._paused():
            return await self._model.complete(messages, tools, options)

    async def forward(self, request: Mapping[str, Any]) -> Completion:
        """Send a request; raises the errors of the other model, and `LeaseLost` if the machine is lost."""
        async with self._paused():
            return await self._model.forward(request)

    @property
    def has_answered(self) -> bool:
        return self._model.has_answered

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        try:
            await self._lease.apause()  # inside the try: a cancelled call may already have paused the machine
            yield
        finally:
            await self._lease.aresume()


def lease_limit(timeout: float | None) -> float | None:
    """Return how long one rollout may hold a machine: its working time, as much again for waiting, and the time after."""
    return None if timeout is None else timeout + max(timeout, _LEAST_WAIT) + _TIME_BESIDE_WORK


def host_address(run: RunSection) -> str:
    """Return the address at which workers reach this host: `--host`, or the local address on the route to the cluster.

    Without a cluster all workers are on this host, and the address is 127.0.0.1.
    """
    if run.host is not None or run.engine_address is None:
        return run.host or "127.0.0.1"
    host, _, port = run.engine_address.rpartition("://")[2].partition(":")
    return local_address_towards((host, int(port))) if port.isdigit() else local_address_towards()


def machine_settings(config: RolloutConfig, environment: type[Environment]) -> MachineSettings:
    """Return the settings of machines for rollouts in an environment.

    Raises:
        ConfigError: a setting is out of range.
    """
    from paragent.machines.providers.base import MachineSettings, parse_option

    machines = config.machines
    return MachineSettings(
        path_to_vm=None if machines.path_to_vm is None else str(machines.path_to_vm),
        snapshot_name=machines.snapshot_name,
        headless=machines.headless,
        memory_mib=machines.vm_memory,
        cores=machines.vm_cores,
        desktop=environment.needs_desktop,
        internet=environment.needs_internet,
        screen=(machines.screen_width, machines.screen_height),
        forwards=environment.machine_ports,
        host=host_address(config.run),
        region=machines.region,
        options={name: parse_option(text) for name, text in machines.vm_option.items()},
    )


@dataclass(frozen=True, slots=True)
class MachineCounts:
    """How many machines are in which state, for the display."""

    in_use: int
    resetting: int
    booting: int
    total: int
    """Machines that can be leased at the same time."""
    waiting: int
    """Rollouts in the queue."""

    @classmethod
    def of(cls, status: PoolStatus) -> MachineCounts:
        """Return the counts of a pool's status."""
        return cls(
            in_use=status.count(MachineState.LEASED),
            resetting=status.count(MachineState.RESETTING),
            booting=status.count(MachineState.BOOTING),
            total=status.size,
            waiting=status.waiting,
        )


class SessionPool:
    """A context manager for the pool of a session; inside, workers use `access`.

    Args:
        config: the settings of the run.
        settings: the settings of machines that are started here.
        rollouts: the number of pending rollouts; more machines are not started.

    Raises:
        UsageError, MachineFailed, PoolFailed: (on entering) the machines cannot be started.
        ConfigError: (on entering) no pool is served at `--pool-address`.
    """

    def __init__(self, config: RolloutConfig, settings: MachineSettings, rollouts: int) -> None:
        self._config, self._settings = config, settings
        wanted = config.machines.num_vms if config.machines.use_vm_pool else config.run.num_rollouts
        self._size = min(wanted, rollouts)
        self.access: PoolAccess
        """How workers connect to the pool."""
        self._own: VMPoolManager | None = None
        self._client: PoolClient | None = None
        self._before: PoolStatus | None = None
        self._last: PoolStatus | None = None
        self._asked = 0.0
        self._began = 0.0
        """When the session connected to a served pool, in seconds since the epoch."""
        self._events_asked = 0.0
        self._events_seen = 0
        """The number of the last state change that `events` has returned."""

    def __enter__(self) -> Self:
        if (access := served_pool(self._config)) is not None:
            self._client, self._before = _connect(access)
            self._began = time.time()
            self.access = access
            return self
        from paragent.machines import VMPoolManager
        from paragent.transport import Token

        machines = self._config.machines
        pool = VMPoolManager(
            machines.provider_name or DEFAULT_PROVIDER,
            self._size,
            spares=machines.num_spares if machines.use_vm_pool or machines.num_spares is not None else 0,
            name=_POOL_NAME,
            settings=self._settings,
        )
        self._own = pool.start(wait_for=0)
        secret = secrets.token_urlsafe(32)
        try:
            server = pool.serve(host_address(self._config.run), token=Token(secret))
        except BaseException:
            pool.stop()
            raise
        limit = lease_limit(self._config.run.timeout)
        self.access = PoolAccess(address=str(server.address), secret=secret, limit=limit, pause=machines.pause_machines)
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.stop()
        if self._client is not None:
            self._client.close()

    def counts(self) -> MachineCounts | None:
        """Return the current number of machines in each state; None if it is unknown."""
        status = self._status()
        return None if status is None else MachineCounts.of(status)

    def machines(self) -> list[LiveMachine]:
        """Return the machines of the pool; empty if they are unknown."""
        status = self._status()
        return [
            LiveMachine(one.id, str(one.state), one.seconds, one.holder, one.uses, one.reason)
            for one in (status.machines if status else ())
        ]

    def retire(self, machine: str) -> None:
        """Replace a machine by a new one, now or when its lease ends.

        Raises:
            UsageError: there is no such live machine.
        """
        pool = self._own or self._client
        assert pool is not None, "inside the `with`"
        pool.retire(machine)

    def figures(self) -> dict[str, float]:
        """Return the usage of machines in this session, for the summary; empty if it is unknown."""
        status = self._status(now=True)
        if status is None:
            return {}
        before = self._before
        return {
            "leases_granted": status.leases_granted - (before.leases_granted if before else 0),
            "leased_seconds": status.leased_seconds - (before.leased_seconds if before else 0.0),
            "machine_seconds": status.size * (status.seconds - (before.seconds if before else 0.0)),
        }

    def events(self, *, now: bool = False) -> list[MachineEvent]:
        """Return the state changes of machines since the last call, for the journal; at most once a second, unless `now`.

        Of a served pool, the first call returns the state of each machine when the session began.
        """
        pool = self._own or self._client
        if pool is None or (not now and time.monotonic() - self._events_asked < _STATUS_INTERVAL):
            return []
        first = self._states_before() if not self._events_asked and self._before is not None else []
        self._events_asked = time.monotonic()
        try:
            changes = pool.changes(self._events_seen)
        except (ParagentError, TimeoutError):  # rollouts notice a failed pool themselves
            return first
        if changes:
            self._events_seen = changes[-1].number
        return first + [
            MachineEvent(change.machine, change.state, change.at, change.holder, change.detail) for change in changes
        ]

    def _states_before(self) -> list[MachineEvent]:
        assert self._before is not None
        self._events_seen = self._before.changes
        live = (machine for machine in self._before.machines if machine.state in LIVE)
        return [MachineEvent(machine.id, machine.state, self._began, machine.holder) for machine in live]

    def _status(self, *, now: bool = False) -> PoolStatus | None:
        pool, interval = (self._own, _OWN_STATUS_INTERVAL) if self._own else (self._client, _STATUS_INTERVAL)
        if pool is not None and (now or time.monotonic() - self._asked >= interval):
            self._asked = time.monotonic()
            try:
                self._last = pool.status()
            except (ParagentError, TimeoutError):  # rollouts notice a failed pool themselves
                return None
        return self._last


def served_pool(config: RolloutConfig) -> PoolAccess | None:
    """Return the access to the pool at `--pool-address`; None if it is not set."""
    machines = config.machines
    if not machines.pool_address:
        return None
    limit = lease_limit(config.run.timeout)
    return PoolAccess(
        address=machines.pool_address, tls=_pool_tls(machines), limit=limit, pause=machines.pause_machines
    )


def _pool_tls(machines: MachinesSection) -> TlsConf | None:
    """Return the TLS settings for the served pool, with absolute paths, because workers have other working directories."""
    from paragent.transport import TlsConf

    if not machines.uses_tls:
        return None
    files = {"ca": machines.tls_ca, "cert": machines.tls_cert, "key": machines.tls_key}
    paths = {name: None if path is None else str(path.absolute()) for name, path in files.items()}
    return TlsConf(**paths, server_name=machines.tls_server_name or None)


def _connect(access: PoolAccess) -> tuple[PoolClient, PoolStatus]:
    """Return a client of a served pool, and the pool's status.

    Raises:
        ConfigError: no pool is served there.
        PoolFailed: the pool has failed.
    """
    client = access.client()
    try:
        status = client.status()
    except (ServerLost, TimeoutError) as error:
        client.close()
        raise ConfigError(str(error) or f"the pool at {access.address} does not answer in time") from error
    if status.failure:
        client.close()
        raise PoolFailed(status.failure)
    return client, status
