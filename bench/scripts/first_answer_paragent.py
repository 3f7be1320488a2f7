"""The smallest program with paragent. Like those of its peers, it prints the answer before it closes its workers."""

import time

from paragent import LocalRuntime, RunConfig, Runners


def double(number: int) -> int:
    return 2 * number


with LocalRuntime(RunConfig(worker_num=2)) as engine:
    response = Runners.sync_run(21, double, engine=engine)
    print(response.unwrap(), time.monotonic())
