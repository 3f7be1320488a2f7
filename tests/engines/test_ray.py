"""The engine contract on Ray, and the options of the Ray engine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import psutil
import pytest
import ray

from paragent import EngineFailed, RunConfig, Runners, Task
from paragent.engines import open_engine
from paragent.engines.ray import RayCluster
from paragent.testing import agents, programs
from tests.engines.cluster_contract import ClusterContract

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),  # some programs of the suite start their own cluster, slowly on a busy machine
]


@pytest.fixture(scope="module", autouse=True)
def users_ray() -> Iterator[None]:
    """Start a Ray of the user, which the engines use and do not stop; so the suite starts Ray once."""
    for tries_left in (2, 1, 0):
        try:
            ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
            break
        except Exception:
            ray.shutdown()
            if not tries_left:
                raise
    yield
    assert ray.is_initialized(), "an engine stopped a Ray that it had not started"
    ray.shutdown()


class TestRay(ClusterContract):
    settings = {"engine_name": "ray"}  # noqa: RUF012 - annotated as a class variable by the suite


def read_variable(name: str) -> str | None:
    return os.environ.get(name)


def test_ray_options_reach_the_workers() -> None:
    options = {"runtime_env": {"env_vars": {"PARAGENT_TEST": "from runtime_env"}}, "num_cpus": 0.5}
    config = RunConfig(engine_name="ray", worker_num=1, engine_options=options)
    assert Runners.sync_run("PARAGENT_TEST", read_variable, config).answer == "from runtime_env"


def test_missing_resources_raise_an_error_that_names_them() -> None:
    options = {"resources": {"no_such_thing": 1}, "start_timeout": 1.5}
    with pytest.raises(EngineFailed, match="no_such_thing"):
        Runners.sync_run(1, agents.echo, RunConfig(engine_name="ray", worker_num=1, engine_options=options))


def test_no_advice_to_lower_the_workers_is_given_if_they_request_nothing() -> None:
    cluster = RayCluster(RunConfig(engine_name="ray", worker_num=2))
    cluster.start()
    assert "they request no resources" in cluster.shortage()
    assert "worker_num" not in cluster.shortage()


def test_a_cluster_that_requires_a_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        cause = RuntimeError("Failed to connect to GCS: ray.exceptions.AuthenticationError: InvalidAuthToken")
        raise ConnectionError("Failed to connect to Ray cluster") from cause

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"address": f"127.0.0.1:{server.getsockname()[1]}"}
        config = RunConfig(engine_name="ray", in_local=False, engine_options=options)
        with pytest.raises(EngineFailed, match="RAY_AUTH_MODE=token"):
            RayCluster(config).start()


def test_workers_are_reused_by_the_next_run() -> None:
    config = RunConfig(engine_name="ray", worker_num=2)
    with open_engine(config) as engine:
        pids = set()
        for _ in range(3):
            responses = Runners.sync_run_task(
                [Task(0.05, agents.sleep_interval, id=str(i)) for i in range(20)], config, engine=engine
            )
            pids |= {response.unwrap().pid for response in responses.values()}
        assert len(pids) == 2
    programs.wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def long_answer(number: int) -> bytes:
    return number.to_bytes(4, "big") * 25_000


def test_memory_of_the_program_stays_flat_while_answers_stream() -> None:
    """The program receives 400 MB of answers, may grow by a quarter of that, and gets the first answer early."""
    config = RunConfig(engine_name="ray", worker_num=2)
    process = psutil.Process()
    drawn = 0

    def tasks() -> Iterator[Task]:
        nonlocal drawn
        for number in range(4000):
            drawn += 1
            yield Task(number, long_answer, id=str(number))

    least = most = drawn_at_first = 0
    for count, response in enumerate(Runners.iter_tasks(tasks(), config), start=1):
        assert len(response.unwrap()) == 100_000
        drawn_at_first = drawn_at_first or drawn
        if count == 200:
            least = process.memory_info().rss
        if count % 20 == 0:
            most = max(most, process.memory_info().rss)
    assert count == 4000
    assert drawn_at_first < 1000
    assert most - least < 100 << 20, f"the program has grown by {(most - least) >> 20} MB"
