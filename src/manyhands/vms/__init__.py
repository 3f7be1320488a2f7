"""Virtual machines: few, clean, leased to many."""

from manyhands.vms.states import FINAL, LIVE, MachineState

__all__ = ["FINAL", "LIVE", "MachineState"]
