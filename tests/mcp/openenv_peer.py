"""Programs that use the real package `openenv`. They run in the environment `.venv-openenv`, without paragent.

`python openenv_peer.py serve guess|tools PORT`: a server. `python openenv_peer.py client URL TOKEN`: a client, prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


class GuessAction(Action):  # type: ignore[misc]
    """A guess of the number."""

    guess: int


class GuessObservation(Observation):  # type: ignore[misc]
    """What is known after a guess."""

    hint: str


class GuessEnvironment(Environment):  # type: ignore[misc]
    """A number to find; the reward is 1 when it is found."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._secret, self._state = 7, State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, secret: int = 7, **_: Any
    ) -> GuessObservation:
        self._secret, self._state = secret, State(episode_id=episode_id)
        return GuessObservation(hint="guess a number from 1 to 10", reward=0.0)

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: Any) -> GuessObservation:
        self._state.step_count += 1
        if action.guess == 0:
            raise RuntimeError("zero is not a number from 1 to 10")
        if action.guess == self._secret:
            return GuessObservation(hint="found", reward=1.0, done=True)
        return GuessObservation(hint="higher" if action.guess < self._secret else "lower", reward=0.25)

    @property
    def state(self) -> State:
        return self._state


class ToolsEnvironment(MCPEnvironment):  # type: ignore[misc]
    """An environment whose actions are calls of MCP tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("tools")

        @tools.tool  # type: ignore[untyped-decorator]
        def shout(text: str) -> str:
            """Return the text in capital letters."""
            return text.upper()

        super().__init__(tools)
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self._state = State(episode_id=episode_id)
        return Observation(metadata={"ready": True})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        return self._rewarded(super().step(action, timeout_s, **given))

    async def step_async(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        return self._rewarded(await super().step_async(action, timeout_s, **given))

    def _rewarded(self, observation: Observation) -> Observation:
        if isinstance(observation, CallToolObservation):
            observation.reward = 0.5
        return observation

    @property
    def state(self) -> State:
        return self._state


def serve(kind: str, port: int) -> None:
    if kind == "guess":
        app = create_fastapi_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=8)
    else:
        app = create_fastapi_app(ToolsEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


async def use(url: str, token: str) -> dict[str, Any]:
    """Use a server with both clients of the package and return what they got."""
    headers = {"Authorization": f"Bearer {token}"}
    got: dict[str, Any] = {}
    async with GenericEnvClient(base_url=url, headers=headers) as client:
        first = await client.reset(task_id="b")
        got["question"] = first.observation["question"]
        listed = await client.step({"type": "list_tools"})
        got["tools"] = [tool["name"] for tool in listed.observation["tools"]]
        called = await client.step({"type": "call_tool", "tool_name": "calculator", "arguments": {"expression": "6*7"}})
        got["called"] = [called.observation["result"], called.reward, called.done]
        failed = await client.step({"type": "call_tool", "tool_name": "nothing"})
        got["failed"] = failed.observation["error"]["message"]
        got["state"] = await client.state()
        last = await client.step({"type": "answer", "answer": "It is 42."})
        got["last"] = [last.reward, last.done]
        again = await client.reset(seed=0)
        got["again"] = [again.observation["question"], again.done]
        wrong = await client.step({"type": "answer", "answer": "no idea"})
        got["wrong"] = [wrong.reward, wrong.done]
    async with MCPToolClient(base_url=url, headers=headers) as tools:
        got["mcp_tools"] = [tool.name for tool in await tools.list_tools()]
        result = await tools.call_tool("calculator", expression="1")
        got["mcp_called"] = result["content"][0]["text"]
        await tools.reset(task_id="a")
    return got


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        print(json.dumps(asyncio.run(use(sys.argv[2], sys.argv[3]))))
