"""Agent servers: launching, the command line, and servers with their own classes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from paragent import AccessDenied, ConfigError, LimitExceeded, Msg, RpcAgentServerLauncher, TlsConf, UsageError
from tests.children import BoundedPopen
from tests.remote.agents import Holder, Slow, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def at(server: RpcAgentServerLauncher, cls: Any = Worker, *args: Any) -> Any:
    return cls(*args, to_dist={"host": server.host, "port": str(server.port)})


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "paragent", *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def closed() -> Iterator[RpcAgentServerLauncher]:
    """A restricted server with one class."""
    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
        yield launcher


def test_a_launcher_serves_in_this_process_and_in_a_subprocess() -> None:
    with RpcAgentServerLauncher() as here:
        assert here.port > 0
        assert at(here).add(1) == 2
        with pytest.raises(ConfigError, match="the port is in use; choose another port"):
            RpcAgentServerLauncher(port=here.port).launch(in_subprocess=False)
        with pytest.raises(ConfigError, match="the port is in use; choose another port"):
            RpcAgentServerLauncher(port=here.port).launch(in_subprocess=True)
    here.shutdown()
    with pytest.raises(ConfigError, match="this is not an address of this host"):
        RpcAgentServerLauncher("192.0.2.1").launch(in_subprocess=False)
    classes: list[Any] = [3, dict, Worker("an agent")]
    wrong: list[dict[str, Any]] = [{"port": "x"}, {"port": 99999}, {"host": ""}, {"lease": 0}, {"limits": 3}]
    wrong += [{"reconnect_timeout": 0}]
    wrong += [{"tls": "server.pem"}, {"peer_tls": {"ca": "ca.pem"}}, {"accept_code": "no"}, {"accept_state": 1}]
    wrong += [{"custom_agent_classes": Worker}, {"custom_agent_classes": "Worker"}]
    for settings in (*wrong, *({"custom_agent_classes": [cls]} for cls in classes)):
        with pytest.raises(ConfigError):
            RpcAgentServerLauncher(**settings)


@pytest.mark.parametrize("in_subprocess", [False, True])
def test_a_launcher_is_launched_once_and_before_one_waits_for_it(in_subprocess: bool) -> None:
    launcher = RpcAgentServerLauncher()
    for wait in (launcher.wait_until_terminate, launcher.wait_until_end):
        with pytest.raises(UsageError, match=r"call launch\(\) first"):
            wait()
    launcher.launch(in_subprocess=in_subprocess)
    try:
        with pytest.raises(UsageError, match=r"has been launched; call shutdown\(\)"):
            launcher.launch()
        assert at(launcher).add(1) == 2
    finally:
        launcher.shutdown()
    launcher.wait_until_terminate()
    launcher.launch(in_subprocess=in_subprocess)
    launcher.shutdown()


def test_a_program_that_only_serves_prints_a_line_when_it_is_ready() -> None:
    program = """
        from paragent import RpcAgentServerLauncher
        from tests.remote.agents import Worker
        launcher = RpcAgentServerLauncher(port=0, custom_agent_classes=[Worker])
        launcher.launch(in_subprocess=False)
        launcher.wait_until_terminate()
    """
    with BoundedPopen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        port = int(line.partition("agent server at localhost:")[2].partition(":")[0])
        assert line.endswith(": accepts Worker; clients need the token; Ctrl-C stops it\n")
        agent: Any = Worker("w", to_dist={"host": "localhost", "port": port})
        assert agent.add(1).result(60) == 2
        server.terminate()
        assert server.wait(60) == 0


def test_a_server_with_its_own_classes_accepts_no_code(closed: RpcAgentServerLauncher) -> None:
    assert at(closed).reply(Msg("user", {"deep": [1, 2]})).content == {"deep": [1, 2]}
    moved = Worker("moved", start=4).to_dist(host=closed.host, port=closed.port)
    assert moved.note({"a": (1, 2)}) == 5
    with pytest.raises(AccessDenied, match=r"custom_agent_classes there \(paragent agent-server: --module\)"):
        at(closed, Slow).where().result(60)

    class Smuggler:
        def __reduce__(self) -> Any:
            return print, ("arbitrary code",)

    for cargo in (Smuggler(), print, lambda: 1, Smuggler):
        with pytest.raises(AccessDenied, match="no code"):
            at(closed).echo(cargo).result(60)
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(LimitExceeded, match="nested"):
        at(closed).echo(deep).result(60)
    assert at(closed).add(1) == 2


def test_a_class_of_the_main_program_is_found_by_its_name(closed: RpcAgentServerLauncher, tmp_path: Path) -> None:
    program = f"""
        from paragent import AgentBase
        class Worker(AgentBase):
            def add(self, a, b=1):
                raise AssertionError("the server has its own")
        print(Worker("main", to_dist={{"host": "{closed.host}", "port": {closed.port}}}).add(1))
        print(Worker("main").to_dist(host="{closed.host}", port={closed.port}).add(2))
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["2", "3"]


