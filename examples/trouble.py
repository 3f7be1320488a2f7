"""Agents that raise, hang or kill their worker: every task gets exactly one response."""

import os
import time
from pathlib import Path

from paragent import RunConfig, Runners, Task


def succeed(x: str) -> str:
    return x


def raise_error(x: str) -> None:
    raise ValueError(f"cannot parse {x!r}")


def hang(x: str) -> None:
    while True:
        pass


def kill_worker(x: str) -> None:
    os._exit(1)


def fail_once(path: str) -> str:
    marker = Path(path)
    if not marker.exists():
        marker.touch()
        os._exit(1)
    marker.unlink()
    return "recovered"


tasks = [Task(input=str(i), agent=succeed, id=f"well-{i}") for i in range(4)]
tasks += [
    Task(input="x", agent=raise_error, id="raises"),
    Task(input="x", agent=hang, id="hangs", timeout=1.0),
    Task(input="x", agent=kill_worker, id="kills"),
    Task(input=f"/tmp/paragent-example-{os.getpid()}", agent=fail_once, id="recovers", max_retries=1),
]
started = time.monotonic()
for response in Runners.iter_tasks(tasks, RunConfig(worker_num=2)):
    print(
        f"{time.monotonic() - started:4.1f} s  {response.id:<9} {response.status:<10} {response.answer or response.msg}"
    )
