"""Pools, agent servers and engines in the API of the view, with real pools and servers, dead ones and hostile logs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paragent import RpcAgentServerLauncher, VMPoolManager
from paragent.errors import ConfigError
from paragent.rollout.live_run import LiveRun, LiveWorker, RunState, write_session_file
from paragent.rollout.machines import PoolAccess
from paragent.rollout.pool_file import pool_file, read_pool_file
from paragent.store import WorkerEvent
from paragent.testing.programs import wait_until
from paragent.transport import Token
from paragent.view.server import ViewServer
from tests.remote.agents import Worker
from tests.view.recorded import EPOCH, journal_of, result, serving, write_run

SECRET = "a secret of this pool with enough characters"
JSON = "application/json"


@pytest.fixture(scope="module", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a token file and a cache of this test session instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("PARAGENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PARAGENT_TOKEN", raising=False)
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[VMPoolManager]:
    with VMPoolManager("process", 2, spares=0, name="viewed") as opened:
        opened.wait_until_free(2, 60)
        yield opened


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = write_run(tmp_path / "runs", "one", [result("a", score=1.0)], tasks=["a", "b"])
    (path / "live").mkdir(exist_ok=True)
    return path


def set_live(path: Path, **given: Any) -> None:
    """Write what a session writes every second."""
    live = LiveRun(
        run=path.name, state=RunState.RUNNING, at=time.time(), pid=os.getpid(), host=socket.gethostname(), **given
    )
    write_session_file(path / "live", live)


def get(client: httpx.Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def post(server: ViewServer, client: httpx.Client, path: str) -> httpx.Response:
    headers = {"Origin": server.address, "Content-Type": JSON}
    return client.post(f"/api/{path}", content=b"{}", headers=headers)


# --- pools ----------------------------------------------------------------------------------------------------------------


def test_the_pool_of_a_live_run_with_its_machines(pool: VMPoolManager, run: Path) -> None:
    address = str(pool.serve(token=Token(SECRET)).address)
    lease = pool.allocate(timeout=60, holder="host:7 b#2")
    with pool_file(run / "live", PoolAccess(address=address, secret=SECRET)), serving(run.parent) as (_, client):
        set_live(run)
        [row] = get(client, "pools")["pools"]
        assert (row["id"], row["run"], row["provider"], row["problem"]) == (address, "one", "process", "")
        assert row["states"]["leased"] == 1
        set_live(run)
        detail = get(client, f"pools/{address}")
        machine = next(one for one in detail["machines"] if one["name"] == lease.machine.id)
        assert (machine["state"], machine["holder"], machine["failures"]) == ("leased", "host:7 b#2", 0)
        assert machine["lease_age"] >= 0
        assert (machine["screenshot"], machine["log"]) == (False, True)
        at, name, *event = detail["events"][0]
        assert (name, event, time.time() - at < 60) == (lease.machine.id, ["leased", "host:7 b#2", ""], True)
        assert SECRET not in client.get(f"/api/pools/{address}").text
    lease.release()


def test_a_run_that_has_ended_has_no_pool(pool: VMPoolManager, run: Path) -> None:
    address = str(pool.serve(token=Token(SECRET)).address)
    with pool_file(run / "live", PoolAccess(address=address, secret=SECRET)), serving(run.parent) as (_, client):
        assert get(client, "pools") == {"pools": []}
        assert "its run has ended" in get(client, f"pools/{address}", 404)["error"]


def test_the_log_of_a_machine_is_plain_text(pool: VMPoolManager, run: Path) -> None:
    address = str(pool.serve().address)
    hostile = "\x1b]0;title\x07\x1b[31m<script>alert(1)</script>\n"
    lease = pool.allocate(timeout=60)
    name = lease.machine.id
    with Path(f"/proc/{lease.machine.details['pid']}/fd/2").open("a") as log:
        log.write(hostile)
    with serving(run.parent, pools=[address]) as (_, client):
        answer = client.get(f"/api/pools/{address}/machines/{name}/log")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.text.endswith(hostile)
        assert "no machine 'm99'" in get(client, f"pools/{address}/machines/m99/log", 404)["error"]
        assert "no screen" in get(client, f"pools/{address}/machines/{name}/screenshot", 503)["error"]
        get(client, f"pools/{address}/machines/..%2f..%2fetc%2fpasswd/log", 404)
        get(client, f"pools/127.0.0.1:1/machines/{name}/log", 404)
    lease.release()


def test_a_machine_is_retired_only_by_a_page_of_the_view(pool: VMPoolManager, run: Path) -> None:
    address = str(pool.serve().address)
    lease = pool.allocate(timeout=60)
    route = f"pools/{address}/machines/{lease.machine.id}/retire"
    with serving(run.parent, pools=[address]) as (server, client):
        foreign = {"Origin": "https://evil.example", "Content-Type": JSON}
        assert client.post(f"/api/{route}", content=b"{}", headers=foreign).status_code == 403
        assert client.get(f"/api/{route}").status_code == 405
        assert not any(machine.reason for machine in pool.status().machines if machine.id == lease.machine.id)
        answer = post(server, client, route).json()
        assert (answer["ok"], answer["message"]) == (
            True,
            f"{lease.machine.id} is replaced now or when its lease ends",
        )
        again = post(server, client, f"pools/{address}/machines/m99/retire").json()
        assert not again["ok"]
        assert "no live machine 'm99'" in again["message"]
    lease.release()


def test_pools_that_do_not_answer_have_a_problem(
    pool: VMPoolManager, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.view.pools._SECONDS", 1.0)
    right, other = str(pool.serve().address), str(pool.serve(token=Token(SECRET)).address)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        addresses = [right, other, silent_address, "127.0.0.1:1"]
        with serving(run.parent, pools=addresses) as (_, client):
            began = time.monotonic()
            rows = {row["id"]: row for row in get(client, "pools")["pools"]}
            assert time.monotonic() - began < 10
            assert list(rows) == addresses
            assert rows[right]["problem"] == ""
            assert "token" in rows[other]["problem"]
            for dead in (silent_address, "127.0.0.1:1"):
                assert rows[dead]["problem"], dead
                detail = get(client, f"pools/{dead}")
                assert (detail["machines"], bool(detail["row"]["problem"])) == ([], True)


@pytest.mark.slow
@pytest.mark.browser
def test_the_screen_of_a_desktop(run: Path) -> None:
    options = {"desktop": True, "applications": ""}
    with VMPoolManager("process", 1, spares=0, name="screen", screen=(640, 480), options=options) as pool:
        address = str(pool.serve().address)
        with pool.lease(timeout=100) as machine, serving(run.parent, pools=[address]) as (_, client):
            [shown] = get(client, f"pools/{address}")["machines"]
            assert shown["screenshot"]
            screenshot = f"/api/pools/{address}/machines/{machine.id}/screenshot"
            wait_until(
                lambda: client.get(screenshot).content == machine.screenshot()
            )  # the desktop draws its first pictures
            answer = client.get(screenshot)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
            assert answer.headers["cache-control"] == "no-store"


def test_a_pool_file_is_private_and_a_damaged_one_is_ignored(tmp_path: Path) -> None:
    access = PoolAccess(address="127.0.0.1:7", secret=SECRET)
    with pool_file(tmp_path, access):
        path = tmp_path / "pool.json"
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_pool_file(tmp_path) == access
        path.chmod(0o644)
        assert read_pool_file(tmp_path) is None, "other users may have written it"
        path.unlink()
        path.write_text("{")
        path.chmod(0o600)
        assert read_pool_file(tmp_path) is None
    assert read_pool_file(tmp_path) is None


# --- agent servers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agents() -> Iterator[RpcAgentServerLauncher]:
    launcher = RpcAgentServerLauncher("127.0.0.1")
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


def test_an_agent_server_and_its_agents(agents: RpcAgentServerLauncher, run: Path) -> None:
    agent: Any = Worker("listed", to_dist={"host": agents.host, "port": str(agents.port)})
    assert agent.add(1) == 2
    address = f"{agents.host}:{agents.port}"
    with serving(run.parent, agent_servers=[address, "127.0.0.1:1"]) as (_, client):
        row, dead = get(client, "servers")["servers"]
        assert (row["id"], row["agents"], row["queued"], row["problem"]) == (address, 1, 0, "")
        assert row["memory"] > 1 << 20
        assert "no agent server answers at 127.0.0.1:1" in dead["problem"]
        [listed] = get(client, f"servers/{address}")["agents"]
        assert (listed["name"], listed["kind"]) == ("listed", "Worker")
        assert (listed["queued"], listed["running"], listed["calls"]) == (0, 0, 1)
        assert get(client, "servers/127.0.0.1:1")["agents"] == []
        assert "name it with --agent-server" in get(client, "servers/127.0.0.1:2", 404)["error"]


def test_an_agent_server_with_another_token(
    agents: RpcAgentServerLauncher, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAGENT_TOKEN", SECRET)
    with serving(run.parent, agent_servers=[f"{agents.host}:{agents.port}"]) as (_, client):
        [row] = get(client, "servers")["servers"]
        assert "token" in row["problem"]


def test_malformed_addresses_are_rejected(run: Path) -> None:
    for settings in ({"pools": ["nonsense"]}, {"agent_servers": ["nonsense"]}, {"agent_servers": ["a:b"]}):
        with pytest.raises(ConfigError), serving(run.parent, **settings):
            pass


def test_the_command_ends_at_once_while_it_is_connected(
    pool: VMPoolManager, agents: RpcAgentServerLauncher, run: Path
) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(run.parent), str(pool.serve().address), f"127.0.0.1:{agents.port}"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "process 200\n", "")
    assert time.monotonic() - began < 30


_PROGRAM = """
import sys
from pathlib import Path
from tests.view.recorded import serving

