"""Stream as many tasks as the argument says; print tasks per second and the memory growth of all processes, as JSON."""

import json
import sys
import time
from collections.abc import Iterator

import psutil

from paragent import LocalRuntime, RunConfig, Runners, Task

WARM_UP = 2_000
LOOK_EVERY = 20_000
"""Tasks between two measurements of the memory, the highest of which counts: one takes as long as about ten tasks."""


def echo(number: int) -> int:
    return number


def tasks(count: int) -> Iterator[Task]:
    return (Task(input=number, agent=echo) for number in range(count))


def resident(processes: list[psutil.Process]) -> int:
    """Return the resident memory of the processes in bytes; shared pages count in each of them."""
    return sum(process.memory_info().rss for process in processes)


def main(count: int) -> None:
    with LocalRuntime(RunConfig(worker_num=2)) as engine:
        for response in Runners.iter_tasks(tasks(WARM_UP), engine=engine):
            response.unwrap()
        driver = psutil.Process()
        processes = [driver, *driver.children(recursive=True)]
        before = highest = resident(processes)
        total = seen = 0
        started = time.perf_counter()
        for response in Runners.iter_tasks(tasks(count), engine=engine):
            total += response.unwrap()
            seen += 1
            if seen % LOOK_EVERY == 0:
                highest = max(highest, resident(processes))
        seconds = time.perf_counter() - started
    assert seen == count
    assert total == count * (count - 1) // 2
    print(json.dumps({"rate": count / seconds, "growth_mb": (highest - before) / 1e6}))


main(int(sys.argv[1]))
