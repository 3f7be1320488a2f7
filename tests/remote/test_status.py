"""`AgentServerMonitor` and `paragent agents`: what a server reports about its agents."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from paragent import AccessDenied, RpcAgentServerLauncher, ServerLost
from paragent.cli import main
from paragent.remote.status import AgentServerMonitor, AgentServerStatus, AgentStatus
from paragent.transport import Address
from tests.children import BoundedPopen
from tests.remote.agents import Worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def at(server: RpcAgentServerLauncher, name: str) -> Any:
    return Worker(name, to_dist={"host": server.host, "port": str(server.port)})


def monitor_of(server: RpcAgentServerLauncher) -> AgentServerMonitor:
    return AgentServerMonitor(Address.of(server.host, server.port))


@pytest.fixture
def monitor(own_server: RpcAgentServerLauncher) -> Iterator[AgentServerMonitor]:
    opened = monitor_of(own_server)
    yield opened
    opened.close()


def test_counts_of_agents_with_queues_running_and_failed_calls(
    own_server: RpcAgentServerLauncher, monitor: AgentServerMonitor, mark: Path
) -> None:
    busy, idle = at(own_server, "busy"), at(own_server, "idle")
    assert idle.add(1, b=1) == 2
    assert isinstance(idle.add("x").exception(60), TypeError)
    assert idle.sleep(0.2) == "idle"
    spinning = busy.spin(str(mark))
    waiting = [busy.add(1) for _ in range(3)]
    wait_until(mark.with_name("mark.started").exists)
    status = monitor.status()
    first, second = status.listed
    assert (first.name, first.kind, first.state) == ("busy", "Worker", "busy")
    assert (first.queued, first.running, first.calls, first.failed) == (3, 1, 0, 0)
    assert (second.name, second.queued, second.running, second.calls, second.failed) == ("idle", 0, 0, 3, 1)
    assert second.seconds >= 0.2
    assert (status.agents, status.clients, status.queued, status.under_way) == (2, 1, 3, 4)
    assert status.memory > 1 << 20
    spinning.cancel()
    assert [result.result(60) for result in waiting] == [2, 2, 2]
    assert monitor.status(limit=1).listed[0].name in {"busy", "idle"}
    assert len(monitor.status(limit=1).listed) == 1


def test_calls_per_second_are_those_since_the_last_report(
    own_server: RpcAgentServerLauncher, monitor: AgentServerMonitor
) -> None:
    agent = at(own_server, "echo")
    assert agent.add(1) == 2
    assert monitor.status().calls_per_second < 50
    for result in [agent.add(number) for number in range(2_000)]:
        result.result(60)
    wait_until(lambda: monitor.status().calls >= 2_001)

    def quiet() -> AgentServerStatus | None:
        status = monitor.status()
        return status if status.calls_per_second < 50 else None

    assert wait_until(quiet)


def test_a_server_that_is_not_there_and_one_that_comes_back(monitor: AgentServerMonitor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (Address.of("127.0.0.1", 1), Address.of("127.0.0.1", silent.getsockname()[1])):
            with pytest.raises(ServerLost, match="no agent server answers at"):
                AgentServerMonitor(address).status()
    assert monitor.status().agents == 0
    host, port, _ = monitor.address
    first = monitor.status().process
    assert main(["agent-server", "stop", "--host", host, "--port", str(port)]) == 0
    with pytest.raises(ServerLost):
        wait_until(lambda: monitor.status().process != first, 20)
    again = RpcAgentServerLauncher(host, port)
    again.launch(in_subprocess=True)
    try:
        assert wait_until(lambda: _ask(monitor), 20) != first
    finally:
        again.shutdown()


def _ask(monitor: AgentServerMonitor) -> str | None:
    try:
        return monitor.status().process
    except ServerLost:
        return None


def test_a_wrong_token(own_server: RpcAgentServerLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAGENT_TOKEN", "another token of enough characters")
    with pytest.raises(AccessDenied):
        monitor_of(own_server).status()


def test_the_command_prints_a_table_or_json(
    own_server: RpcAgentServerLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = at(own_server, "[/red]")
    assert agent.add(1) == 2
    where = ["agents", "--host", own_server.host, "--port", str(own_server.port)]
    assert main(where) == 0
    shown = capsys.readouterr().out
    assert "1 agent of 1 client" in shown
    assert "per second" in shown
    assert main([*where, "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)["listed"]
    assert (listed["name"], listed["calls"], listed["failed"]) == ("[/red]", 1, 0)


def test_an_agent_that_only_borrowers_hold_is_listed_once_with_its_holder(
    own_server: RpcAgentServerLauncher, monitor: AgentServerMonitor, tmp_path: Path
) -> None:
    shared, proxy = at(own_server, "shared"), tmp_path / "shared.pickle"
    assert shared.add(1) == 2
    proxy.write_bytes(pickle.dumps(shared))
    program = (
        f"import pickle, sys; agent = pickle.load(open({str(proxy)!r}, 'rb')); "
        "print(agent.add(1), flush=True); sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with BoundedPopen([sys.executable, "-c", program], text=True, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "2\n"
        [owned] = monitor.status().listed

        def borrowed() -> AgentStatus | None:
            [listed] = monitor.status().listed
            return listed if listed.client != owned.client else None

        del shared
        listed = wait_until(borrowed)
        assert listed is not None
        assert (listed.name, listed.id) == ("shared", owned.id)
        assert monitor.status().agents == 1
    wait_until(lambda: monitor.status().listed == ())


def test_rejected_constructors_are_listed_with_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    class Stranger(Worker):
        pass

    with RpcAgentServerLauncher(custom_agent_classes=[Worker]) as launcher:
        address = {"host": launcher.host, "port": launcher.port}
        stranger: Any = Stranger("guest", to_dist=address)
        assert isinstance(stranger.add(1).exception(60), AccessDenied)
        broken: Any = Worker("broken", nothing=1, to_dist=address)  # type: ignore[call-arg]
        assert isinstance(broken.add(1).exception(60), TypeError)
        opened = monitor_of(launcher)
        rows = {agent.name: agent for agent in opened.status().listed}
        opened.close()
        assert main(["agents", "--port", str(launcher.port)]) == 0
    assert (rows["guest"].state, rows["guest"].kind) == ("failed", Stranger.__qualname__)
    assert rows["guest"].error.startswith("AccessDenied: this server runs only its own agent classes (Worker)")
    assert (rows["broken"].state, rows["broken"].kind) == ("failed", "Worker")
    assert rows["broken"].error.startswith("TypeError: ")
    assert "AccessDenied:" in capsys.readouterr().out
