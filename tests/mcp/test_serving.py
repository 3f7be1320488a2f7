"""`paragent env serve`: environments as MCP servers, used by the official client; sessions, limits, attacks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ImageContent, TextContent

from paragent import Environment, EnvironmentFailed, RolloutConfig, UsageError, tool
from paragent.cli import main
from paragent.envs import ToolResult
from paragent.rollout.env_server import served_at
from paragent.rollout.serving import EnvironmentSessions
from paragent.tasks import BenchmarkTask
from tests.children import BoundedPopen
from tests.mcp.servers import PNG
from tests.waiting import wait_until_async

HERE = "tests.mcp.test_serving"
TOKEN = "t0ken"


class Notebook(Environment):
    """Keeps notes of one session."""

    name = "notebook"
    metric = "contains"
    instructions = "Write notes."
    open_now = 0
    waiting = False

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        if task.question == "broken":
            raise EnvironmentFailed("the paper is wet")
        self.notes: list[str] = []
        Notebook.open_now += 1
        return await super().open(task, machine)

    async def close(self) -> None:
        if hasattr(self, "notes"):
            del self.notes
            Notebook.open_now -= 1
        await super().close()

    @tool
    async def write(self, text: Annotated[str, "the note"]) -> str:
        """Write a note and return all notes."""
        self.notes.append(text)
        assert self.task is not None
        return f"{self.task.question}: {self.notes}"

    @tool
    async def draw(self) -> ToolResult:
        """Draw."""
        return ToolResult("a dot", images=(PNG,))

    @tool
    async def finish(self) -> ToolResult:
        """End."""
        return ToolResult("good", ends="finished")

    @tool
    async def wait(self) -> str:
        """Wait for very long."""
        Notebook.waiting = True
        await asyncio.sleep(1000)
        return ""

    @tool
    async def bug(self) -> str:
        """Fail unexpectedly."""
        raise KeyError("oops")


def config(**settings: Any) -> RolloutConfig:
    return RolloutConfig(**{"env": f"{HERE}:Notebook", "model": "demo"} | settings)


@asynccontextmanager
async def served(*, most: int = 8, idle: float = 60.0, **settings: Any) -> AsyncIterator[str]:
    async with (
        EnvironmentSessions(config(**settings)) as sessions,
        served_at(sessions, "mcp", "127.0.0.1", 0, TOKEN, most=most, idle=idle) as url,
    ):
        yield url
    assert Notebook.open_now == 0


@asynccontextmanager
async def connected(url: str, token: str = TOKEN) -> AsyncIterator[mcp.Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        mcp.Client(streamable_http_client(url, http_client=http), cache=None) as client,
    ):
        yield client


def text_of(result: Any) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def test_each_session_has_an_environment_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"id": "a", "question": "shopping"}\n{"id": "b", "question": "work"}\n')

    async def run() -> None:
        async with served(data=tmp_path / "d.jsonl", task_id=["b"]) as url:
            async with connected(url) as first, connected(url) as second:
                assert (first.instructions, Notebook.open_now) == ("Write notes.", 2)
                listed = {one.name: one for one in (await first.list_tools()).tools}
                assert listed["write"].input_schema["properties"]["text"]["description"] == "the note"
                assert text_of(await first.call_tool("write", {"text": "milk"})) == "work: ['milk']"
                assert text_of(await second.call_tool("write", {"text": "call"})) == "work: ['call']"
                drawn = (await first.call_tool("draw")).content
                assert [type(block) for block in drawn] == [TextContent, ImageContent]
                wrong = await first.call_tool("write", {"txt": "milk"})
                assert wrong.is_error
                assert "'text' is required" in text_of(wrong)
                ended = await first.call_tool("finish")
                assert ended.meta == {"paragent/ends": "finished"}
                with pytest.raises(mcp.MCPError, match="oops"):
                    await first.call_tool("bug")
            await wait_until_async(lambda: Notebook.open_now == 0)  # the clients closed their sessions

    asyncio.run(run())


def test_sessions_are_limited_and_end_when_they_are_idle() -> None:
    async def run() -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with served(most=1, idle=0.05) as url, httpx2.AsyncClient(headers=headers) as http:
            start = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
            opened = await http.post(url, json=start)
            assert (opened.status_code, opened.json()["result"]["protocolVersion"]) == (200, "2025-11-25")
            assert (await http.post(url, json=start)).status_code == 503
            await wait_until_async(lambda: Notebook.open_now == 0)
            late = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post(url, json=ping, headers=late)).status_code == 404

    asyncio.run(run())


def test_a_call_ends_with_its_session() -> None:
    async def run() -> None:
        async with served() as url, httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            opened = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
            session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
            params = {"name": "wait", "arguments": {}}
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
            waiting = asyncio.create_task(http.post(url, json=body, headers=session))
            await wait_until_async(lambda: Notebook.waiting)
            assert (await http.delete(url, headers=session)).status_code == 204
            assert Notebook.open_now == 0
            assert "session has ended" in (await waiting).text

    asyncio.run(run())


def test_an_environment_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"id": "a", "question": "broken"}\n')

    async def run() -> None:
        async with served(data=tmp_path / "d.jsonl") as url:
            with pytest.RaisesGroup(mcp.MCPError, allow_unwrapped=True, flatten_subgroups=True) as caught:
                async with connected(url):
                    pass
            assert "the paper is wet" in "".join(traceback.format_exception(caught.value))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "attacker.example:80"}, 403),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Mcp-Session-Id": "guessed"}, 404),
    ],
)
def test_requests_of_strangers_are_refused(headers: dict[str, str], status: int) -> None:
    async def run() -> None:
        async with served() as url, httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            start = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
            answered = await http.post(url, content=start, headers={"Content-Type": "application/json"} | headers)
            assert answered.status_code == status
            assert Notebook.open_now == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'{"method": 1}', -32600),
        (b'{"id": {}, "method": "initialize"}', -32600),
        (b'{"id": 1, "method": "tools/list"}', -32600),
    ],
)
def test_malformed_messages_are_answered_with_errors(body: bytes, code: int) -> None:
    async def run() -> None:
        async with served() as url:
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            async with httpx2.AsyncClient(headers=headers) as http:
                assert (await http.post(url, content=body)).json()["error"]["code"] == code

    asyncio.run(run())


def test_wrong_settings_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--data"):
        EnvironmentSessions(config(task_id=["a"]))
    assert main(["env", "serve", "--env", f"{HERE}:Notebook", "--protocol", "openenv", "--transport", "stdio"]) == 2
    (tmp_path / "token").write_text("\n")
    empty = ["--transport", "http", "--token-file", str(tmp_path / "token")]
    assert main(["env", "serve", "--env", f"{HERE}:Notebook", *empty]) == 2
    errors = capsys.readouterr().err
    assert "--transport http" in errors
    assert "is empty" in errors


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "paragent", "env", "serve", "--env", f"{HERE}:Notebook", *arguments]


@pytest.mark.slow
def test_the_command_serves_standard_streams(tmp_path: Path) -> None:
    async def run() -> None:
        first, *rest = command()
        program = mcp.StdioServerParameters(command=first, args=rest, env={"PYTHONPATH": str(Path.cwd())})
        async with mcp.Client(program, cache=None) as client:
            assert text_of(await client.call_tool("write", {"text": "milk"})) == ": ['milk']"
            waiting = asyncio.create_task(client.call_tool("wait"))
            await asyncio.sleep(0)
            assert text_of(await client.call_tool("write", {"text": "eggs"})) == ": ['milk', 'eggs']"
            waiting.cancel()

    asyncio.run(run())


@pytest.mark.slow
def test_the_command_ends_with_its_input_and_after_a_message_that_is_too_long(tmp_path: Path) -> None:
    nothing = subprocess.run(command(), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"")
    long = b'"' + b"x" * (17 * 2**20) + b'"\n'
    refused = subprocess.run(command(), input=long, capture_output=True, check=False, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr == b"paragent: the client sent a message with more than 16,777,216 bytes\n"


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with BoundedPopen(command(*arguments), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_command_serves_http_until_it_is_terminated(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with running("--transport", "http", "--token-file", str(tmp_path / "token")) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]

        async def run() -> str:
            async with connected(url) as client:
                return text_of(await client.call_tool("write", {"text": "milk"}))

        assert asyncio.run(run()) == ": ['milk']"
        process.terminate()
        assert process.wait(20) == 0
    with running("--transport", "http") as process:
        assert process.stdout is not None
        printed = process.stdout.readline() + process.stdout.readline()
        assert "127.0.0.1" in printed
        assert len(printed.split("Bearer ")[1].strip("`\n")) > 40, "a random token"
