"""Rollouts: run the tasks of a benchmark and store results and trajectories. Names are loaded when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.rollout.config import (
        AgentSection,
        DataSection,
        EnvironmentSection,
        MachinesSection,
        ModelSection,
        RolloutConfig,
        RunSection,
    )
    from paragent.rollout.live_status import RolloutProgress
    from paragent.rollout.session import run_parallel_rollout
    from paragent.rollout.worker import RolloutWorker

__all__ = [
    "AgentSection",
    "DataSection",
    "EnvironmentSection",
    "MachinesSection",
    "ModelSection",
    "RolloutConfig",
    "RolloutProgress",
    "RolloutWorker",
    "RunSection",
    "run_parallel_rollout",
]

__getattr__ = names_from(
    __name__,
    {
        "config": (
            "AgentSection",
            "DataSection",
            "EnvironmentSection",
            "MachinesSection",
            "ModelSection",
            "RolloutConfig",
            "RunSection",
        ),
        "live_status": ("RolloutProgress",),
        "session": ("run_parallel_rollout",),
        "worker": ("RolloutWorker",),
    },
)
