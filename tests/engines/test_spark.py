"""The engine contract on Spark, and the options of the Spark engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from paragent import RunConfig, Runners, Task
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
