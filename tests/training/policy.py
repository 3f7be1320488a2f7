"""An environment and an agent whose tasks say what happens to them, for tests of training."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from paragent import AgentBase, BenchmarkTask, Environment, EnvironmentFailed, RolloutConfig, tool
from paragent.agents.chat import AgentResult, ChatAgent
from paragent.errors import EndpointDown

HERE = "tests.training.policy"
LOOK = {"tool": "look", "arguments": {}}
NO_TOKENS = {"return_token_ids": False, "logprobs": False}
"""Fields of requests with which the scripted endpoint behaves as one that cannot return token ids."""


class Room(Environment):
    """Its tasks say in their metadata: `fails`, how often infrastructure fails; `breaks`, how many executions have failed when
    unexpected errors end; `unscored`, a file without which scoring fails; `waits`, a file that a rollout waits for."""

    name = "room"
    metric = "exact_match"

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        """Fail as the task says: its first executions, of all attempts together."""
        self._awaited = task.metadata.get("waits")
        if "fails" in task.metadata:
            folder = Path(task.metadata["folder"])
            executions = len(list(folder.glob(f"{task.id}-*")))
            (folder / f"{task.id}-{executions}").touch()
            if executions < task.metadata["fails"]:
                raise EnvironmentFailed("as the task says")
            if executions < task.metadata.get("breaks", 0):
                raise ConnectionResetError("as the task says")
        return await super().open(task, machine)

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> Any:
        """Fail if the file of the task does not exist, and create it."""
        if (unscored := task.metadata.get("unscored")) and not Path(unscored).exists():
            Path(unscored).touch()
            raise KeyError("as the task says")
        return await super().score(task, answer, transcript)

    @tool
    async def look(self) -> str:
        """Look around; wait for the file of the task."""
        while self._awaited and not Path(self._awaited).exists():
            await asyncio.sleep(0.01)
        return "a room"


class Buggy(AgentBase):
    """Does what the question says: `raise`, `hang`, `rewrite` its history, `absorb` a failure of the endpoint, or nothing."""

    async def run_episode(self, episode: Any) -> AgentResult:
        if "absorb" in episode.question:
            try:
                await episode.complete()
            except EndpointDown:
                await asyncio.sleep(3600 if "wait" in episode.question else 0)
                return AgentResult("I give up.")
        result = await ChatAgent().run_episode(episode)
        if "raise" in episode.question:
            raise ValueError("a bug of the agent")
        if "hang" in episode.question:
            await asyncio.sleep(3600)
        if "rewrite" in episode.question:
            episode.messages[:] = [{"role": "user", "content": "summary"}]
            await episode.complete()
        return result


def config(folder: Path, **settings: Any) -> RolloutConfig:
    """Return the settings of a run in a folder."""
    chosen: dict[str, Any] = {
        "env": f"{HERE}:Room",
        "agent": f"{HERE}:Buggy",
        "model": "policy",
        "output_dir": folder / "results",
        "run_name": "run",
        "num_rollouts": 8,
        "workers": 1,
        "timeout": 60.0,
    }
    return RolloutConfig(**(chosen | settings))


def task(name: str, question: str = "what?", **metadata: Any) -> BenchmarkTask:
    """Return a task whose right answer is 42."""
    return BenchmarkTask(name, question, "42", metadata)


def run_directory_json(folder: Path, name: str) -> Any:
    """Return the content of a JSON file of the run directory."""
    return json.loads((folder / "results" / "run" / name).read_text())
