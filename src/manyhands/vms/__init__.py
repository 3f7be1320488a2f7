"""Virtual machines: few, clean, leased to many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands._lazy import names_from
from manyhands.vms.states import FINAL, LIVE, MachineState

if TYPE_CHECKING:
    from manyhands.vms.client import PoolClient
    from manyhands.vms.face import Lease
    from manyhands.vms.machine import CommandResult, Machine
    from manyhands.vms.pool import VMPoolManager
    from manyhands.vms.providers import MachineSettings, Provider
    from manyhands.vms.status import PoolStatus

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
        "face": ("Lease",),
        "machine": ("CommandResult", "Machine"),
        "pool": ("VMPoolManager",),
        "providers": ("MachineSettings", "Provider"),
        "status": ("PoolStatus",),
    },
)
"""Loads what is used: a worker that only talks to a machine needs neither gRPC nor providers."""
