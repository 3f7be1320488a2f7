"""The same rollouts with inspect_ai, with its default agent loop; runs in its own environment."""

import sys
import time
from pathlib import Path

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def calculator():
    async def execute(expression: str) -> str:
        """Compute.

        Args:
            expression: what to compute
        """
        return "42"

    return execute


if __name__ == "__main__":
    size, at_a_time, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    samples = [Sample(id=n + 1, input=f"6*7, {n}", target="42") for n in range(size)]
    task = Task(dataset=samples, solver=[use_tools(calculator()), generate()], scorer=includes())
    began = time.monotonic()
    logs = evaluate(
        task,
        model="openai/scripted",
        model_args={"responses_api": False},
        max_samples=at_a_time,
        max_connections=at_a_time,
        log_dir=str(folder / "logs"),
        display="none",
    )
    assert logs[0].status == "success", logs[0].error
    print(time.monotonic() - began)
