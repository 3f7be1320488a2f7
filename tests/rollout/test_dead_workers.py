"""A worker that is killed during a rollout: it is logged, shown, and its machine is free at once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import pytest

from paragent import RolloutConfig, run_parallel_rollout, tool
from paragent.cli import main
from paragent.machines.state_machine import PoolStateMachine
from paragent.runners.retry import RetryPolicy
from paragent.store import Journal
from paragent.testing import OpenAIServer, Script
from tests.rollout.test_machines import Room

LEASE = 300.0
"""Seconds after which a holder without heartbeats loses its machine: longer than the test may take."""


class DeadlyRoom(Room):
    """An environment on a machine, with a tool that kills the worker."""

    @tool
    async def kill_worker(self, marker: Annotated[str, "a file that says that it happened"]) -> str:
        """Kill the process of the agent, the first time."""
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "42"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_machine_of_a_killed_worker_is_free_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The only machine has the worker that dies, and another rollout of that worker waits for it."""
    request = PoolStateMachine.request

    def long_request(self: PoolStateMachine, request_id: str, holder: str, _: float, *more: Any) -> Any:
        return request(self, request_id, holder, LEASE, *more)

    monkeypatch.setattr(PoolStateMachine, "request", long_request)
    monkeypatch.setattr("paragent.rollout.blame.RETRIES", RetryPolicy(pause=0.1))
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"id": f"t{i}", "question": "?", "answer": "42"}) + "\n" for i in range(3)))
    kill = {"tool": "kill_worker", "arguments": {"marker": str(tmp_path / "killed")}}
    chosen: dict[str, Any] = {"env": f"{__name__}:DeadlyRoom", "engine": "local", "workers": 1, "num_rollouts": 2}
    machines: dict[str, Any] = {"provider_name": "process", "use_vm_pool": True, "num_vms": 1}
    with OpenAIServer(Script(default=[kill, "It is 42."])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        config = RolloutConfig(data=data, output_dir=tmp_path, run_name="run", model="m", **chosen, **machines)
        summary = run_parallel_rollout(config)
    assert (summary.mean, summary.pending) == (1.0, 0)
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        [lost] = [event for event in journal.worker_events() if event.event == "lost"]
        [killed] = [event for event in journal.machine_events() if event.holder.startswith(lost.worker)]
        [after] = [event for event in journal.machine_events() if event.number == (killed.number or 0) + 1]
    assert (killed.state, after.state) == ("leased", "resetting")
    taken_back = [one.getMessage() for one in caplog.records if "taken back" in one.getMessage()]
    assert taken_back == [f"machine {killed.machine} is taken back: its holder has ended: {killed.holder}"]
    logged = [one.getMessage() for one in caplog.records if one.name == "paragent"]
    assert logged == [f"lost a worker: {lost.detail}"]
    assert "SIGKILL" in lost.detail

    assert list(summary.lost_workers.values()) == [1]
    assert json.loads((tmp_path / "run/summary.json").read_text())["lost_workers"] == summary.lost_workers
    assert main(["show", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "lost workers │ 1: " in shown
    assert "SIGKILL" in shown
