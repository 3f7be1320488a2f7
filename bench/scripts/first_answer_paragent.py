"""The smallest program with paragent that, like its peers, has not yet closed its workers when it has the answer."""

import time

from paragent import LocalRuntime, RunConfig, Runners


def double(number: int) -> int:
    return 2 * number


with LocalRuntime(RunConfig(worker_num=2)) as engine:
    response = Runners.sync_run(21, double, engine=engine)
    print(response.unwrap(), time.monotonic())
