"""The engine contract on Spark, and what is Spark's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from paragent import RunConfig, Runners, Task
from paragent.testing import agents
from tests.engines.cluster_contract import ClusterContract

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)  # programs of the suite start a cluster of their own, slowly where much else runs


@pytest.fixture(scope="module", autouse=True)
def users_spark() -> Iterator[None]:
    """A session of the user's own, which engines use and leave alone; so the suite starts it once."""
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield
    assert session.sparkContext.parallelize([1, 2]).count() == 2, "an engine stopped a session that it had not started"
    session.stop()


class TestSpark(ClusterContract):
    settings = {"engine_name": "spark"}  # noqa: RUF012 - the suite's own annotation makes it a class variable


def test_workers_may_share_spark_tasks() -> None:
    config = RunConfig(engine_name="spark", worker_num=3, concurrency=1, engine_options={"partitions": 1})
    responses = Runners.sync_run_task([Task(0.3, agents.sleep_interval, id=str(i)) for i in range(9)], config)
    assert len({response.unwrap().pid for response in responses.values()}) == 3
