"""The smallest program with plain Spark."""

import os
import sys
import time

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark import SparkConf, SparkContext


def double(number: int) -> int:
    return 2 * number


context = SparkContext(conf=SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false"))
print(context.parallelize([21], 1).map(double).collect()[0], time.monotonic())
