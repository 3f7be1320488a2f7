"""Run rollouts whose agent asks no model; print the CPU time of one and the memory growth of all processes, as JSON.

What is left is what rollouts cost beyond the requests: environment, tools, score, trajectory, journal, the way there and back.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Annotated, Any

import psutil

from paragent import Environment, RolloutConfig, run_parallel_rollout, tool

TURNS = 5
AT_A_TIME = 200


class Calculator(Environment):
    """An environment with one tool that returns at once."""

    name = "calculator"
    metric = "contains"

    @tool
    async def calculator(self, expression: Annotated[str, "what to compute"]) -> str:
        """Compute."""
        return "42"


class Sure:
    """Calls the tool as often as a model would, and answers."""

    async def run_episode(self, episode: Any) -> str:
        episode.messages.append({"role": "user", "content": episode.question})
        for turn in range(TURNS - 1):
            function = {"name": "calculator", "arguments": '{"expression": "6*7"}'}
            call = {"id": f"call_{turn}", "type": "function", "function": function}
            episode.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            await episode.answer_calls([call])
        return "42"


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Memory:
    """Measures the memory of all processes from time to time, for the first time when they have started."""

    def __init__(self) -> None:
        self.first = self.highest = 0

    def __call__(self, progress: Any) -> None:
        if progress.done < AT_A_TIME:
            return
        driver = psutil.Process()
        now = sum(process.memory_info().rss for process in [driver, *driver.children()])
        self.first = self.first or now
        self.highest = max(self.highest, now)


def execute(size: int, folder: Path, watch: Any = None) -> float:
    """Run the rollouts and return the CPU time used."""
    data = folder / f"{size}.jsonl"
    data.write_text("".join(json.dumps({"id": n, "question": f"6*7, {n}", "answer": "42"}) + "\n" for n in range(size)))
    own = {"env": "rollouts_without_http:Calculator", "agent": "rollouts_without_http:Sure", "model": "demo"}
    config = RolloutConfig(**own, data=data, num_rollouts=AT_A_TIME, output_dir=folder / "results", fresh=True)
    began = cpu_seconds()
    summary = run_parallel_rollout(config, watch)
    assert (summary.done, summary.mean) == (size, 1.0), summary
    return cpu_seconds() - began


if __name__ == "__main__":
    size, folder = int(sys.argv[1]), Path(sys.argv[2])
    memory = Memory()
    start = execute(AT_A_TIME, folder)
    whole = execute(size, folder, memory)
    cpu_ms = (whole - start) / (size - AT_A_TIME) * 1e3
    print(json.dumps({"cpu_ms": cpu_ms, "growth_mb": (memory.highest - memory.first) / 1e6}))