def test_a_call_of_a_missing_method_fails(server: RpcAgentServerLauncher) -> None:
    assert at(server, Holder).reply(1).exception(60) is not None, "it has no reply method"


@pytest.mark.slow
def test_lists_show_the_names_of_client_programs(
    own_server: RpcAgentServerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAGENT_PROJECT", "papers")
    monkeypatch.setenv("PARAGENT_NAME", "[/monday]")  # would be markup in a table of rich
    agent = at(own_server)
    assert agent.add(1) == 2
    [listed] = json.loads(command("agent-server", "list", "--port", str(own_server.port)))["list"]
    assert listed["client"].startswith("papers/[/monday] ")
    assert "papers/[/monday]" in command("agents", "--port", str(own_server.port))


@pytest.mark.slow
def test_the_command_line_runs_queries_and_stops_a_server() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "paragent",
            "agent-server",
            "--port",
            "0",
            "--module",
            "tests.remote.agents",
            "--reconnect-timeout",
            "9",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "accepts Failing, Holder, Moderator, Slow, Spawner, Team, Worker" in line
        port = line.split("localhost:")[1].split(":")[0]
        agent: Any = Worker("listed", to_dist={"host": "localhost", "port": port})
        assert agent.note(1) == 1
        info = json.loads(command("agent-server", "info", "--port", port))
        assert (info["agents"], info["accepts_code"], info["pid"]) == (1, False, process.pid)
        assert info["calls_served"] >= 1
        assert info["memory_bytes"] > 1 << 20
        listed = json.loads(command("agent-server", "list", "--port", port))["list"]
        assert [(a["name"], a["class"], a["queue"]) for a in listed] == [("listed", "Worker", 0)]
        table = command("agents", "--port", port)
        assert "listed" in table
        command("agent-server", "stop", "--port", port)
        assert process.wait(10) == 0


def test_the_command_line_can_accept_any_state_of_moved_agents() -> None:
    agent = Worker("moved", start=4)
    vars(agent)["_private"] = 1
    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
        moved: Any = agent.to_dist(launcher.host, launcher.port)
        with pytest.raises(AccessDenied, match=r"accept_state=True \(paragent agent-server: --accept-state\)"):
            moved.note(1).result(60)
    arguments = ["agent-server", "--port", "0", "--module", "tests.remote.agents", "--accept-state"]
    process = subprocess.Popen([sys.executable, "-m", "paragent", *arguments], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        port = process.stdout.readline().split("localhost:")[1].split(":")[0]
        moved = agent.to_dist("localhost", port)
        assert moved.note(1).result(60) == 5
        process.terminate()
        assert process.wait(10) == 0


def test_the_help_of_agent_servers_says_where_the_token_is() -> None:
    text = " ".join(command("agent-server", "--help").split())
    assert all(words in text for words in ("PARAGENT_TOKEN", "at least 16 characters", "~/.config/paragent/token"))


@pytest.mark.slow
def test_a_server_exits_with_status_0_on_a_signal() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-m", "paragent", "agent-server", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "all classes that clients send" in process.stdout.readline()
            process.send_signal(number)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""


def test_a_module_without_agent_classes_is_rejected() -> None:
    for module in ("json", "no_such_module"):
        done = subprocess.run(
            [sys.executable, "-m", "paragent", "agent-server", "--module", module],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2
        assert module in done.stderr


@pytest.mark.parametrize("classes", [[], [Worker]])
def test_settings_of_restricted_servers_are_rejected_by_others(classes: list[type]) -> None:
    for settings, option in (
        ({"trusted_servers": ["localhost:1"]}, "--trusted-server"),
        ({"reconnect_timeout": 9.0}, "--reconnect-timeout"),
    ):
        with pytest.raises(ConfigError, match=f"{option}\\) is for restricted servers"):
            RpcAgentServerLauncher(custom_agent_classes=classes, accept_code=True, **settings)
        RpcAgentServerLauncher(custom_agent_classes=[Worker], **settings)


def test_a_file_without_the_authority_of_other_servers_is_rejected_at_the_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file, problem in (
        (tmp_path / "missing.pem", "cannot be read"),
        (empty, "with the certificate of an authority"),
    ):
        with pytest.raises(ConfigError, match=f"{file.name}' .*{problem}"):
            RpcAgentServerLauncher(peer_tls=TlsConf(ca=str(file))).launch(in_subprocess=False)


@pytest.mark.slow
def test_a_program_with_remote_agents_can_fork() -> None:
    """gRPC's fork support crashed some forked children, Ray's among them."""
    agent: Any = Worker("far", to_dist=True)
    assert agent.add(1) == 2
    children = [subprocess.Popen(["true"], preexec_fn=os.getpid) for _ in range(60)]
    assert [child.wait(10) for child in children] == [0] * 60
