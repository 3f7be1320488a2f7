"""Tools of MCP servers in rollouts: real servers, one session for each rollout, failures, and no processes left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent import ConfigError, EnvironmentFailed, RolloutConfig, RolloutWorker, run_parallel_rollout
from paragent.envs import ToolResult
from paragent.mcp import McpTools, read_mcp_config
from paragent.mcp.tools import unique_name
from paragent.rollout import blame
from paragent.rollout.prepare import prepare
from paragent.runners.retry import RetryPolicy
from paragent.store import Journal, RolloutStatus
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script
from paragent.testing.programs import alive
from tests.children import BoundedPopen
from tests.mcp.servers import PNG
from tests.models.hostile_endpoints import redirecting, repeating_endpoint
from tests.waiting import wait_until

SERVER = str(Path(__file__).with_name("servers.py"))
TINY = "tests.rollout.test_rollouts:Tiny"


def write_config(folder: Path, *flags: str, **servers: Any) -> Path:
    """Write a configuration with the stdio server `s`, and other servers; started processes are noted in `folder/pids`."""
    own = {"command": sys.executable, "args": [SERVER, str(folder / "pids"), "stdio", *flags]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers or {"s": own}}))
    return folder / "mcp.json"


def pids(folder: Path) -> list[int]:
    noted = folder / "pids"
    return [int(line) for line in noted.read_text().split()] if noted.exists() else []


def all_ended(folder: Path) -> bool:
    return not any(map(alive, pids(folder)))


@asynccontextmanager
async def opened(path: Path, call_limit: float = 60.0) -> AsyncIterator[McpTools]:
    async with McpTools.opened(read_mcp_config(path, call_limit)) as tools:
        yield tools


@contextmanager
def served(folder: Path, transport: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the server of the tests as a program of its own."""
    command = [sys.executable, SERVER, str(folder / "pids"), transport]
    with BoundedPopen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


# --- the configuration ------------------------------------------------------------------------------------------------


def test_variables_are_expanded_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    path = write_config(
        tmp_path,
        local={"command": "x", "args": ["${TOKEN}"], "env": {"KEY": "${MISSING:-other}", "PLAIN": "$HOME"}},
        remote={"type": "http", "url": "https://example.org/${TOKEN}", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        old={"type": "sse", "url": "http://example.org"},
    )
    settings = read_mcp_config(path, 5.0)
    local, remote, old = settings.servers
    assert (local.transport, remote.transport, old.transport) == ("stdio", "http", "sse")
    assert (local.command, local.env) == (("x", "s3cret"), {"KEY": "other", "PLAIN": "$HOME"})
    assert remote.headers == {"Authorization": "Bearer s3cret"}
    assert Path(local.cwd) == tmp_path
    assert "s3cret" not in f"{settings!r} {settings.document}"


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": ""}, "needs 'command'"),
        ({"type": "http"}, "needs 'url'"),
        ({"type": "carrier pigeon", "url": "x"}, "must be stdio, http or sse"),
        ({"url": "ftp://x"}, "must begin with http"),
        ({"command": "x", "args": "y"}, "'args' must be a list"),
        ({"command": "x", "env": {"A": 1}}, "'env' must be an object with texts"),
        ({"command": "x", "arguments": []}, "has no key 'arguments', did you mean 'args'"),
        ({"command": "${NOT_SET_HERE}"}, "variable NOT_SET_HERE, which is not set"),
        ("x", "must be an object"),
    ],
)
def test_wrong_servers_are_rejected(server: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the server 'bad'.*{re.escape(words)}"):
        read_mcp_config(write_config(tmp_path, bad=server), 5.0)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"mcpServers": {}}', '{"mcpServers": []}'])
def test_a_file_without_servers_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(ConfigError, match="--mcp-config"):
        read_mcp_config(tmp_path / "mcp.json", 5.0)


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), unique=True, max_size=20))
def test_names_are_valid_and_unique(tools: list[tuple[str, str]]) -> None:
    taken: set[str] = set()
    for server, tool in tools:
        name = unique_name(server, tool, taken)
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert name not in taken
        taken.add(name)


def test_a_plain_name_stays_readable() -> None:
    assert unique_name("files", "read", ["x"]) == "files__read"
    assert unique_name("files", "read", ["files__read"]).startswith("files__read_")


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNRELATED_KEY", "k3y")

    async def run() -> dict[str, ToolResult]:
        async with opened(write_config(tmp_path), call_limit=2.0) as tools:
            calls: dict[str, Any] = {
                "add": '{"a": 1, "b": 2}',
                "draw": {},
                "fail": {},
                "hang": {},
                "ask": "",
                "secret": {},
                "no": {},
            }
            return {name: await tools.call(f"s__{name}", arguments) for name, arguments in calls.items()}

    results = asyncio.run(run())
    assert (results["add"].text, results["add"].extras) == ("3", {"structured": {"result": 3}})
    assert (results["draw"].text, results["draw"].images) == ("a dot", (PNG,))
    assert {name for name, result in results.items() if result.error} == {"fail", "hang", "ask", "no"}
    assert "the disk is full" in results["fail"].text
    assert "longer than 2 s" in results["hang"].text
    assert "k3y" not in results["secret"].text, "a server inherits no secrets"
    assert all_ended(tmp_path)


