"""The smallest program with paragent on the engine that the first argument names, including the start of its cluster."""

import sys
import time

from paragent import RunConfig, Runners
from paragent.engines import open_engine


def double(number: int) -> int:
    return 2 * number


config = RunConfig(engine_name=sys.argv[1], worker_num=2)
with open_engine(config) as engine:
    response = Runners.sync_run(21, double, config, engine=engine)
    print(response.unwrap(), time.monotonic())
