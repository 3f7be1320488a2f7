"""The engine contract on Spark, and what is Spark's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from manyhands.testing import IsolationContract

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def users_spark() -> Iterator[None]:
    """A session of the user's own, which engines use and leave alone; so the suite starts it once."""
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield
    assert session.sparkContext.parallelize([1, 2]).count() == 2, "an engine stopped a session that it had not started"
    session.stop()


class TestSpark(IsolationContract):
    settings = {"engine_name": "spark"}  # noqa: RUF012 - the suite's own annotation makes it a class variable