@pytest.mark.slow
def test_results_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.mcp.client._MOST_IMAGE_BYTES", 3 << 19)

    async def run() -> list[ToolResult]:
        async with opened(write_config(tmp_path)) as tools:
            large = await tools.call("s__large", {"characters": 2_000_000, "images": 2})
            structure = await tools.call("s__large_structure", {"characters": 2_000_000})
            refused = [await tools.call("s__large", {"characters": size}) for size in (9 << 20, 50 << 20)]
            return [large, structure, *refused, await tools.call("s__add", {"a": 1, "b": 2})]

    large, structure, *refused, after = asyncio.run(run())
    for one in refused:
        assert one.error
        assert "and at most 8,388,608 are allowed" in one.text
    assert after.text == "3"
    assert len(large.text) < 210_000
    assert re.search(r"\[1,800,\d+ characters are left out\]$", large.text)
    assert len(large.images) == 1
    assert len(structure.text) + len(json.dumps(structure.extras)) < 210_000


@pytest.mark.slow
def test_a_server_that_repeats_its_secrets_does_not_show_them_to_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "tok-0123456789abcdef")
    own = {
        "command": sys.executable,
        "args": [SERVER, str(tmp_path / "pids"), "stdio", "--api-key", "arg-0123456789abcdef"],
        "env": {"TOKEN": "${MY_TOKEN}", "PLACE": "somewhere-else-entirely"},
    }

    async def run() -> str:
        async with opened(write_config(tmp_path, s=own)) as tools:
            failed = await tools.call("s__fail_with", {"variable": "TOKEN"})
            shown = await tools.call("s__secret", {})
            with pytest.raises(EnvironmentFailed) as lost:
                await tools.call("s__die", {})
            return f"{failed.text} {shown.text} {shown.extras} {lost.value}"

    text = asyncio.run(run())
    assert "denied: …" in text
    assert "somewhere-else-entirely" in text
    assert "out of cheese" in text
    assert "0123456789ab" not in text


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_headers_and_addresses_of_servers_are_not_repeated(transport: str, tmp_path: Path) -> None:
    key = "hdr-0123456789abcdef"
    answer = (401, "text/plain", f"wrong header {key}, wrong query qry-0123456789abcdef")
    with repeating_endpoint(lambda _: answer) as url:
        server = {"type": transport, "url": f"{url}/mcp?key=qry-0123456789abcdef", "headers": {"X-Auth": key}}

        async def run() -> None:
            async with opened(write_config(tmp_path, far=server)):
                pass

        with pytest.raises(EnvironmentFailed) as raised:
            asyncio.run(run())
    assert "0123456789ab" not in str(raised.value)


def test_redirects_to_another_host_are_not_followed(tmp_path: Path) -> None:
    with redirecting() as (other, got), redirecting(307, other) as (url, _):

        async def run() -> None:
            async with opened(write_config(tmp_path, far={"url": f"{url}/mcp", "headers": {"X-Auth": "k" * 20}})):
                pass

        with pytest.raises(EnvironmentFailed):
            asyncio.run(run())
    assert not got


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_running_server_is_used_and_its_loss_is_noticed(transport: str, tmp_path: Path) -> None:
    async def run() -> None:
        with served(tmp_path, transport) as (url, process):
            path = write_config(tmp_path, far={"type": transport, "url": url})
            await asyncio.to_thread(wait_until, lambda: _listens(url))
            async with opened(path) as tools:
                assert (await tools.call("far__add", {"a": 20, "b": 22})).text == "42"
                process.kill()
                process.wait(60)
                with pytest.raises(EnvironmentFailed, match="'far' was lost during the call of add"):
                    await tools.call("far__add", {"a": 1, "b": 1})

    asyncio.run(run())


def _listens(url: str) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "no-such-program"}, "no-such-program: No such file"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]}, "no licence"),
        ({"url": "http://127.0.0.1:9/mcp"}, "'bad' cannot be used: ConnectError"),
    ],
)
def test_a_server_that_cannot_be_used_stops_a_run_before_it_starts(
    server: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "d.jsonl").write_text('{"id": "a", "question": "?", "answer": "42"}\n')
    config = RolloutConfig(
        env=TINY, model="demo", data=tmp_path / "d.jsonl", mcp_config=write_config(tmp_path, bad=server)
    )
    with pytest.raises(ConfigError, match=words):
        prepare(config)


# --- rollouts ---------------------------------------------------------------------------------------------------------


def tasks(folder: Path, number: int) -> Path:
    lines = [json.dumps({"id": f"t{n}", "question": f"question {n}", "answer": "42"}) for n in range(number)]
    (folder / "d.jsonl").write_text("\n".join(lines))
    return folder / "d.jsonl"


