"""The worker's side of machines: leased for one rollout, watched while it plays, given back."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import LeaseLost, MachineFailed, ParagentError, ServerLost
from paragent.models import Model
from paragent.tasks import waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from paragent.machines import Lease, Machine, PoolClient
    from paragent.models import Completion
    from paragent.transport import TlsConf

__all__ = ["Held", "MachineDesk", "PausingModel", "PoolPlace"]


_QUEUE_LIMIT = 86_400.0
"""Seconds to wait for a machine: a day, which is longer than any queue of rollouts that take an hour each. A pool that ends or
gives up says so at once."""
_LOOK = 0.5
"""Seconds between two looks at whether the lease is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlace:
    """Where a run's machines are leased."""

    address: str
    secret: str | None = None
    """What proves that a worker may: made for this run; None: the user's own token."""
    tls: TlsConf | None = None
    """How to connect to a pool that is served with TLS."""
    limit: float | None = None
    """Seconds after which a machine is taken back even from a rollout whose heart beats."""
    pause: bool = False
    """Whether machines stand still while the model thinks."""

    def __repr__(self) -> str:
        return f"PoolPlace(address={self.address!r})"  # never the secret

    def client(self) -> PoolClient:
        """Return a client of the pool; it connects when it is used.

        Raises:
            ConfigError: the address is none.
        """
        from paragent.machines import PoolClient
        from paragent.transport import Token

        return PoolClient(self.address, token=Token(self.secret) if self.secret else None, tls=self.tls)


class MachineDesk:
    """Leases machines to the rollouts of one worker, over one connection."""

    def __init__(self, place: PoolPlace) -> None:
        self._place = place
        self._client: PoolClient | None = None

    @contextlib.asynccontextmanager
    async def lease(self, holder: str) -> AsyncIterator[Held]:
        """Hold a machine, waiting for one if need be; the wait does not count as work.

        Raises:
            MachineFailed: the pool cannot be reached.
            LeaseTimeout: no machine became free.
            PoolFailed, PoolStopped: the pool has ended.
        """
        leasing = self._open().lease(timeout=_QUEUE_LIMIT, holder=holder, limit=self._place.limit)
        try:
            with waiting("waiting for machine"):
                await leasing.__aenter__()
        except ServerLost as error:
            raise MachineFailed(f"the pool at {self._place.address} cannot be reached: {error}") from error
        assert leasing.lease is not None
        try:
            yield Held(leasing.lease, pause=self._place.pause)
        finally:
            with contextlib.suppress(ParagentError):  # a lease that cannot be released ends by its deadline
                await leasing.__aexit__(None, None, None)

    def _open(self) -> PoolClient:
        if self._client is None:
            self._client = self._place.client()
        return self._client

    async def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


class Held:
    """A machine while one rollout has it."""

    def __init__(self, lease: Lease, *, pause: bool = False) -> None:
        self._lease, self._pause = lease, pause

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self._lease.machine

    def thinking(self, model: Model) -> Model:
        """Return the model to ask while the machine is held."""
        if not self._pause:
            return model

        return PausingModel(model, self._lease)

    @contextlib.asynccontextmanager
    async def guarded(self) -> AsyncIterator[None]:
        """End what is done inside as soon as the lease is lost: nothing that follows would mean anything.

        Raises:
            LeaseLost, MachineFailed: the machine was lost before the `with` ended, also if nothing inside noticed.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancelling, fired = task.cancelling(), False
        alarm: asyncio.TimerHandle

        def look() -> None:
            nonlocal fired, alarm
            if self._lease.lost is None:
                alarm = loop.call_later(_LOOK, look)
            else:
                fired = task.cancel()

        look()
        try:
            yield
        except asyncio.CancelledError:
            if fired and task.uncancel() <= cancelling:
                raise LeaseLost(self._lease.lost or "the lease has ended") from None
            raise
        finally:
            alarm.cancel()
        await self.confirm()

    async def confirm(self) -> None:
        """Make sure that the machine is still this rollout's, and alive: the pool takes a moment to notice that it is not.

        Raises:
            LeaseLost: it has another holder, or none.
            MachineFailed: it does not answer.
        """
        try:
            await self._lease.arenew()
        except LeaseLost:
            raise
        except ParagentError:  # the pool cannot be reached just now: heartbeats decide whether that lasts too long
            if self._lease.lost is not None:
                raise LeaseLost(self._lease.lost) from None
        await asyncio.to_thread(self.machine.platform)

    def described(self) -> dict[str, Any]:
        """Return what a trajectory says about the machine."""
        return {"kind": "machine", "machine": self.machine.id, "address": self.machine.address}


class PausingModel(Model):
    """Asks another model, which it does not own, with the machine of a lease paused meanwhile."""

    def __init__(self, model: Model, lease: Lease) -> None:
        super().__init__(model.settings)
        self._model, self._lease = model, lease

    async def complete(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Completion:
        """Ask; raises as the other model, and LeaseLost if the machine is gone."""
        try:
            await self._lease.apause()  # inside: whoever is cancelled here may have paused the machine already
            return await self._model.complete(messages, tools)
        finally:
            await self._lease.aresume()
