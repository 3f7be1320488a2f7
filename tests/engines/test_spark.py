"""The engine contract on Spark, and what is Spark's own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from manyhands import RunConfig, Runners, Task
from manyhands.testing import IsolationContract, behaviours

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


class TestSpark(IsolationContract):
    settings = {"engine_name": "spark"}  # noqa: RUF012 - the suite's own annotation makes it a class variable


def test_worker_num_is_the_number_of_workers_even_beyond_the_sessions_cores() -> None:
    config = RunConfig(engine_name="spark", worker_num=5, concurrency=1)
    responses = Runners.sync_run_task([Task(0.5, behaviours.stay, id=str(i)) for i in range(15)], config)
    assert len({response.unwrap().pid for response in responses.values()}) == 5


def kill_the_parent(path: str) -> str:
    """Kill the station itself, once: the process of Spark that holds the worker."""
    if not Path(path).exists():
        Path(path).write_text("killed")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "survived"


def test_a_killed_task_costs_an_attempt_and_gets_a_successor(tmp_path: Path) -> None:
    tasks = [
        Task(str(tmp_path / "marker"), kill_the_parent, id="killer"),
        *(Task(i, behaviours.echo) for i in range(20)),
    ]
    responses = Runners.sync_run_task(tasks, RunConfig(engine_name="spark", worker_num=2))
    assert all(response.success for response in responses.values()), responses
    assert (responses["killer"].answer, responses["killer"].attempts) == ("survived", 2)


def test_workers_may_share_spark_tasks() -> None:
    config = RunConfig(engine_name="spark", worker_num=3, concurrency=1, engine_options={"partitions": 1})
    responses = Runners.sync_run_task([Task(0.3, behaviours.stay, id=str(i)) for i in range(9)], config)
    assert len({response.unwrap().pid for response in responses.values()}) == 3
