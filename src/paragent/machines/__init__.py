"""Machines: pools of virtual machines that many workers share through leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from
from paragent.machines.state_machine import FINAL, LIVE, MachineState

if TYPE_CHECKING:
    from paragent.machines.client import PoolClient
    from paragent.machines.lease import Lease
    from paragent.machines.machine import CommandResult, Machine, PoolStatus
    from paragent.machines.pool import VMPoolManager
    from paragent.machines.providers import MachineSettings, Provider

__all__ = [
    "FINAL",
    "LIVE",
    "CommandResult",
    "Lease",
    "Machine",
    "MachineSettings",
    "MachineState",
    "PoolClient",
    "PoolStatus",
    "Provider",
    "VMPoolManager",
]

__getattr__ = names_from(
    __name__,
    {
        "client": ("PoolClient",),
        "lease": ("Lease",),
        "machine": ("CommandResult", "Machine", "PoolStatus"),
        "pool": ("VMPoolManager",),
        "providers": ("MachineSettings", "Provider"),
    },
)
"""Imports names at their first use: a worker that only uses a machine needs neither gRPC nor providers."""
