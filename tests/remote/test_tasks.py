"""Remote agents as the agents of tasks, and as sub-agents."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from manyhands import ParallelizableAgent, RpcAgentServerLauncher, RunConfig, Runners, Task
from tests.remote.crew import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def remote(name: str) -> Any:
    return Worker(name, to_dist=True)  # type: ignore[call-arg]


def started(start: Callable[[], Any], clean_up: Callable[[], Any]) -> Any:
    """Start a system that is not ours, again if need be: a machine that others use may be too slow for it once."""
    for _ in range(4):
        try:
            return start()
        except Exception:  # noqa: BLE001 - whatever it was, the last try shows it
            clean_up()
            time.sleep(2.0)
    return start()


@pytest.fixture(scope="module")
def ray_system() -> Iterator[None]:
    import ray

    settings = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "_node_ip_address": "127.0.0.1"}
    started(lambda: ray.init(address="local", **settings), ray.shutdown)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def spark_system() -> Iterator[None]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
    session = started(builder.getOrCreate, lambda: None)
    yield
    session.stop()


@pytest.fixture(params=["inline", "local", "ray", "spark"], scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine by its name; those of other systems with their system."""
    name: str = request.param
    if name in ("ray", "spark"):
        request.getfixturevalue(f"{name}_system")
    return name


@pytest.mark.timeout(400)  # Ray gives up after 30 s if its node is not there, and is then tried again
def test_remote_agents_are_agents_of_tasks_on_every_engine(engine: str, server: RpcAgentServerLauncher) -> None:
    """Alone, on a child and on an independent server, and as the sub-agents of another; one of them fails."""
    child = remote("child")
    independent: Any = Worker("independent", to_dist={"host": server.host, "port": server.port})  # type: ignore[call-arg]
    stopped = remote("stopped")
    stopped.stop().result(10)
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
    assert child.add(1) == 2, "a task that used an agent does not end it"
    assert independent.add(1) == 2


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
