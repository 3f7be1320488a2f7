"""Machine leases of a worker: each rollout leases one machine, watches the lease while it runs, and releases it."""

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

__all__ = ["LeasedMachine", "PausingModel", "PoolAccess", "WorkerLeases"]


_QUEUE_TIMEOUT = 86_400.0
"""Seconds to wait for a machine: one day, longer than any queue of rollouts that take an hour each. A pool that stops or
fails reports that at once."""
_POLL_INTERVAL = 0.5
"""Seconds between two checks whether the lease is still valid."""


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
            with waiting("waiting for machine"):
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
        self._model, self._lease = model, lease

    async def complete(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Completion:
        """Request a completion. Raises what the other model raises, and LeaseLost if the machine is lost."""
        try:
            await self._lease.apause()  # inside the try: a cancelled call may already have paused the machine
            return await self._model.complete(messages, tools)
        finally:
            await self._lease.aresume()
