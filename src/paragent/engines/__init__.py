"""Engines: where calls are executed. One contract (`base`), one module for each implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.engines._cluster import Cluster, ClusterRuntime
    from paragent.engines._node_agent import NodeAgentSpec, run_node_agents
    from paragent.engines.base import ENGINES, Call, RuntimeEngine, WorkerChange, open_engine

__all__ = [
    "ENGINES",
    "Call",
    "Cluster",
    "ClusterRuntime",
    "NodeAgentSpec",
    "RuntimeEngine",
    "WorkerChange",
    "open_engine",
    "run_node_agents",
]

__getattr__ = names_from(
    __name__,
    {
        "_cluster": ("Cluster", "ClusterRuntime"),
        "_node_agent": ("NodeAgentSpec", "run_node_agents"),
        "base": ("ENGINES", "Call", "RuntimeEngine", "WorkerChange", "open_engine"),
    },
)
