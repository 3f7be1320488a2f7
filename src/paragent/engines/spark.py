"""Workers on Spark: one long-lived Spark task for each, on this machine or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.engines.pool.clustered import ClusterRuntime
from paragent.engines.spark_cluster import OPTIONS, SparkCluster

if TYPE_CHECKING:
    from paragent.engines.pool.cluster import Cluster

__all__ = ["SparkRuntime"]


class SparkRuntime(ClusterRuntime):
    """Runs every attempt in one of a fixed number of workers that Spark places; docs/engines.md lists its options.

    Spark starts the workers and nothing else. A station that Spark starts a second time, because it speculates or because
    an executor was lost, is turned away by the driver, so no attempt is repeated behind the driver's back.
    """

    where_errors_are = "Look into the logs of Spark's executors"
    extra, package, options = "spark", "pyspark", OPTIONS

    def open_cluster(self) -> Cluster:
        """Spark as the configuration says."""
        return SparkCluster(self.config)
