"""Remote agents in tasks and in parallel agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paragent import ParallelizableAgent, RpcAgentServerLauncher, RunConfig, Runners, Task
from tests.remote.agents import Worker
from tests.waiting import wait_until


def remote(name: str) -> Any:
    return Worker(name, to_dist=True)


@pytest.mark.slow
@pytest.mark.timeout(300)  # a cluster's processes start slowly where much else runs
@pytest.mark.parametrize(
    "engine",
    [
        "inline",
        "local",
        pytest.param("ray", marks=pytest.mark.ray),
        pytest.param("spark", marks=pytest.mark.spark),
    ],
)
def test_tasks_can_use_remote_agents(engine: str, server: RpcAgentServerLauncher) -> None:
    """Agents in a child process and on an external server, alone and in a parallel agent; one of them fails."""
    child = remote("child")
    independent: Any = Worker("independent", to_dist={"host": server.host, "port": server.port})
    stopped = remote("stopped")
    stopped.stop().result(60)
    panel = ParallelizableAgent(name="panel", agents=[child, independent])
    tasks = [
        *(Task(input=f"hello {n}", agent=(child, independent)[n % 2], id=f"alone {n}") for n in range(10)),
        *(Task(input=n, agent=panel, id=f"panel {n}") for n in range(4)),
        Task(input=1, agent=stopped, id="stopped"),
    ]
    config = RunConfig(engine_name=engine, worker_num=1 if engine == "inline" else 2)
    responses = Runners.sync_run_task(tasks, config)
    assert [responses[f"alone {n}"].unwrap() for n in range(10)] == [f"hello {n}" for n in range(10)]
    for n in range(4):
        assert responses[f"panel {n}"].unwrap() == {"child": n, "independent": n}
    assert not responses["stopped"].success
    assert "AgentStopped" in responses["stopped"].msg
    assert child.add(1) == 2, "the agent still works after the task"
    assert independent.add(1) == 2


def test_the_error_of_a_remote_agent_is_the_error_of_the_task() -> None:
    agent = remote("far")
    agent.stop().result(60)
    responses = Runners.sync_run_task([Task(input=1, agent=agent, id="a")], RunConfig(engine_name="inline"))
    assert "AgentStopped" in responses["a"].msg


def test_a_parallel_agent_can_use_remote_agents() -> None:
    panel = ParallelizableAgent(name="panel", agents=[remote(name) for name in ("ada", "blaise")])
    assert asyncio.run(panel.reply("x")) == {"ada": "x", "blaise": "x"}
    response = Runners.sync_run(input="x", agent=panel, run_conf=RunConfig(worker_num=1))
    assert response.answer == {"ada": "x", "blaise": "x"}


@pytest.mark.slow
def test_remote_agents_of_a_parallel_agent_run_concurrently(tmp_path: Path) -> None:
    class Meeting(Worker):
        def reply(self, x: Any = None) -> str:
            folder = Path(x.content)
            (folder / self.name).touch()
            wait_until(lambda: len(list(folder.iterdir())) == 4)
            return self.name

    agents: list[Any] = [Meeting(name, to_dist=True) for name in "abcd"]
    assert [agent.name for agent in agents] == list("abcd")
    panel = ParallelizableAgent(name="panel", agents=agents)
    assert asyncio.run(panel.reply(str(tmp_path))) == {name: name for name in "abcd"}
