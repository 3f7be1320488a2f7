"""Main program of a function that is the agent and runs in a process of its own: `python -m ... MODULE:FUNCTION`.

The function gets the same arguments as in a worker. What it prints goes to stderr, so that stdout has only the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

from paragent._internal.registry import import_object
from paragent.rollout.function_agent import call_agent

__all__ = ["main"]


def main(location: str) -> None:
    """Call the function with the task in `PARAGENT_TASK_FILE` and write its answer to `PARAGENT_ANSWER_FILE`."""
    variables = os.environ
    task = json.loads(Path(variables["PARAGENT_TASK_FILE"]).read_text(encoding="utf-8"))
    arguments = {
        "task": task,
        "base_url": variables["OPENAI_BASE_URL"],
        "api_key": variables["OPENAI_API_KEY"],
        "anthropic_base_url": variables["ANTHROPIC_BASE_URL"],
        "model": variables["PARAGENT_MODEL"],
        "mcp_url": variables["PARAGENT_MCP_URL"],
    }
    with contextlib.redirect_stdout(sys.stderr):
        answer = asyncio.run(call_agent(import_object(location), task["question"], arguments))
    Path(variables["PARAGENT_ANSWER_FILE"]).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
