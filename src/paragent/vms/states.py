"""What a machine of the pool can be.

::

    BOOTING ──> FREE ──> LEASED ──> RESETTING ──> FREE ...
       │          │         │            │
       └──────────┴─────────┴────────────┴──> QUARANTINED    something is wrong with it; another one boots in its place
    any of the first four ──> STOPPED                         the pool ends, or a person retired the machine
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FINAL", "LIVE", "MachineState"]


class MachineState(StrEnum):
    """The state of a machine; only the ledger changes it."""

    BOOTING = "booting"
    """Was asked of the provider and has not answered yet."""
    FREE = "free"
    """Answered, is clean, and waits for a holder. A provider may have paused it."""
    LEASED = "leased"
    """Has exactly one holder, from the moment the pool decides so until the lease is released, expires or is revoked."""
    RESETTING = "resetting"
    """Had a holder and is being made clean; it is free only after the reset was verified."""
    QUARANTINED = "quarantined"
    """Did not boot, did not answer, or was not clean after a reset. Its logs are kept; it is never handed out again."""
    STOPPED = "stopped"
    """Ended on purpose."""


FINAL = frozenset({MachineState.QUARANTINED, MachineState.STOPPED})
"""States that a machine never leaves."""
LIVE = frozenset(set(MachineState) - FINAL)
"""States of machines that count towards the pool's size and spares."""
