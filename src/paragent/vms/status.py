"""What a pool tells: a machine for a holder, and how all of them are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paragent.vms.machine import Machine
    from paragent.vms.states import MachineState

__all__ = ["Grant", "MachineStatus", "PoolStatus"]


@dataclass(frozen=True, slots=True)
class Grant:
    """A machine for a holder, and how long until the next heartbeat must have come."""

    token: int
    machine: Machine
    duration: float


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One row of the table of machines."""

    id: str
    state: MachineState
    seconds: float
    """Since when it is in this state."""
    holder: str
    uses: int
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What `paragent pool status` shows."""

    pool: str
    provider: str
    size: int
    spares: int
    waiting: int
    draining: bool
    failure: str | None
    machines: tuple[MachineStatus, ...]
    hand_overs: int = 0
    """Leases whose holders got their machine."""
    leased_seconds: float = 0.0
    """How long machines were with holders, all together."""
    seconds: float = 0.0
    """Since the machines were asked for."""

    def count(self, state: MachineState) -> int:
        """Return how many machines are in a state."""
        return sum(1 for machine in self.machines if machine.state is state)
