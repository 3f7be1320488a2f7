"""Agents misbehave in every way there is, and every task still gets exactly one response."""

import os
import time
from pathlib import Path

from paragent import RunConfig, Runners, Task


def well(x):
    return x


def raise_an_error(x):
    raise ValueError(f"no idea what {x!r} means")


def hang(x):
    while True:
        pass


def kill_the_worker(x):
    os._exit(1)


def recover_the_second_time(path):
    marker = Path(path)
    if not marker.exists():
        marker.touch()
        os._exit(1)
    marker.unlink()
    return "recovered"


tasks = [Task(input=str(i), agent=well, id=f"well-{i}") for i in range(4)]
tasks += [
    Task(input="x", agent=raise_an_error, id="raises"),
    Task(input="x", agent=hang, id="hangs", timeout=1.0),
    Task(input="x", agent=kill_the_worker, id="kills"),
    Task(input=f"/tmp/paragent-example-{os.getpid()}", agent=recover_the_second_time, id="recovers", max_retries=1),
]
started = time.monotonic()
for response in Runners.iter_tasks(tasks, RunConfig(worker_num=2)):
    print(
        f"{time.monotonic() - started:4.1f} s  {response.id:<9} {response.status:<10} {response.answer or response.msg}"
    )
