"""The engine contract on Spark, and the options of the Spark engine."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from paragent import RunConfig, Runners, Task
from paragent.engines.spark import SparkCluster
from paragent.testing import agents
from tests.engines.cluster_contract import ClusterContract

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),  # programs of the suite start their own Spark, slowly on a busy machine
]


@pytest.fixture(scope="module", autouse=True)
def users_spark() -> Iterator[None]:
    """Start a session of the user, which the engines use and do not stop; so the suite starts Spark once."""
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield
    assert session.sparkContext.parallelize([1, 2]).count() == 2, "an engine stopped a session that it had not started"
    session.stop()


class TestSpark(ClusterContract):
    settings = {"engine_name": "spark"}  # noqa: RUF012 - annotated as a class variable by the suite


def test_several_workers_share_a_spark_task_if_configured() -> None:
    config = RunConfig(engine_name="spark", worker_num=3, concurrency=1, engine_options={"partitions": 1})
    responses = Runners.sync_run_task([Task(0.3, agents.sleep_interval, id=str(i)) for i in range(9)], config)
    assert len({response.unwrap().pid for response in responses.values()}) == 3


class _Executors:
    """A Spark cluster of which a test sets the number of executors, each with one core."""

    master = "spark://head:7077"

    def __init__(self, count: int) -> None:
        self.count = count
        self._jsc = self
        self.sc = self.statusTracker = self.resourceProfileManager = lambda: self
        self.getExecutorInfos = lambda: [None] * (self.count + 1)
        self.defaultResourceProfile = lambda: None
        self.maxNumConcurrentTasks = lambda _: self.count


def test_a_shortage_names_executors_that_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = _Executors(2)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", spark)
    options = {"driver_host": "127.0.0.1"}
    cluster = SparkCluster(RunConfig(engine_name="spark", in_local=False, worker_num=3, engine_options=options))
    cluster.start()
    assert "runs 2 tasks at a time, and every worker occupies one. Lower worker_num" in cluster.shortage()
    spark.count = 1
    reason = cluster.shortage()
    assert "has 1 of the 2 executors that it had: a node was lost" in reason
    assert "worker_num" not in reason
    spark.count = 0
    assert "has 0 of the 2 executors" in cluster.shortage()


@pytest.mark.parametrize(("workers", "options"), [(2, {}), (3, {"partitions": 1})])
def test_no_advice_to_lower_the_workers_is_given_if_spark_has_room_for_them(
    workers: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not have noticed yet that a node was lost."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", _Executors(2))
    options = {"driver_host": "127.0.0.1", **options}
    cluster = SparkCluster(RunConfig(engine_name="spark", in_local=False, worker_num=workers, engine_options=options))
    cluster.start()
    reason = cluster.shortage()
    assert "runs 2 tasks at a time, which is enough" in reason
    assert "a node was lost" in reason
    assert "worker_num" not in reason


def warnings_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, timeout=60, stderr=subprocess.PIPE, text=True).stderr


def test_a_warning_of_pyspark_about_pandas_is_not_shown() -> None:
    load = "import pyspark.testing.utils"
    assert "FutureWarning" in warnings_of(load), "without this warning, nothing needs to be hidden"
    assert warnings_of(f"import paragent.engines.spark as spark; spark._hide_pandas_warning(); {load}") == ""
