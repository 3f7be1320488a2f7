"""What holds on every cluster engine beyond the contract of all engines."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from paragent import RunConfig, Runners, Task
from paragent.testing import IsolationContract
from paragent.testing import agents as behaviours
from paragent.testing.engine_contract import comparable


def kill_the_parent(path: str) -> str:
    """Kill the station itself, once: the process of the cluster's system that holds the worker."""
    if not Path(path).exists():
        Path(path).write_text("killed")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "survived"


class ClusterContract(IsolationContract):
    """The whole contract, how many workers there are, and what becomes of a station that is killed."""

    def test_worker_num_is_the_number_of_workers_even_beyond_the_cores(self) -> None:
        tasks = [Task(0.5, behaviours.stay, id=str(i)) for i in range(15)]
        responses = self.run(*tasks, worker_num=5, concurrency=1)
        assert len({response.unwrap().pid for response in responses.values()}) == 5

    def test_a_killed_station_costs_an_attempt_and_gets_a_successor(self, tmp_path: Path) -> None:
        response = self.run(Task(str(tmp_path / "marker"), kill_the_parent, id="killer"))["killer"]
        assert response.success, response
        assert (response.answer, response.attempts) == ("survived", 2)

    def test_a_killed_station_is_a_lost_worker_where_no_attempt_is_left(self, tmp_path: Path) -> None:
        task = Task(str(tmp_path / "marker"), kill_the_parent, id="killer", max_retries=0)
        fields = comparable(self.run(task)["killer"])
        local = comparable(
            Runners.sync_run(3, behaviours.exit_at_once, RunConfig(worker_num=1), id="killer", max_retries=0)
        )
        for holder in (fields, local):
            del holder["msg"], holder["error"]["message"], holder["time_cost"]
        assert fields == local

    def test_a_station_that_is_killed_among_others_loses_nothing(self, tmp_path: Path) -> None:
        killer = Task(str(tmp_path / "marker"), kill_the_parent, id="killer")
        responses = self.run(killer, *(Task(i, behaviours.echo) for i in range(20)))
        assert all(response.success for response in responses.values()), responses
        assert responses["killer"].answer == "survived"
