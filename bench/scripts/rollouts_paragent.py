"""Run as many rollouts as the first argument says; print the seconds from the start of the workers to the last result."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

from paragent import Environment, RolloutConfig, tool
from paragent.rollout.prepare import prepare
from paragent.rollout.session import RolloutSession


class Calculator(Environment):
    """An environment with one tool that returns at once."""

    name = "calculator"
    metric = "contains"

    @tool
    async def calculator(self, expression: Annotated[str, "what to compute"]) -> str:
        """Compute."""
        return "42"


if __name__ == "__main__":
    size, at_a_time, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    data = folder / "tasks.jsonl"
    data.write_text("".join(json.dumps({"id": n, "question": f"6*7, {n}", "answer": "42"}) + "\n" for n in range(size)))
    config = RolloutConfig(
        env="rollouts_paragent:Calculator",
        data=data,
        num_rollouts=at_a_time,
        output_dir=folder / "results",
        run_name="run",
        fresh=True,
    )
    with RolloutSession(prepare(config)) as session:
        began = time.monotonic()
        summary = session.run()
        seconds = time.monotonic() - began
    assert (summary.done, summary.mean) == (size, 1.0), summary
    print(seconds)
