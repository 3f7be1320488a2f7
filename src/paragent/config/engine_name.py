"""The names of the engines that come with paragent."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["EngineName"]


class EngineName(StrEnum):
    """Where attempts run. A plain string works wherever a member does."""

    INLINE = "inline"
    """In this very process: for debugging, and for async agents that need no isolation."""
    LOCAL = "local"
    """In worker processes on this machine."""
    RAY = "ray"
    """In long-lived workers on a Ray cluster."""
    SPARK = "spark"
    """In long-lived workers on a Spark cluster."""
