"""Work that can be stopped for sure: other processes with hard limits on time, memory, output and children."""

from paragent.subprocesses.calls import CallFailed, Helpers
from paragent.subprocesses.child import Limits, Partner, PartnerLost, Reply

__all__ = ["CallFailed", "Helpers", "Limits", "Partner", "PartnerLost", "Reply"]
