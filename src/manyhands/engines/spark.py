"""Workers on Spark: one long-lived Spark task for each, on this machine or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands._plugins import require_extra
from manyhands.engines.pool.clustered import ClusterRuntime
from manyhands.engines.pool.options import check_options
from manyhands.engines.spark_cluster import OPTIONS, SparkCluster

if TYPE_CHECKING:
    from manyhands.config import RunConfig
    from manyhands.engines.pool.cluster import Cluster

__all__ = ["SparkRuntime"]


class SparkRuntime(ClusterRuntime):
    """Runs every attempt in one of a fixed number of workers that Spark places; docs/engines.md lists its options.

    Spark starts the workers and nothing else. A station that Spark starts a second time, because it speculates or because
    an executor was lost, is turned away by the driver, so no attempt is repeated behind the driver's back.

    Raises:
        MissingExtra: pyspark is not installed.
        ConfigError: an engine option is unknown or of the wrong type.
    """

    where_errors_are = "Look into the logs of Spark's executors"

    def __init__(self, config: RunConfig) -> None:
        require_extra("the engine 'spark'", extra="spark", package="pyspark")
        check_options("spark", config.engine_options, OPTIONS)
        super().__init__(config)

    def open_cluster(self) -> Cluster:
        """Spark as the configuration says."""
        return SparkCluster(self.config)
