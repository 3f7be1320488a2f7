"""Child processes with hard limits on time, memory, output and number of processes."""

from paragent.subprocesses.child import Child, ChildLost, ChildReply, ProcessLimits
from paragent.subprocesses.pool import CallFailed, SubprocessPool

__all__ = ["CallFailed", "Child", "ChildLost", "ChildReply", "ProcessLimits", "SubprocessPool"]
