"""Pools of the view: those of live runs, and those named on the command line. A pool that does not answer has a `problem`."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from paragent.errors import MachineFailed, ParagentError, UsageError
from paragent.machines import LIVE
from paragent.rollout.machines import PoolAccess
from paragent.rollout.pool_file import read_pool_file
from paragent.view.api import ControlAnswer, PoolDetail, PoolList, PoolMachine, PoolRow
from paragent.view.runs import UnknownRun

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from paragent.machines import MachineStatus, PoolClient, PoolStatus
    from paragent.machines.lease import AsyncPool
    from paragent.transport import TlsConf
    from paragent.view.runs import RunFolder

__all__ = ["PoolViews"]

_SECONDS = 4.0
"""For one answer of a pool; a pool that takes longer is shown with a problem."""
_SCREENSHOT_SECONDS = 8.0
"""A pool gives a machine five seconds for a screenshot."""
_EVENTS = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownPool:
    """A pool that the view may ask."""

    access: PoolAccess
    runs: tuple[str, ...]
    """The live runs that use it."""

    @property
    def id(self) -> str:
        """The id in addresses of pages: where the pool is served."""
        return self.access.address


class PoolViews:
    """Makes the records of pools. Its coroutines belong to one event loop.

    Args:
        folder: the runs whose pools are shown while they are live.
        addresses: `host:port` of other pools, which have the user's token.
        tls: for pools that are served with TLS.

    Raises:
        ConfigError: an address is malformed.
    """

    def __init__(self, folder: RunFolder, addresses: Sequence[str] = (), tls: TlsConf | None = None) -> None:
        self._folder = folder
        self._named = [PoolAccess(address=address, tls=tls) for address in addresses]
        self._clients: dict[PoolAccess, PoolClient] = {}
        """Open clients, by how they connect."""
        for access in self._named:
            self._client(access)

    async def pools(self) -> PoolList:
        """Return all pools, those of runs first."""
        known = await asyncio.to_thread(self._known)
        self._close_others(known)
        return PoolList(list(await asyncio.gather(*(self._row(pool) for pool in known))))

    async def pool(self, pool_id: str) -> PoolDetail:
        """Return one pool; without machines if it does not answer.

        Raises:
            UnknownRun: the view knows no such pool.
        """
        known = await self._find(pool_id)
        try:
            status = await self._ask(known, lambda pool: pool.status())
            changes = await self._ask(known, lambda pool: pool.changes(max(0, status.changes - _EVENTS)))
        except (ParagentError, TimeoutError) as error:
            return PoolDetail(_unreachable(known, error), [], [])
        machines = [_machine(machine) for machine in sorted(status.machines, key=_order)]
        events = [(one.at, one.machine, str(one.state), one.holder, one.detail) for one in reversed(changes)]
        return PoolDetail(_row(known, status), machines, events[:_EVENTS])

    async def log(self, pool_id: str, machine: str) -> str:
        """Return the end of a machine's log.

        Raises:
            UnknownRun: there is no such pool or machine.
            ParagentError: it cannot be read now.
        """
        known = await self._find(pool_id)
        return await self._about_machine(known, lambda pool: pool.machine_log(machine), _SECONDS)

    async def screenshot(self, pool_id: str, machine: str) -> bytes:
        """Return what the screen of a machine shows; raises the same errors as `log`."""
        known = await self._find(pool_id)
        return await self._about_machine(known, lambda pool: pool.machine_screenshot(machine), _SCREENSHOT_SECONDS)

    async def retire(self, pool_id: str, machine: str) -> ControlAnswer:
        """Replace a machine, now or when its lease ends; raises the same errors as `log`."""
        known = await self._find(pool_id)
        try:
            await self._ask(known, lambda pool: pool.retire(machine))
        except (ParagentError, TimeoutError) as error:
            return ControlAnswer(ok=False, message=_message(error))
        return ControlAnswer(ok=True, message=f"{machine} is replaced now or when its lease ends")

    # --- which pools --------------------------------------------------------------------------------------------------

    def _known(self) -> list[KnownPool]:
        runs: dict[PoolAccess, list[str]] = {}
        for run in self._folder.all():
            access = read_pool_file(run.path / "live") if run.live() is not None else None
            if access is not None:
                runs.setdefault(access, []).append(run.name)
        for access in self._named:
            if not any(access.address == other.address for other in runs):
                runs[access] = []
        return [KnownPool(access, tuple(names)) for access, names in runs.items()]

    async def _find(self, pool_id: str) -> KnownPool:
        for known in await asyncio.to_thread(self._known):
            if known.id == pool_id:
                return known
        raise UnknownRun(f"there is no pool {pool_id!r}: its run has ended, or it was not named with --pool-address")

    def _client(self, access: PoolAccess) -> PoolClient:
        if access not in self._clients:
            self._clients[access] = access.client()
        return self._clients[access]

    def _close_others(self, known: Sequence[KnownPool]) -> None:
        """Close the connections to pools whose run has ended."""
        kept = {pool.access for pool in known}
        for access in [access for access in self._clients if access not in kept]:
            client = self._clients.pop(access)
            asyncio.get_running_loop().run_in_executor(None, client.close)

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _ask(
        self, known: KnownPool, question: Callable[[AsyncPool], Coroutine[Any, Any, T]], seconds: float = _SECONDS
    ) -> T:
        client = self._client(known.access)
        async with asyncio.timeout(seconds):
            return await client.bridge.wait_async(question(client.async_pool))

    async def _about_machine(
        self, known: KnownPool, question: Callable[[AsyncPool], Coroutine[Any, Any, T]], seconds: float
    ) -> T:
        try:
            return await self._ask(known, question, seconds)
        except UsageError as error:  # no such machine
            raise UnknownRun(str(error)) from error
        except TimeoutError as error:
            raise MachineFailed(f"the pool at {known.id} does not answer") from error

    async def _row(self, known: KnownPool) -> PoolRow:
        try:
            return _row(known, await self._ask(known, lambda pool: pool.status()))
        except (ParagentError, TimeoutError) as error:
            return _unreachable(known, error)


def _row(known: KnownPool, status: PoolStatus) -> PoolRow:
    problem = f"the pool failed: {status.failure}" if status.failure else ""
    return PoolRow(
        id=known.id,
        address=known.access.address,
        run=_run_of(known),
        provider=status.provider,
        states=dict(Counter(str(machine.state) for machine in status.machines)),
        waiting=status.waiting,
        problem=problem or ("it is being drained and grants no more leases" if status.draining else ""),
    )


def _unreachable(known: KnownPool, error: Exception) -> PoolRow:
    return PoolRow(
        id=known.id,
        address=known.access.address,
        run=_run_of(known),
        provider="",
        states={},
        waiting=0,
        problem=_message(error),
    )


def _run_of(known: KnownPool) -> str:
    return known.runs[0] if len(known.runs) == 1 else ""


def _message(error: Exception) -> str:
    return str(error) or f"the pool does not answer within {_SECONDS:.0f} s"


def _machine(machine: MachineStatus) -> PoolMachine:
    return PoolMachine(
        name=machine.id,
        state=str(machine.state),
        since=machine.seconds,
        holder=machine.holder,
        lease_age=machine.lease_seconds,
        leases=machine.leases,
        resets=machine.resets,
        failures=machine.failures,
        detail=machine.reason,
        screenshot=machine.screenshot,
        log=machine.log,
    )


def _order(machine: MachineStatus) -> tuple[bool, int, str]:
    """Live machines first, then by number: `m2` before `m10`."""
    number = machine.id.lstrip("m")
    return machine.state not in LIVE, int(number) if number.isdigit() else 0, machine.id
