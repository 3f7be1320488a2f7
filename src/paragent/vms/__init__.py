"""Virtual machines: few, clean, leased to many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._lazy import names_from
from paragent.vms.states import FINAL, LIVE, MachineState

if TYPE_CHECKING:
    from paragent.vms.client import PoolClient
    from paragent.vms.face import Lease
    from paragent.vms.machine import CommandResult, Machine
    from paragent.vms.pool import VMPoolManager
    from paragent.vms.providers import MachineSettings, Provider
    from paragent.vms.status import PoolStatus

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
