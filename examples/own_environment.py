"""A benchmark with a custom environment and a custom agent that uses no model.

The same on the command line, in this folder:

    paragent rollout --env own_environment:Guessing --agent own_environment:Bisector --data tasks.jsonl --model demo
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from paragent import (
    AgentBase,
    AgentResult,
    BenchmarkTask,
    Environment,
    Episode,
    RolloutConfig,
    ToolResult,
    run_parallel_rollout,
    tool,
)


class Guessing(Environment):
    """Find a number from 1 to 100 with few guesses."""

    name = "guessing"
    metric = "few_guesses"

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        self.guesses, self.number = 0, int(task.answer)
        return await super().open(task, machine)

    @tool
    async def guess(self, number: Annotated[int, "from 1 to 100"]) -> ToolResult:
        """Guess a number; the result says whether it is too small or too large."""
        self.guesses += 1
        if number == self.number:
            return ToolResult("right", ends="found")
        return ToolResult("too small" if number < self.number else "too large")

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float]:
        return {"few_guesses": 1 / max(1, self.guesses)}


class Bisector(AgentBase):
    """Guesses the middle of the remaining range."""

    async def run_episode(self, episode: Episode) -> AgentResult:
        low, high, middle = 1, 100, 50
        while not episode.ended:
            middle = (low + high) // 2
            message = await episode.take(self.say(middle))
            await episode.answer_calls(message["tool_calls"])
            if episode.messages[-1]["content"] == "too small":
                low = middle + 1
            else:
                high = middle - 1
        return AgentResult(str(middle), episode.ended)

    async def say(self, number: int) -> dict[str, Any]:
        call = {"name": "guess", "arguments": json.dumps({"number": number})}
        return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tasks.jsonl"
        tasks = [
            {"id": f"find {number}", "question": "Which number is it?", "answer": number} for number in (50, 7, 99)
        ]
        data.write_text("".join(json.dumps(task) + "\n" for task in tasks))
        config = RolloutConfig(
            env="own_environment:Guessing",
            agent="own_environment:Bisector",
            model="demo",
            data=data,
            output_dir=folder,
            run_name="guesses",
        )
        summary = run_parallel_rollout(config)
        for line in (Path(folder) / "guesses" / "results.jsonl").read_text().splitlines():
            result = json.loads(line)
            print(f"{result['task']}: {result['tool_calls']} guesses, score {result['score']:.2f}")
        print(f"{summary.done} of {summary.rollouts} rollouts done, mean score {summary.mean:.3f}")
