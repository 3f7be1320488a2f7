"""Remote agents as the agents of tasks, and as sub-agents."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from manyhands import ParallelizableAgent, RunConfig, Runners, Task
from tests.remote.crew import Worker


def remote(name: str) -> Any:
    return Worker(name, to_dist=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_task_with_a_remote_agent(engine: str) -> None:
    agent = remote("far")
    tasks = [Task(input=f"hello {n}", agent=agent, id=str(n)) for n in range(20)]
    responses = Runners.sync_run_task(tasks, RunConfig(engine_name=engine, worker_num=2))
    assert [response.answer for response in responses.values()] == [f"hello {n}" for n in range(20)]
    assert agent.add(1) == 2


def test_the_error_of_a_remote_agent_is_the_tasks() -> None:
    agent = remote("far")
    agent.stop().result(10)
    responses = Runners.sync_run_task([Task(input=1, agent=agent, id="a")], RunConfig(engine_name="inline"))
    assert "AgentStopped" in responses["a"].msg


def test_a_parallel_agent_of_remote_ones() -> None:
    panel = ParallelizableAgent(name="panel", agents=[remote(name) for name in ("ada", "blaise")])
    assert asyncio.run(panel.reply("x")) == {"ada": "x", "blaise": "x"}
    response = Runners.sync_run(input="x", agent=panel, run_conf=RunConfig(worker_num=1))
    assert response.answer == {"ada": "x", "blaise": "x"}


def test_remote_agents_of_a_parallel_agent_work_at_the_same_time() -> None:
    class Sleeper(Worker):
        def reply(self, x: Any = None) -> str:
            time.sleep(0.4)
            return self.name

    agents: list[Any] = [Sleeper(name, to_dist=True) for name in "abcd"]  # type: ignore[call-arg]
    assert [agent.name for agent in agents] == list("abcd")
    started = time.monotonic()
    panel = ParallelizableAgent(name="panel", agents=agents)
    assert asyncio.run(panel.reply("x")) == {name: name for name in "abcd"}
    assert time.monotonic() - started < 1.2