folder, pool, server = sys.argv[1:]
with serving(Path(folder), pools=[pool], agent_servers=[server]) as (_, client):
    [row] = client.get("/api/pools").json()["pools"]
    print(row["provider"], client.get("/api/servers").status_code)
"""


# --- engines --------------------------------------------------------------------------------------------------------------


def test_the_workers_of_a_run(tmp_path: Path) -> None:
    results = [
        result("a", worker="h:1", score=1.0),
        result("b", worker="h:2", status="infrastructure", kind="worker", final=False, error="it was killed"),
        result("b", worker="h:3", started=EPOCH + 5),
    ]
    path = write_run(tmp_path, "one", results)
    events = [
        WorkerEvent("h:1", "started", EPOCH),
        WorkerEvent("h:1", "ready", EPOCH + 1),
        WorkerEvent("h:2", "ready", EPOCH + 1),
        WorkerEvent("h:2", "lost", EPOCH + 3, "killed by signal 9; 2 calls lost"),
        WorkerEvent("h:3", "started", EPOCH + 4),
    ]
    with journal_of(path) as journal:
        journal.record([], worker_events=events)
    with serving(tmp_path) as (_, client):
        ended = get(client, "runs/one/engine")
        (path / "live").mkdir(exist_ok=True)
        set_live(path, workers=[LiveWorker("h:3", rollouts=2, done=1)])
        live = get(client, "runs/one/engine")
        get(client, "runs/two/engine", 404)
    assert (ended["engine"], ended["live"], ended["restarts"], ended["lost"]) == ("local", False, 1, 2)
    states = {one["name"]: (one["state"], one["active"], one["done"], one["lost"]) for one in ended["workers"]}
    assert states == {"h:1": ("stopped", 0, 1, 0), "h:2": ("lost", 0, 0, 2), "h:3": ("stopped", 0, 1, 0)}
    assert live["live"]
    first = live["workers"][0]
    assert (first["name"], first["state"], first["active"]) == ("h:3", "ready", 2)
    assert live["events"][0][1:] == ["h:3", "started", ""]
    assert live["events"][1][1:] == ["h:2", "lost", "killed by signal 9; 2 calls lost"]


def test_a_run_without_events_of_workers(run: Path) -> None:
    with serving(run.parent) as (_, client):
        detail = get(client, "runs/one/engine")
    assert [(one["name"], one["state"], one["done"]) for one in detail["workers"]] == [("host:1", "stopped", 1)]
    assert detail["events"] == []
