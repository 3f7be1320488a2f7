"""Real clusters with two nodes, of which one is switched off during a run: no task is lost."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.machines import Machine, machines

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN = Path(sys.executable).parent

PROGRAM = """
import json, sys
import beside
from paragent import RunConfig, Runners, Task

config = RunConfig(in_local=False, worker_num=2, **SETTINGS)
tasks = [Task(i, beside.work if i % 2 else beside.work_async, id=str(i)) for i in range(400)]
places = {}
for response in Runners.iter_tasks(tasks, config):
    assert response.success, response
    assert response.answer == beside.Answer(int(response.id)), response
    places.setdefault(response.worker, []).append(response.executions)
    print(json.dumps({"id": response.id, "worker": response.worker, "attempts": response.executions}), flush=True)
"""

BESIDE = """
import asyncio, dataclasses, threading, time
LOCK = threading.Lock()  # cannot be pickled: the module must be sent as source

@dataclasses.dataclass
class Answer:
    number: int

def work(number):
    import beside_too
    with LOCK:
        time.sleep(0.02)
    return beside_too.wrap(number)

async def work_async(number):
    await asyncio.sleep(0.05)
    return Answer(number)
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),  # a cluster starts slowly on a busy machine, and may need a second try
]

BESIDE_TOO = """
def wrap(number):
    from beside import Answer
    return Answer(number)
"""


def run_and_switch_off(folder: Path, settings: dict[str, Any], victim: Machine, **environment: str) -> None:
    """Run the program on a cluster; switch a node off once both have answered; every task must have one answer."""
    folder.mkdir()
    (folder / "program.py").write_text(f"SETTINGS = {settings!r}\n{PROGRAM}")
    (folder / "beside.py").write_text(BESIDE)
    (folder / "beside_too.py").write_text(BESIDE_TOO)
    process = subprocess.Popen(
        [sys.executable, str(folder / "program.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd="/",
    )
    answers: dict[str, str] = {}
    workers: set[str] = set()
    switched_off = False
    try:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            assert answer["id"] not in answers, "a task was answered twice"
            answers[answer["id"]] = answer["worker"]
            workers.add(answer["worker"])
            if len(workers) == 2 and not switched_off:
                switched_off = True
                victim.switch_off()
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert switched_off, f"only one worker ever answered: {workers}"
    assert len(answers) == 400
    assert "Traceback" not in errors
    assert "lost a worker: " in errors, errors


@pytest.fixture
def ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Machine]]:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Paths of Ray's sockets are limited to 107 characters, and pytest's folders use most of them.
    with tempfile.TemporaryDirectory(prefix="mh", ignore_cleanup_errors=True) as short, machines(2, tmp_path) as nodes:
        head, *others = nodes
        start = (str(BIN / "ray"), "start", "--block", "--disable-usage-stats", f"--temp-dir={short}")
        head.bring_up(
            "Ray runtime started",
            *start,
            "--head",
            f"--node-ip-address={head.address}",
            "--port=6399",
            "--num-cpus=0",
            "--include-dashboard=false",
        )
        for node in others:  # one after the other: each imports many modules and has Ray's time limits
            here = f"--node-ip-address={node.address}"
            node.bring_up("Ray runtime started", *start[:-1], f"--address={head.address}:6399", here, "--num-cpus=1")
        yield nodes


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[list[Machine]]:
    import pyspark

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with machines(2, tmp_path) as nodes:
        master, *workers = nodes
        environment = {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        deploy = "org.apache.spark.deploy"
        master.bring_up(
            "I have been elected leader",
            spark_class,
            f"{deploy}.master.Master",
            "--host",
            master.address,
            "--port",
            "7099",
            "--webui-port",
            "0",
            **environment,
            SPARK_LOCAL_IP=master.address,
        )
        for node in workers:
            node.bring_up(
                "Successfully registered with master",
                spark_class,
                f"{deploy}.worker.Worker",
                "--host",
                node.address,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(tmp_path / node.name),
                "--webui-port",
                "0",
                f"spark://{master.address}:7099",
                **environment,
                SPARK_LOCAL_IP=node.address,
            )
        yield nodes


@pytest.mark.ray
def test_a_ray_cluster_that_loses_a_node_loses_no_task(ray_cluster: list[Machine], tmp_path: Path) -> None:
    head, _, victim = ray_cluster
    settings = {"engine_name": "ray", "engine_options": {"address": f"{head.address}:6399"}}
    run_and_switch_off(tmp_path / "program", settings, victim)


@pytest.mark.spark
def test_a_spark_cluster_that_loses_a_node_loses_no_task(spark_cluster: list[Machine], tmp_path: Path) -> None:
    master, _, victim = spark_cluster
    settings = {
        "engine_name": "spark",
        "engine_options": {
            "master": f"spark://{master.address}:7099",
            "python": sys.executable,
            "conf": {"spark.executor.memory": "512m"},
        },
    }
    run_and_switch_off(tmp_path / "program", settings, victim)
