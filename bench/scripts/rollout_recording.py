"""Run rollouts with or without recording what they do; print the CPU time and the journal's bytes of one rollout, as JSON.

Everything runs in this process (engine `inline`), so that recording can be replaced and all of its CPU time is counted:
activities, events, and the details and replies of model calls. Arguments: the number of rollouts, a folder, `on` or `off`, and
the address of an endpoint; without an address, the scripted policy solves the tasks.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paragent import RolloutConfig, run_parallel_rollout
from paragent.models import Completion, Model, openai
from paragent.rollout import session, worker
from paragent.rollout.episode import RolloutEpisode
from paragent.rollout.events import EventLog
from paragent.rollout.work_clock import WorkClock
from paragent.store import JOURNAL_FILE, RolloutActivity

AT_A_TIME = 100


class SilentClock(WorkClock):
    """Measures times and records no activities."""

    def _switch(self, activity: RolloutActivity) -> None: ...

    def packed_activity(self) -> bytes:
        return b""


class SilentEpisode(RolloutEpisode):
    """Records of a model call only its times, its token counts and how it ended."""

    async def _recorded(self, requesting: Awaitable[Completion], kind: str, model: Model, **_: Any) -> Completion:
        began = time.monotonic()
        completion = await requesting
        self._add_step(kind, began, usage=completion.usage, finish_reason=completion.finish_reason)
        return completion


class SilentLog(EventLog):
    """Collects no events."""

    def collect(self, *_: object, now: bool = False) -> None: ...

    def derive(self, results: Iterable[object]) -> None: ...


def record_nothing() -> None:
    """Replace everything that records."""
    read_reply = openai.read_reply
    replaced: dict[Any, dict[str, Any]] = {
        worker: {"WorkClock": SilentClock, "RolloutEpisode": SilentEpisode},
        session: {"EventLog": SilentLog},
        openai: {"read_reply": lambda *given: replace(read_reply(*given), response=None)},
    }
    for module, names in replaced.items():
        for name, value in names.items():
            assert hasattr(module, name), f"{module.__name__} has no {name} any more"
            setattr(module, name, value)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def execute(size: int, folder: Path, model: str) -> tuple[float, float]:
    """Run the rollouts; return the CPU seconds and the bytes of the journal."""
    data = folder / f"{size}.jsonl"
    tasks = ({"id": str(n), "question": f"Compute {n} + 1/2.", "answer": f"{2 * n + 1}/2"} for n in range(size))
    data.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    chosen: dict[str, Any] = {"mode": "math", "engine": "inline", "num_rollouts": AT_A_TIME, "fresh": True}
    config = RolloutConfig(**chosen, model=model, data=data, output_dir=folder, run_name="run")
    began = cpu_seconds()
    summary = run_parallel_rollout(config)
    used = cpu_seconds() - began
    assert summary.statuses["completed"] == size, summary
    return used, (folder / "run" / JOURNAL_FILE).stat().st_size


if __name__ == "__main__":
    size, folder, recording = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    model = "demo"
    if sys.argv[4:]:
        os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = sys.argv[4], "any"
        model = "scripted"
    if recording == "off":
        record_nothing()
    first, few = execute(AT_A_TIME, folder, model)
    whole, many = execute(size, folder, model)
    rollouts = size - AT_A_TIME
    print(json.dumps({"cpu_ms": (whole - first) / rollouts * 1e3, "journal_kb": (many - few) / rollouts / 1e3}))
