"""A run during which a machine and a worker are killed and a guest hangs: every rollout has a result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from paragent import RolloutConfig, run_parallel_rollout
from paragent.machines.cleanup import owned_processes
from paragent.rollout.live_status import RolloutProgress
from paragent.store import Journal
from paragent.testing import OpenAIServer, Script
from paragent.testing.programs import alive
from tests.waiting import wait_until

TASKS = int(os.environ.get("PARAGENT_CHAOS_TASKS", "20"))
MACHINES, ROLLOUTS = 3, 5


class Chaos:
    """Causes one failure after the other, each after some more results."""

    def __init__(self, cache: Path, live: Path) -> None:
        self._cache, self._live = cache, live
        self._plan = [self._kill_a_machine, self._stop_a_guest, self._kill_a_worker]
        self.victims: list[int] = []
        self.machines: set[int] = set()

    def __call__(self, progress: RolloutProgress) -> None:
        seen = set(self._machines())
        self.machines |= seen
        step = len(self.victims)
        if seen and step < len(self._plan) and progress.done >= (step + 1) * TASKS // 5:
            self._plan[step]()

    def _machines(self) -> dict[int, str]:
        owners = self._cache / "owners/rollout"
        return owned_processes(path.name for path in owners.iterdir()) if owners.is_dir() else {}

    def _kill_a_machine(self) -> None:
        self._hit(next(iter(self._machines())), signal.SIGKILL)

    def _stop_a_guest(self) -> None:
        self._hit(next(iter(self._machines())), signal.SIGSTOP)

    def _kill_a_worker(self) -> None:
        workers = [int(status_file.stem.rpartition("-")[2]) for status_file in self._live.glob("*-*.json")]
        if workers:
            self._hit(workers[0], signal.SIGKILL)

    def _hit(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            self.victims.append(pid)


@pytest.mark.slow
@pytest.mark.timeout(300)  # a guest that hangs is found after a quarter of a minute
def test_a_run_survives_killed_machines_and_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"id": f"t{i}", "question": "?", "answer": "42"}) + "\n" for i in range(TASKS)))
    chosen: dict[str, Any] = {"env": "tests.rollout.test_machines:Room", "data": data, "provider_name": "process"}
    chosen |= {"use_vm_pool": True, "num_vms": MACHINES, "num_rollouts": ROLLOUTS, "workers": 2}
    chaos = Chaos(tmp_path / "cache", tmp_path / "results/run/live")
    with OpenAIServer(Script(default=[{"tool": "look"}, {"tool": "look"}, "42"], latency=0.2)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        config = RolloutConfig(**chosen, output_dir=tmp_path / "results", run_name="run")
        summary = run_parallel_rollout(config, chaos)
        if summary.pending:  # a rollout that failed three times in one session is executed by the next
            summary = run_parallel_rollout(config, chaos)
    assert len(chaos.victims) == 3
    assert (summary.done, summary.pending, summary.statuses["completed"]) == (TASKS, 0, TASKS)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        assert len({result.task for result in journal.results()}) == TASKS
        broken = [result.kind for result in journal.results("final = 0")]
    assert set(broken) <= {"machine", "worker"}
    wait_until(lambda: not any(map(alive, [*chaos.machines, *chaos.victims])))
    assert not any((tmp_path / "cache/owners/rollout").iterdir())
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_STOPPED]
