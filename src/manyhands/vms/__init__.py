"""Virtual machines: few, clean, leased to many."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "CommandResult": "machine",
    "Lease": "face",
    "Machine": "machine",
    "MachineSettings": "providers",
    "PoolClient": "client",
    "PoolStatus": "status",
    "Provider": "providers",
    "VMPoolManager": "pool",
}


def __getattr__(name: str) -> Any:
    """Load what is used: a worker that only talks to a machine needs neither gRPC nor providers."""
    if name not in _HOMES:
        raise AttributeError(f"module 'manyhands.vms' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"manyhands.vms.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
