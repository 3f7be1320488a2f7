"""Work that can be stopped for sure: other processes with hard limits on time, memory, output and children."""

from paragent.subprocesses.calls import CallFailed, SubprocessPool
from paragent.subprocesses.child import Child, ChildLost, ChildReply, ProcessLimits

__all__ = ["CallFailed", "Child", "ChildLost", "ChildReply", "ProcessLimits", "SubprocessPool"]
