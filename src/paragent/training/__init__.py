"""Rollouts for trainers: groups of samples with the tokens that were sampled. See docs/howto/training.md."""

from paragent.training.client import AttemptFailure, Group, RemoteRolloutService, Sample, ServiceStatus, Turn
from paragent.training.groups import Endpoint, Groups, Partial, epochs, partial
from paragent.training.service import RolloutService

__all__ = [
    "AttemptFailure",
    "Endpoint",
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
