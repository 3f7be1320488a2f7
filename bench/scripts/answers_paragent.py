"""Stream tasks with answers of 10 kB: answers_paragent.py ENGINE TASKS. Prints the driver's peak memory growth in MB."""

import sys
from collections.abc import Iterator

import psutil

from paragent import RunConfig, Runners, Task
from paragent.engines import open_engine

SIZE = 10_000
WARM_UP = 2_000
"""Tasks before the memory is measured for the first time, so that what the engine needs once does not count."""
LOOK_EVERY = 500
"""Tasks between two measurements of the memory."""


def answer(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


def tasks(count: int) -> Iterator[Task]:
    return (Task(input=number, agent=answer) for number in range(count))


def main(engine_name: str, count: int) -> None:
    config = RunConfig(engine_name=engine_name, worker_num=2)
    driver = psutil.Process()
    with open_engine(config) as engine:
        for response in Runners.iter_tasks(tasks(WARM_UP), config, engine=engine):
            response.unwrap()
        before = highest = driver.memory_info().rss
        seen = received = 0
        for response in Runners.iter_tasks(tasks(count), config, engine=engine):
            received += len(response.unwrap())
            seen += 1
            if seen % LOOK_EVERY == 0:
                highest = max(highest, driver.memory_info().rss)
    assert (seen, received) == (count, count * SIZE)
    print((highest - before) / 1e6)


main(sys.argv[1], int(sys.argv[2]))
