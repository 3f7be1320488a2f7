"""Child processes with hard limits on time, memory, output and number of processes."""

from paragent.subprocesses.child import CallFailed, Child, ChildLost, ChildReply, ProcessLimits, SubprocessPool

__all__ = ["CallFailed", "Child", "ChildLost", "ChildReply", "ProcessLimits", "SubprocessPool"]
