"""The contract of cluster engines, in addition to the contract of all engines."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from paragent import RunConfig, Runners, Task
from paragent.testing import IsolationContract, agents
from paragent.testing.engine_contract import comparable


def kill_node_agent(path: str) -> str:
    """Kill the node agent once: the process of the cluster that is the worker's parent."""
    if not Path(path).exists():
        Path(path).write_text("killed")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "survived"


class ClusterContract(IsolationContract):
    """The number of workers, and the loss of a node agent."""

    def test_worker_num_is_the_number_of_workers_even_beyond_the_cores(self) -> None:
        tasks = [Task(0.5, agents.sleep_interval, id=str(i)) for i in range(15)]
        responses = self.run(*tasks, worker_num=5, concurrency=1)
        assert len({response.unwrap().pid for response in responses.values()}) == 5

    def test_a_killed_node_agent_costs_one_execution_and_is_replaced(self, tmp_path: Path) -> None:
        response = self.run(Task(str(tmp_path / "marker"), kill_node_agent, id="killer"))["killer"]
        assert response.success, response
        assert (response.answer, response.executions) == ("survived", 2)

    def test_a_killed_node_agent_is_a_lost_worker_if_no_attempt_is_left(self, tmp_path: Path) -> None:
        task = Task(str(tmp_path / "marker"), kill_node_agent, id="killer", max_retries=0)
        fields = comparable(self.run(task)["killer"])
        local = comparable(
            Runners.sync_run(3, agents.exit_at_once, RunConfig(worker_num=1), id="killer", max_retries=0)
        )
        for holder in (fields, local):
            del holder["msg"], holder["error"]["message"], holder["time_cost"]
        assert fields == local

    def test_a_killed_node_agent_loses_no_task(self, tmp_path: Path) -> None:
        killer = Task(str(tmp_path / "marker"), kill_node_agent, id="killer")
        responses = self.run(killer, *(Task(i, agents.echo) for i in range(20)))
        assert all(response.success for response in responses.values()), responses
        assert responses["killer"].answer == "survived"
