"""A benchmark in, scores and trajectories out. Names are loaded when they are first used: flags need only the settings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.rollout.config import RolloutConfig
    from manyhands.rollout.running import run_parallel_rollout
    from manyhands.rollout.worker import RolloutWorker

_HOME = {"RolloutConfig": "config", "RolloutWorker": "worker", "run_parallel_rollout": "running"}

__all__ = ["RolloutConfig", "RolloutWorker", "run_parallel_rollout"]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'manyhands.rollout' has no attribute {name!r}")
    return getattr(importlib.import_module(f"manyhands.rollout.{module}"), name)
