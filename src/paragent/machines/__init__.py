"""Machines: pools of virtual machines that many workers share through leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from
from paragent.machines.state_machine import FINAL, LIVE, MachineState

if TYPE_CHECKING:
    from paragent.machines.cleanup import Owner
    from paragent.machines.client import PoolClient
    from paragent.machines.guest_client import GuestReply, RequestBody
    from paragent.machines.lease import Lease
    from paragent.machines.machine import CommandResult, Machine, MachineStatus, PoolStatus
    from paragent.machines.pool import VMPoolManager
    from paragent.machines.providers import MachineSettings, Provider, complete_or_undo

__all__ = [
    "FINAL",
    "LIVE",
    "CommandResult",
    "GuestReply",
    "Lease",
    "Machine",
    "MachineSettings",
    "MachineState",
    "MachineStatus",
    "Owner",
    "PoolClient",
    "PoolStatus",
    "Provider",
    "RequestBody",
    "VMPoolManager",
    "complete_or_undo",
]

__getattr__ = names_from(
    __name__,
    {
        "cleanup": ("Owner",),
        "client": ("PoolClient",),
        "guest_client": ("GuestReply", "RequestBody"),
        "lease": ("Lease",),
        "machine": ("CommandResult", "Machine", "MachineStatus", "PoolStatus"),
        "pool": ("VMPoolManager",),
        "providers": ("MachineSettings", "Provider", "complete_or_undo"),
    },
)
"""Imports names at their first use: a worker that only uses a machine needs neither gRPC nor providers."""
