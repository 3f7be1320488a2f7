"""The `mcp` route of the gateway: agents with their own loop use the tools of their rollout by the official client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from paragent import Environment, EnvironmentFailed, RolloutConfig, RolloutWorker, tool
from paragent.envs import ToolResult
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script
from tests.mcp.servers import PNG

HERE = "tests.mcp.test_gateway_tools"
SERVER = str(Path(__file__).with_name("servers.py"))
addresses: list[tuple[str, str]] = []


class Drawer(Environment):
    """Has tools that end the attempt or fail."""

    name = "drawer"
    metric = "contains"

    @tool
    async def look(self, place: str) -> ToolResult:
        """Look somewhere."""
        return ToolResult(f"there is a 42 in the {place}", images=(PNG,), extras={"place": place})

    @tool
    async def submit(self) -> ToolResult:
        """End the attempt."""
        return ToolResult("submitted", ends="submitted")

    @tool
    async def lose(self) -> str:
        """Lose the environment."""
        raise EnvironmentFailed("the drawer is gone")


@asynccontextmanager
async def client_of(mcp_url: str, api_key: str) -> AsyncIterator[mcp.Client]:
    addresses.append((mcp_url, api_key))
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}) as http,
        mcp.Client(streamable_http_client(mcp_url, http_client=http), cache=None) as client,
    ):
        yield client


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def looks(question: str, mcp_url: str, api_key: str) -> str:
    async with client_of(mcp_url, api_key) as client:
        names = [one.name for one in (await client.list_tools()).tools]
        assert {"look", "submit", "lose"} <= set(names)
        found = text_of(await client.call_tool("look", {"place": "drawer"}))
        wrong = await client.call_tool("look", {})
        return f"{found} {wrong.is_error} {text_of(await client.call_tool('s__add', {'a': 1, 'b': 2}))}"


async def submits(question: str, mcp_url: str, api_key: str) -> str:
    async with client_of(mcp_url, api_key) as client:
        await client.call_tool("submit")
        refused = await client.call_tool("look", {"place": "drawer"})
        return f"42 {refused.is_error} {text_of(refused)}"


async def loses(question: str, mcp_url: str, api_key: str) -> str:
    async with client_of(mcp_url, api_key) as client:
        with pytest.raises(mcp.MCPError, match="the drawer is gone"):
            await client.call_tool("lose")
    return "42, whatever happened"


async def floods(question: str, mcp_url: str, api_key: str) -> str:
    """Sends long arguments until a call is refused, then a message of many small values and one that is too large."""
    calls = 0
    async with client_of(mcp_url, api_key) as client:
        while not (last := await client.call_tool("look", {"place": "x" * 10_000})).is_error:
            calls += 1
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    async with httpx2.AsyncClient(headers=headers) as http:
        large = b'{"a": "' + b"x" * (17 << 20) + b'"}'
        statuses = [(await http.post(mcp_url, content=body)).status_code for body in (b"[" + b"{}," * 300_000, large)]
    return json.dumps([calls, text_of(last), statuses])


async def knocks(question: str, mcp_url: str, api_key: str) -> str:
    """Tries to use the server with a wrong key, a wrong path and malformed messages."""
    async with httpx2.AsyncClient() as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        right = {"Authorization": f"Bearer {api_key}"}
        other = mcp_url.replace("/mcp", "x/mcp")
        statuses = [
            (await http.post(mcp_url, json=body, headers={"Authorization": "Bearer sk-paragent-x"})).status_code,
            (await http.post(mcp_url, json=body)).status_code,
            (await http.post(other, json=body, headers=right)).status_code,
            (await http.post(mcp_url, json=body, headers=right | {"Host": "attacker.example"})).status_code,
            (await http.get(mcp_url, headers=right)).status_code,
            (await http.post(mcp_url, content="{", headers=right | {"Content-Type": "application/json"})).status_code,
            (await http.post(mcp_url, content="{}", headers=right | {"Content-Type": "text/plain"})).status_code,
            (await http.post(mcp_url, json=body, headers=right)).status_code,
        ]
    return json.dumps(statuses)


def execute(agent: str, **settings: Any) -> RolloutResult:
    with OpenAIServer(Script(default="42")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "k")
        worker = RolloutWorker(RolloutConfig(env=f"{HERE}:Drawer", agent=f"{HERE}:{agent}", model="m", **settings))
        return worker.run(BenchmarkTask("a", "where is it?", "42"))


@pytest.mark.slow
def test_tools_of_the_environment_and_of_mcp_servers_are_served_and_recorded(tmp_path: Path) -> None:
    own = {"command": sys.executable, "args": [SERVER, str(tmp_path / "pids")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": own}}))
    done = execute("looks", mcp_config=tmp_path / "mcp.json")
    assert (done.status, done.error, done.answer) == ("completed", "", "there is a 42 in the drawer True 3")
    assert (done.tool_calls, list(done.files.values())) == (3, [PNG])
    assert done.trajectory is not None
    first, wrong, third = (step for step in unpack_trajectory(done.trajectory)["steps"] if step["kind"] == "tool")
    assert (first["name"], first["arguments"], first["images"]) == ("look", {"place": "drawer"}, list(done.files))
    assert (first["result"], first["extras"]) == ("there is a 42 in the drawer", {"place": "drawer"})
    assert (wrong["error"], third["name"], third["result"]) == (True, "s__add", "3")


def test_a_tool_can_end_the_rollout() -> None:
    done = execute("submits")
    assert (done.status, done.ending, done.score) == ("completed", "submitted", 1.0)
    assert done.answer is not None
    assert done.answer.startswith("42 True the rollout has ended (submitted)")


def test_a_failed_environment_fails_the_rollout_even_if_the_agent_answers() -> None:
    done = execute("loses")
    assert (done.status, done.kind, done.score) == (RolloutStatus.INFRASTRUCTURE, "environment", None)
    assert "the drawer is gone" in done.error
    assert done.trajectory is not None
    [step] = unpack_trajectory(done.trajectory)["steps"]
    assert (step["kind"], step["error"]) == ("tool", True)


def test_the_memory_of_tool_calls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.rollout.gateway_tools.MOST_RECORDED", 200_000)
    result = execute("floods")
    calls, refusal, statuses = json.loads(result.answer or "")
    assert 5 <= calls <= 10
    assert "tool calls of this rollout have more than" in refusal
    assert statuses == [413, 413]
    assert result.tool_calls == calls


def test_strangers_and_late_calls_are_refused() -> None:
    done = execute("knocks")
    assert done.answer is not None, done.error
    assert json.loads(done.answer) == [401, 401, 401, 403, 405, 400, 415, 200]


def test_the_tools_of_an_ended_rollout_are_gone() -> None:
    addresses.clear()
    with OpenAIServer(Script(default="42")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "k")
        worker = RolloutWorker(RolloutConfig(env=f"{HERE}:Drawer", agent=f"{HERE}:submits", model="m"))

        async def run() -> int:
            from paragent.store import PendingRollout

            await worker(PendingRollout(BenchmarkTask("a", "?", "42"), 1))
            [(url, key)] = addresses
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
                return (await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code

        assert asyncio.run(run()) == 410


PROGRAM = """
import asyncio, json, os, sys
import httpx2, mcp
from mcp.client.streamable_http import streamable_http_client

async def main():
    [server] = json.load(open(os.environ["PARAGENT_MCP_CONFIG"]))["mcpServers"].values()
    assert server["url"] == os.environ["PARAGENT_MCP_URL"]
    async with httpx2.AsyncClient(headers=server["headers"]) as http:
        async with mcp.Client(streamable_http_client(server["url"], http_client=http), cache=None) as client:
            result = await client.call_tool("look", {"place": sys.stdin.read().strip()})
            print(result.content[0].text)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_program_uses_the_tools_of_its_rollout(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    with OpenAIServer(Script(default="42")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "k")
        agent = f"cmd: {sys.executable} {tmp_path / 'agent.py'}"
        worker = RolloutWorker(RolloutConfig(env=f"{HERE}:Drawer", agent=agent, agent_in="host", model="m"))
        done = worker.run(BenchmarkTask("a", "cupboard", "42"))
    assert (done.status, done.error, done.score) == ("completed", "", 1.0)
    assert (done.answer or "").strip() == "there is a 42 in the cupboard"
    assert done.trajectory is not None
    [step] = [one for one in unpack_trajectory(done.trajectory)["steps"] if one["kind"] == "tool"]
    assert (step["name"], step["arguments"]) == ("look", {"place": "cupboard"})
