"""The machine of a worker that dies is reset at once, if the program that supervises the worker owns the pool."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from paragent import Runners, Task, VMPoolManager
from paragent.machines.lease import Pool
from tests.engines.thread_cluster import ThreadRuntime
from tests.waiting import wait_until

LEASE = 3000.0
"""Seconds after which a holder without heartbeats loses its machine: longer than the test may take."""


def kill_once_with_a_machine(given: tuple[Pool, str, str]) -> str:
    """Kill this worker, and its node agent if that is meant; the second time, return."""
    pool, marker, victim = given
    with pool.lease(timeout=60, duration=LEASE) as machine:
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getppid() if victim == "node agent" else os.getpid(), signal.SIGKILL)
            signal.pause()
        return str(machine.execute("ls").output)


def hold_a_machine(given: tuple[Pool, str]) -> float:
    """Hold a machine until the other worker has died and its task has got a machine again."""
    pool, ended = given
    lease = pool.allocate(timeout=60, duration=LEASE)
    wait_until(Path(ended).exists, 60)
    left: float = lease.renew()
    lease.release()
    return left


ENGINES: list[Any] = [
    pytest.param({}, "worker", id="local"),
    pytest.param({"reuse_process": False}, "worker", id="single use"),
    pytest.param({"cls": ThreadRuntime}, "worker", id="node agents"),
    *(
        pytest.param(
            {"engine_name": engine},
            victim,
            id=f"{engine}, {victim}",
            marks=[getattr(pytest.mark, engine), pytest.mark.nightly],
        )
        for engine in ("ray", "spark")
        for victim in ("worker", "node agent")
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("chosen", "victim"), ENGINES)
def test_the_machine_of_a_dead_worker_is_free_at_once_and_another_worker_keeps_its_own(
    chosen: dict[str, Any], victim: str, tmp_path: Path
) -> None:
    marker, ended = tmp_path / "killed", tmp_path / "ended"
    with VMPoolManager("process", 2, spares=0, name=f"dead-{os.getpid()}") as pool:
        pool.serve()
        tasks = [
            Task((pool, str(ended)), hold_a_machine, id="holder", max_retries=0),
            Task((pool, str(marker), victim), kill_once_with_a_machine, id="killer"),
        ]
        responses = {}
        for response in Runners.iter_tasks(tasks, worker_num=2, concurrency=1, **chosen):
            responses[response.id] = response
            ended.touch()
    assert responses["killer"].unwrap() == ""
    assert responses["killer"].executions == 2
    assert responses["holder"].unwrap() > LEASE / 2
    assert "WorkerLost" in {error.type for error in responses["killer"].earlier_errors}
