"""The driver's side of machines: the pool that a session starts, serves to its workers and ends, or one that others serve."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from paragent.errors import ConfigError, ParagentError, PoolFailed, ServerLost
from paragent.machines.state_machine import MachineState
from paragent.rollout.leases import PoolPlace

if TYPE_CHECKING:
    from paragent.envs import Environment
    from paragent.machines import MachineSettings, PoolClient, PoolStatus, VMPoolManager
    from paragent.rollout.config import RolloutConfig

__all__ = ["DEFAULT_PROVIDER", "MachinesSeen", "SessionPool", "lease_limit", "machine_settings", "served_place"]

DEFAULT_PROVIDER = "qemu"
_POOL_NAME = "rollout"
"""Pools of all runs have it, so that the next run clears up what a killed one on a remote provider left."""
_LOOK_PAUSE = 1.0
"""Seconds between two questions to a pool that somebody else serves."""
_AFTER_WORK = 630.0
"""Seconds beyond a rollout's working time: for scoring (600 at most) and closing (30 at most)."""
_LEAST_WAITS = 1800.0
"""Seconds of waiting for the model's endpoint that a lease allows at least: how long one turn is patient with refusals."""


def lease_limit(timeout: float | None) -> float | None:
    """Return how long one rollout may hold a machine: its working time, as much again for waiting, and the time after."""
    return None if timeout is None else timeout + max(timeout, _LEAST_WAITS) + _AFTER_WORK


def machine_settings(config: RolloutConfig, environment: type[Environment]) -> MachineSettings:
    """Return what machines for rollouts of an environment are to be like.

    Raises:
        ConfigError: a setting is out of range.
    """
    from paragent.machines import MachineSettings

    return MachineSettings(
        path_to_vm=None if config.path_to_vm is None else str(config.path_to_vm),
        snapshot_name=config.snapshot_name,
        headless=config.headless,
        memory_mib=config.vm_memory,
        cores=config.vm_cores,
        desktop=environment.needs_desktop,
        internet=environment.needs_internet,
        screen=(config.screen_width, config.screen_height),
        forwards=environment.machine_ports,
        host=config.own_address,
        region=config.region,
        options={name: _value(text) for name, text in config.vm_option.items()},
    )


@dataclass(frozen=True, slots=True)
class MachinesSeen:
    """The machines at one moment, for whoever shows them."""

    in_use: int
    resetting: int
    booting: int
    total: int
    """How many can be leased at a time."""
    waiting: int
    """Rollouts in the queue."""

    @classmethod
    def of(cls, status: PoolStatus) -> MachinesSeen:
        """Return the counts of a table of machines."""
        return cls(
            in_use=status.count(MachineState.LEASED),
            resetting=status.count(MachineState.RESETTING),
            booting=status.count(MachineState.BOOTING),
            total=status.size,
            waiting=status.waiting,
        )


class SessionPool:
    """A context manager; inside, workers lease at `place`.

    Args:
        config: how many machines, or where somebody else serves some.
        settings: what those that are started here are like.
        rollouts: how many are owed: more machines than that are of no use.

    Raises:
        UsageError, MachineFailed, PoolFailed: (on entering) there cannot be such machines here.
        ConfigError: (on entering) nobody serves a pool at `--pool-address`.
    """

    def __init__(self, config: RolloutConfig, settings: MachineSettings, rollouts: int) -> None:
        self._config, self._settings = config, settings
        self._size = min(config.num_vms if config.use_vm_pool else config.num_rollouts, rollouts)
        self._own: VMPoolManager | None = None
        self._client: PoolClient | None = None
        self._before: PoolStatus | None = None
        self._last: PoolStatus | None = None
        self._looked = 0.0

    def __enter__(self) -> Self:
        if (served := served_place(self._config)) is not None:
            self._client, self._before = _found(served)
            self.place = served
            return self
        from paragent.machines import VMPoolManager
        from paragent.transport import Token

        config = self._config
        pool = VMPoolManager(
            config.provider_name or DEFAULT_PROVIDER,
            self._size,
            spares=config.num_spares if config.use_vm_pool or config.num_spares is not None else 0,
            name=_POOL_NAME,
            settings=self._settings,
        )
        self._own = pool.start(wait_for=0)
        secret = secrets.token_urlsafe(32)
        try:
            server = pool.serve(config.own_address, token=Token(secret))
        except BaseException:
            pool.stop()
            raise
        limit = lease_limit(config.timeout)
        self.place = PoolPlace(address=str(server.address), secret=secret, limit=limit, pause=config.pause_machines)
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.stop()
        if self._client is not None:
            self._client.close()

    def look(self) -> MachinesSeen | None:
        """Return the machines as they are now; None if that is not known."""
        status = self._status()
        return None if status is None else MachinesSeen.of(status)

    def figures(self) -> dict[str, float]:
        """Return what came of the machines in this session."""
        status = self._status(now=True)
        if status is None:
            return {}
        before = self._before
        return {
            "leases_granted": status.leases_granted - (before.leases_granted if before else 0),
            "leased_seconds": status.leased_seconds - (before.leased_seconds if before else 0.0),
            "machine_seconds": status.size * (status.seconds - (before.seconds if before else 0.0)),
        }

    def _status(self, *, now: bool = False) -> PoolStatus | None:
        pool, pause = (self._own, 0.0) if self._own is not None else (self._client, _LOOK_PAUSE)
        if pool is not None and (now or time.monotonic() - self._looked >= pause):
            self._looked = time.monotonic()
            try:
                self._last = pool.status()
            except (ParagentError, TimeoutError):  # the rollouts find out by themselves what that means for them
                return None
        return self._last


def served_place(config: RolloutConfig) -> PoolPlace | None:
    """Return where the pool is that others serve; None if none is named."""
    if not config.pool_address:
        return None
    limit = lease_limit(config.timeout)
    return PoolPlace(address=config.pool_address, tls=config.pool_tls, limit=limit, pause=config.pause_machines)


def _found(place: PoolPlace) -> tuple[PoolClient, PoolStatus]:
    """Return a client of the pool at a place, and the pool as it is.

    Raises:
        ConfigError: nobody serves one there.
        PoolFailed: it gave up.
    """
    client = place.client()
    try:
        status = client.status()
    except (ServerLost, TimeoutError) as error:
        client.close()
        raise ConfigError(str(error) or f"the pool at {place.address} takes too long to answer") from error
    if status.failure:
        client.close()
        raise PoolFailed(status.failure)
    return client, status


def _value(text: Any) -> Any:
    """Return an option of a provider, read as JSON where it is some."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