def run(folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.001))
    chosen: dict[str, Any] = {"env": TINY, "engine": "inline", "model": "m", "output_dir": folder, "run_name": "run"}
    with OpenAIServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        return run_parallel_rollout(RolloutConfig(**(chosen | settings)))


@pytest.mark.slow
def test_each_rollout_has_a_session_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(default=[{"tool": "s__count"}, {"tool": "calculator", "arguments": {"expression": "1"}}, "42"])
    summary = run(tmp_path, script, monkeypatch, data=tasks(tmp_path, 3), mcp_config=write_config(tmp_path))
    assert (summary.mean, summary.done, summary.executions) == (1.0, 3, 3)
    assert len(set(pids(tmp_path))) == 4, "one for the check before the run, one for each rollout"
    assert all_ended(tmp_path)
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        for number in (1, 2, 3):
            said = [one["content"] for one in journal.trajectory(number)["messages"] if one["role"] == "tool"]
            assert said == ["call 1", "42"]
    stored = json.loads((tmp_path / "run/config.json").read_text())
    assert stored["mcp_config"] == str(tmp_path / "mcp.json")


@pytest.mark.slow
def test_a_server_that_dies_is_an_infrastructure_failure_and_the_rollout_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(default=[{"tool": "s__die"}, "42"])
    summary = run(tmp_path, script, monkeypatch, data=tasks(tmp_path, 1), mcp_config=write_config(tmp_path))
    assert (summary.executions, summary.failures, summary.pending) == (3, {"environment": 1}, 1)
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        failed = list(journal.results("1"))
    assert {result.status for result in failed} == {RolloutStatus.INFRASTRUCTURE}
    assert all("'s' was lost during the call of die" in result.error for result in failed)
    assert all("out of cheese" in result.error for result in failed), "the end of the server's error output"
    assert len(set(pids(tmp_path))) == 4
    assert all_ended(tmp_path)


@pytest.mark.slow
def test_images_of_a_server_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default=[{"tool": "s__draw"}, "42"])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        worker = RolloutWorker(RolloutConfig(env=TINY, model="m", mcp_config=write_config(tmp_path)))
        done = worker.run(BenchmarkTask("a", "?", "42"))
    assert (done.score, list(done.files.values())) == (1.0, [PNG])
    assert done.trajectory is not None
    [shown] = [one for one in unpack_trajectory(done.trajectory)["messages"] if one.get("images")]
    assert (shown["role"], shown["content"], shown["images"]) == ("tool", "a dot", list(done.files))


@pytest.mark.slow
def test_a_rollout_over_its_time_limit_ends_its_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(default=[{"tool": "s__hang"}, "42"])
    path = write_config(tmp_path, "--stubborn")
    summary = run(tmp_path, script, monkeypatch, data=tasks(tmp_path, 1), mcp_config=path, timeout=1.0)
    assert summary.statuses[RolloutStatus.TIMED_OUT] == 1
    assert len(pids(tmp_path)) == 4, "two servers, each with a child in a session of its own"
    assert all_ended(tmp_path)


@contextmanager
def endpoint(script: Path) -> Iterator[str]:
    """Run the scripted endpoint as a process of its own: a killed client leaves half-open connections in it."""
    command = [sys.executable, "-m", "paragent.testing.openai_server", "--script", str(script), "--die-with-parent"]
    with BoundedPopen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)  # starts the command and six servers, which takes long on a busy machine
@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_servers_end_with_a_killed_process(victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers ignore the end of their input and all signals, and have children that left their process group."""
    tasks(tmp_path, 2)
    path = write_config(tmp_path, "--stubborn")
    command = [sys.executable, "-m", "paragent", "rollout", "--env", TINY, "--data", str(tmp_path / "d.jsonl")]
    command += ["--mcp-config", str(path), "--model", "m", "--workers", "1", "--run-name", "run"]
    command += ["--output-dir", str(tmp_path)]
    (tmp_path / "script.json").write_text(json.dumps({"default": [{"tool": "s__hang"}, "42"]}))
    with endpoint(tmp_path / "script.json") as url:
        environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k"}
        output, hanging = tmp_path / "output.txt", tmp_path / "pids.hanging"
        with output.open("w") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

        def both_hang() -> bool:
            assert process.poll() is None, output.read_text()
            return hanging.exists() and len(hanging.read_text()) >= 2

        try:
            wait_until(both_hang, 200)
            [status] = (tmp_path / "run/live").glob("*-*.json")
            running = [pid for pid in pids(tmp_path) if alive(pid)]
            assert len(running) == 4
            os.kill(process.pid if victim == "driver" else int(status.stem.rpartition("-")[2]), signal.SIGKILL)
            wait_until(lambda: not any(map(alive, running)))
        finally:
            process.kill()
            process.wait(60)
    wait_until(lambda: all_ended(tmp_path))
