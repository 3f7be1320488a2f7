"""A custom engine: its workers are started by another command, here with the lowest priority.

The base class provides everything else: one outcome for each call, time limits, the replacement of dead workers. Select the
engine with `RunConfig(cls=PoliteRuntime)`, with `cls="own_engine:PoliteRuntime"`, or by the name of an entry point.
"""

import sys

from paragent import LocalRuntime, RunConfig, Runners, Task
from paragent.engines.local import WorkerSettings


class PoliteRuntime(LocalRuntime):
    """Worker processes with a low scheduling priority."""

    def worker_settings(self) -> WorkerSettings:
        niceness = str(self.config.engine_options.get("niceness", 19))
        return super().worker_settings()._replace(command=("nice", "-n", niceness, sys.executable))


def niceness_of(_: int) -> int:
    import os

    return os.nice(0)


if __name__ == "__main__":
    config = RunConfig(cls=PoliteRuntime, worker_num=2, engine_options={"niceness": 7})
    responses = Runners.sync_run_task([Task(i, niceness_of, id=f"task{i}") for i in range(4)], config)
    for task_id, response in responses.items():
        print(task_id, "ran with niceness", response.answer)
    assert all(response.answer >= 7 for response in responses.values())
