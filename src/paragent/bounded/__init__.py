"""Work that can be stopped for sure: other processes with hard limits on time, memory, output and children."""

from paragent.bounded.calling import CallFailed, Helpers
from paragent.bounded.partner import Limits, Partner, PartnerLost, Reply

__all__ = ["CallFailed", "Helpers", "Limits", "Partner", "PartnerLost", "Reply"]
