"""Rollouts for trainers: groups of samples with the tokens that were sampled. See docs/training.md."""

from paragent.training.client import Failure, Group, RemoteRolloutService, Sample, ServiceStatus, Turn
from paragent.training.groups import Endpoint, Groups, Partial, epochs, partial
from paragent.training.service import RolloutService

__all__ = [
    "Endpoint",
    "Failure",
    "Group",
    "Groups",
    "Partial",
    "RemoteRolloutService",
    "RolloutService",
    "Sample",
    "ServiceStatus",
    "Turn",
    "epochs",
    "partial",
]
