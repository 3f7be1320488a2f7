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
    """The number of workers, and the loss of a node agent.

    Node agents and workers are the same on all clusters, so the whole contract is checked with node agents in threads
    (test_node_agents.py). On a real cluster, `make test` checks what the cluster itself does: it starts and replaces node agents,
    sends code, files and variables to them, and stops them. `make test-integrations` checks it for programs of their own.
    """

    differs = frozenset(
        {
            "test_responses_are_keyed_by_id_in_input_order",
            "test_many_tasks_all_have_a_response",
            "test_large_inputs_and_answers_are_transferred",
            "test_responses_have_the_same_fields_as_on_the_local_engine",
            "test_agents_in_main_and_in_modules_next_to_the_script",
            "test_agents_in_notebook_cells_inside_a_running_event_loop",
            "test_prints_and_logs_are_labelled_with_their_task",
            "test_tasks_have_the_environment_variables_and_the_directory_of_the_program",
            "test_leaving_the_iteration_early_stops_the_remaining_tasks",
            "test_cancelling_an_async_run_stops_it",
            "test_close_is_idempotent",
            "test_python_code_that_hangs_loses_its_worker",
            "test_a_killed_worker_costs_one_execution",
            "test_ctrl_c_cancels_unfinished_tasks_lets_async_code_clean_up_and_leaves_no_process",
            "test_a_second_ctrl_c_ends_at_once",
            "test_workers_end_when_the_program_is_killed",
            "test_worker_num_is_the_number_of_workers_even_beyond_the_cores",
            "test_a_killed_node_agent_costs_one_execution_and_is_replaced",
            "test_a_killed_node_agent_is_a_lost_worker_if_no_attempt_is_left",
            "test_a_killed_node_agent_loses_no_task",
        }
    )
    """What may differ on a cluster. All else is marked as nightly (distribution.py)."""
    programs = frozenset(
        {
            "test_agents_in_main_and_in_modules_next_to_the_script",
            "test_agents_in_notebook_cells_inside_a_running_event_loop",
            "test_ctrl_c_cancels_unfinished_tasks_lets_async_code_clean_up_and_leaves_no_process",
            "test_a_second_ctrl_c_ends_at_once",
            "test_workers_end_when_the_program_is_killed",
        }
    )
    """What starts the cluster in a program of its own, which takes ten seconds each. It is marked as integration."""

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
