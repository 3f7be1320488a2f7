"""Workers on Ray: one long-lived actor for each, on this machine or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.engines.pool.clustered import ClusterRuntime
from paragent.engines.ray_cluster import OPTIONS, RayCluster

if TYPE_CHECKING:
    from paragent.engines.pool.cluster import Cluster

__all__ = ["RayRuntime"]


class RayRuntime(ClusterRuntime):
    """Runs every attempt in one of a fixed number of workers that Ray places; docs/engines.md lists its options.

    Ray starts the workers and nothing else: calls and answers travel on connections of their own, and neither an actor
    nor a task is ever started again by Ray, so no attempt is repeated behind the driver's back.
    """

    where_errors_are = "Look into Ray's logs, /tmp/ray/session_latest/logs on the node"
    extra, package, options = "ray", "ray", OPTIONS

    def open_cluster(self) -> Cluster:
        """Ray as the configuration says."""
        return RayCluster(self.config)
