"""Fault injection: runs sample tasks on desktops, kills a machine, stops a machine and kills a worker meanwhile.

    python -m bench.chaos                                      # 60 tasks on QEMU desktops; without KVM this takes many minutes
    python -m bench.chaos --provider-name process --tasks 20   # on desktops that are processes of this host

It succeeds if every task is scored and no process is left. There is no comparison and no time target.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from paragent import RolloutConfig, run_parallel_rollout
from paragent.demo.samples import sample_path
from paragent.errors import Interrupted, MachineFailed
from paragent.machines.cleanup import cache_folder, owned_processes
from paragent.machines.guest_client import GuestRequest
from paragent.store import Journal
from paragent.testing.programs import alive, wait_until

if TYPE_CHECKING:
    from paragent.rollout.live_status import RolloutProgress
    from paragent.store import Summary

__all__ = ["main"]

_RUN = "chaos"
_ROLLOUTS, _MACHINES = 5, 3
_TASK_SECONDS = 1800.0
"""Seconds of work for one task, which takes a minute on an emulated desktop that shares its core."""
_STATE_SECONDS = 3.0


@dataclass(slots=True)
class Strike:
    """One injected fault."""

    what: str
    pid: int
    at: float
    done: int
    gone: float | None = None
    """When the affected process had ended, in seconds since the start of the run; None: it is still there."""

    def __str__(self) -> str:
        after = "still there" if self.gone is None else f"gone {self.gone - self.at:.0f} s later"
        return f"{self.at:5.0f} s, {self.done} results: {self.what} (process {self.pid}, {after})"


class Chaos:
    """Injects three faults, each after another tenth of the results."""

    def __init__(self, tasks: int, live: Path) -> None:
        self._tasks, self._live = tasks, live
        self._plan = [self._kill_a_machine, self._stop_a_guest, self._kill_a_worker]
        self.strikes: list[Strike] = []
        self.runs: set[str] = set()
        self.machines: set[int] = set()
        self.workers: set[int] = set()

    def __call__(self, progress: RolloutProgress) -> None:
        """Record processes, and inject the next fault when it is due; a progress function for `run_parallel_rollout`."""
        here = f"rollout-{os.getpid()}-"
        self.runs |= {path.name for path in cache_folder("owners", "rollout").iterdir() if path.name.startswith(here)}
        machines = owned_processes(self.runs)
        self.machines |= machines.keys()
        self.workers |= set(self._active_workers())
        for strike in self.strikes:
            if strike.gone is None and not alive(strike.pid):
                strike.gone = progress.seconds
        number = len(self.strikes)
        if number < len(self._plan) and progress.done >= (number + 1) * self._tasks // 10:
            hit = self._plan[number](machines)
            if hit is not None:
                self.strikes.append(Strike(*hit, progress.seconds, progress.done))
                print(f"{progress.seconds:5.0f} s, {progress.done} results: {hit[0]}", flush=True)

    def _kill_a_machine(self, machines: dict[int, str]) -> tuple[str, int] | None:
        for pid in machines:
            if _is_leased(pid):
                os.kill(pid, signal.SIGKILL)
                return f"machine {machines[pid]} is killed", pid
        return None

    def _stop_a_guest(self, machines: dict[int, str]) -> tuple[str, int] | None:
        for pid in machines:
            if _is_leased(pid):
                os.kill(pid, signal.SIGSTOP)
                return f"machine {machines[pid]} is stopped", pid
        return None

    def _kill_a_worker(self, _: dict[int, str]) -> tuple[str, int] | None:
        for pid in self._active_workers():
            if pid != os.getpid() and alive(pid):
                os.kill(pid, signal.SIGKILL)
                return "a worker is killed", pid
        return None

    def _active_workers(self) -> list[int]:
        return [int(status_file.stem.rpartition("-")[2]) for status_file in self._live.glob("*.json")]


def _is_leased(pid: int) -> bool:
    """Return whether a process belongs to a machine that is leased."""
    folder = Path(f"/proc/{pid}/cwd")
    if (folder / "home").is_dir():  # a machine that is a process
        return (folder / "home/.paragent-marker").exists()
    try:
        secret, listening = (folder / "secret").read_text(), psutil.Process(pid).net_connections("tcp")
    except (OSError, psutil.Error):
        return False
    for port in (each.laddr.port for each in listening if each.status == psutil.CONN_LISTEN):
        try:
            request = GuestRequest("127.0.0.1", port, "GET", "/paragent/state", token=secret, timeout=_STATE_SECONDS)
            state = request.send().json()
        except MachineFailed:  # another port, or a machine that is paused
            continue
        if isinstance(state, dict) and state.get("held"):
            return True
    return False


def _left(chaos: Chaos) -> list[str]:
    """Return descriptions of the processes and folders that should be gone."""
    found = [f"process {pid} of machine {name}" for pid, name in owned_processes(chaos.runs).items()]
    found += [f"worker {pid}" for pid in chaos.workers - {os.getpid()} if alive(pid)]
    found += [f"child {child.pid}: {' '.join(child.cmdline()[:3])}" for child in psutil.Process().children(True)]
    folders = cache_folder("owners", "rollout").iterdir()
    return found + [f"folder {path}" for path in folders if path.name in chaos.runs]


def _facts(path: Path, summary: Summary, chaos: Chaos) -> dict[str, Any]:
    with Journal(path / "journal.sqlite", read_only=True) as journal:
        results = list(journal.results())
        broken = Counter(result.kind for result in journal.results("final = 0"))
    return {
        "results": len(results),
        "scored": sum(result.score is not None for result in results),
        "mean score": summary.mean,
        "seconds": round(summary.seconds),
        "executions that infrastructure ended": dict(broken),
        "machines": summary.machines,
        "machine processes": len(chaos.machines),
        "worker processes": len(chaos.workers),
        "left": _left(chaos),
    }


def main() -> int:
    """Run the rollouts, inject faults and report; return 0 if every task was scored and nothing is left."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description="Inject faults while rollouts run.")
    parser.add_argument("--provider-name", default="qemu", choices=["qemu", "process"])
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--fresh", action="store_true", help="start again instead of continuing a run that was stopped")
    parser.add_argument("--output-dir", type=Path, default=Path("results"))
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    at_qemu = options.provider_name == "qemu"
    machines: dict[str, Any] = (
        {"path_to_vm": "desktop", "vm_option": {"network": "none"}} if at_qemu else {"vm_option": {"desktop": "true"}}
    )
    config = RolloutConfig(
        mode="osworld",
        data=sample_path("osworld"),
        limit=options.tasks,
        model="demo",
        observation_type="a11y_tree",
        engine=options.engine,
        num_rollouts=_ROLLOUTS,
        num_vms=_MACHINES,
        use_vm_pool=True,
        provider_name=options.provider_name,
        timeout=_TASK_SECONDS,
        output_dir=options.output_dir,
        run_name=_RUN,
        fresh=options.fresh,
        **machines,
    )
    chaos = Chaos(options.tasks, options.output_dir / _RUN / "live")
    try:
        summary = run_parallel_rollout(config, chaos)
    except Interrupted:
        print("stopped; the same command continues")
        return 130
    with contextlib.suppress(TimeoutError):  # what is left then is reported
        wait_until(lambda: not _left(chaos))
    facts = _facts(options.output_dir / _RUN, summary, chaos)
    print("\n".join(map(str, chaos.strikes)))
    print(json.dumps(facts, indent=2))
    whole = facts["scored"] == options.tasks and summary.pending == 0
    return 0 if whole and len(chaos.strikes) == 3 and not facts["left"] else 1


if __name__ == "__main__":
    sys.exit(main())
