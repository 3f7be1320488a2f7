"""The smallest program with manyhands."""

import time

from manyhands import RunConfig, Runners


def double(number: int) -> int:
    return 2 * number


response = Runners.sync_run(21, double, RunConfig(worker_num=2))
print(response.unwrap(), time.monotonic())
