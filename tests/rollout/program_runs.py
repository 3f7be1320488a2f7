"""Runs of programs as agents, for tests: a project folder, a scripted endpoint, one rollout in this process."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from paragent import RolloutConfig, RolloutWorker
from paragent.store import RolloutResult
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script

__all__ = ["ASK", "FUNCTIONS", "TASK", "USER_KEY", "Project", "program_step", "trajectory_of"]

TASK = BenchmarkTask("1", "What is 6 times 7?", "42", {"level": "easy", "solution": "it is 42"})
USER_KEY = "the-key-of-the-user"
ASK = """
import json, os, sys, urllib.request

def ask(messages, **fields):
    body = json.dumps({"model": os.environ["PARAGENT_MODEL"], "messages": messages, **fields}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
"""
"""A client of the gateway for programs: `ask(messages)` returns the reply."""

FUNCTIONS = """
import os

def answer(question, base_url, model, task):
    print("printed")
    return f"{question} {base_url == os.environ['OPENAI_BASE_URL']} {model} {task['id']} {os.getpid()}"

async def fails(question):
    raise ValueError("cannot answer")

class Agent:
    def __call__(self, question):
        return ""
"""
"""A module with functions and a class as agents."""


class Project:
    """A folder of a user, which is the current folder of the run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o755)  # pytest's folders are private, and root runs agents in the sandbox as another user
        patch.chdir(folder)
        patch.syspath_prepend(folder)  # as the command line does
        patch.setenv("OPENAI_API_KEY", USER_KEY)
        self._patch = patch

    def write(self, name: str, text: str) -> Path:
        """Write a file that everybody can read."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        return path

    def python(self, code: str, name: str = "my_agent.py") -> str:
        """Write an agent that can `ask` the gateway, and return the value for `--agent`."""
        self.write(name, f"{ASK}\n{code}")
        return f"cmd: {shlex.quote(sys.executable)} {name}"

    def run(self, agent: str, server: OpenAIServer | None = None, **settings: Any) -> RolloutResult:
        """Execute one rollout."""
        if server is None:
            with OpenAIServer(Script(default="42")) as scripted:
                return self.run(agent, scripted, **settings)
        return self.worker(agent, server, **settings).run(TASK)

    def worker(self, agent: str, server: OpenAIServer, **settings: Any) -> RolloutWorker:
        """Return a worker for rollouts."""
        self._patch.setenv("OPENAI_BASE_URL", server.url)
        given = {"mode": "math", "metric": "contains", "model": "scripted", "timeout": 60, **settings}
        return RolloutWorker(RolloutConfig(agent=agent, **given))


def trajectory_of(result: RolloutResult) -> Any:
    """Return the trajectory of a result."""
    assert result.trajectory is not None
    return unpack_trajectory(result.trajectory)


def program_step(result: RolloutResult) -> dict[str, Any]:
    """Return the only step of a program."""
    [step] = [step for step in trajectory_of(result)["steps"] if step["kind"] == "program"]
    return dict(step)
