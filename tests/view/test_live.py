"""What is live: events of a run and of the list of runs, commands, notes."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paragent.rollout.live_run import LiveRun, RunState, write_session_file
from paragent.view.server import ViewServer
from tests.view.recorded import journal_of, result, serving, write_run
from tests.waiting import wait_until


def set_state(path: Path, state: RunState, **given: Any) -> None:
    """Write what a session writes every second."""
    (path / "live").mkdir(exist_ok=True)
    live = LiveRun(run=path.name, state=state, at=time.time(), pid=os.getpid(), host=socket.gethostname(), **given)
    write_session_file(path / "live", live)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs", "one", [result("a", score=1.0)], tasks=["a", "b"])


@pytest.fixture
def served(path: Path) -> Iterator[tuple[ViewServer, httpx.Client]]:
    with serving(path.parent) as found:
        yield found


@pytest.fixture
def client(served: tuple[ViewServer, httpx.Client]) -> httpx.Client:
    return served[1]


def post(served: tuple[ViewServer, httpx.Client], route: str, body: Any) -> httpx.Response:
    server, client = served
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Origin": server.address, "Content-Type": "application/json"}
    return client.post(f"/api/runs/one/{route}", content=content, headers=headers)


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


@pytest.mark.slow
def test_a_live_run_sends_its_state_until_it_ends(path: Path, client: httpx.Client) -> None:
    set_state(path, RunState.RUNNING, active=1)
    with client.stream("GET", "/api/runs/one/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        received = events(answer.iter_lines())
        name, status = next(received)
        assert (name, status["state"], status["active"]) == ("status", "running", 1)
        set_state(path, RunState.PAUSED)
        wait_until(lambda: next(received)[1]["state"] == "paused", 10, what="the pause is sent")
        set_state(path, RunState.COMPLETE, done=2)
        rest = list(received)
    assert [name for name, _ in rest][-2:] == ["status", "end"]
    assert rest[-2][1]["state"] == "complete"


@pytest.mark.slow
def test_the_list_of_runs_is_sent_when_it_changes(path: Path, client: httpx.Client) -> None:
    with client.stream("GET", "/api/events") as answer:
        received = events(answer.iter_lines())
        name, first = next(received)
        assert name == "runs"
        assert [(row["name"], row["state"], row["done"]) for row in first["runs"]] == [("one", "stopped", 1)]
        with journal_of(path) as journal:
            journal.record([result("b", score=0.0)])
        [row] = next(received)[1]["runs"]
        assert (row["state"], row["done"], row["score"]) == ("complete", 2, 0.5)
        write_run(path.parent, "two", [result("a")])
        assert {row["name"] for row in next(received)[1]["runs"]} == {"one", "two"}


@pytest.mark.slow
def test_a_stream_does_not_delay_the_end_of_the_server(path: Path) -> None:
    with serving(path.parent) as (server, client), client.stream("GET", "/api/events") as answer:
        received = events(answer.iter_lines())
        next(received)
        began = time.monotonic()
        server.__exit__()
        assert list(received) == []
        assert time.monotonic() - began < 20  # a stream that is not told to end lasts for ever


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (RunState.STARTING, "running"),
        (RunState.RUNNING, "running"),
        (RunState.PAUSING, "paused"),
        (RunState.PAUSED, "paused"),
        (RunState.STOPPING, "stopping"),
        (RunState.STOPPED, "stopped"),
    ],
)
def test_the_state_of_a_session_is_the_state_of_the_run(
    path: Path, client: httpx.Client, state: RunState, shown: str
) -> None:
    set_state(path, state)
    [row] = client.get("/api/runs").json()["runs"]
    assert row["state"] == shown
    assert client.get("/api/runs/one").json()["live"] == (not state.ended)


def test_a_session_that_was_killed_is_not_live(path: Path, client: httpx.Client) -> None:
    set_state(path, RunState.RUNNING)
    old = json.loads((path / "live" / "session.json").read_text())
    (path / "live" / "session.json").write_text(json.dumps(old | {"at": time.time() - 60}))
    assert client.get("/api/runs").json()["runs"][0]["state"] == "stopped"


def test_a_command_for_a_run_that_is_not_live_is_answered(served: tuple[ViewServer, httpx.Client]) -> None:
    answer = post(served, "control", {"command": "pause"}).json()
    assert not answer["ok"]
    assert answer["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"command": "shutdown"}, 200),
        ({}, 400),
        ([], 400),
        ({"command": 7}, 400),
        ({"command": "pause", "argument": None}, 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b'"' + b"x" * (2 << 20) + b'"', 413),
    ],
)
def test_malformed_commands_are_refused(served: tuple[ViewServer, httpx.Client], body: Any, status: int) -> None:
    answer = post(served, "control", body)
    assert answer.status_code == status
    assert answer.json().get("ok", False) is False


def test_notes_are_added_changed_and_removed(served: tuple[ViewServer, httpx.Client]) -> None:
    def notes() -> list[Any]:
        return [(note["step"], note["text"]) for note in served[1].get("/api/runs/one/executions/1").json()["notes"]]

    note = post(served, "notes", {"execution": 1, "step": 2, "text": "<b>odd</b>"}).json()
    assert note["at"] == pytest.approx(time.time(), abs=30)
    assert notes() == [(2, "<b>odd</b>")]
    changed = post(served, "notes", {"execution": 1, "step": 2, "text": "fine", "number": note["number"]}).json()
    assert changed["number"] == note["number"]
    assert notes() == [(2, "fine")]
    post(served, "notes", {"execution": 1, "step": 2, "text": "", "number": note["number"]})
    assert notes() == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"execution": 99, "step": 0, "text": "x"}, 400),
        ({"execution": 1, "step": -1, "text": "x"}, 400),
        ({"execution": 1 << 70, "step": 0, "text": "x"}, 400),
        ({"execution": 1, "step": 0, "text": "x" * 100_000}, 400),
        ({"execution": 1, "step": 0, "text": ""}, 400),
        ({"execution": 1, "step": 0, "text": "x", "number": 99}, 404),
        ({"execution": 1, "step": 0}, 400),
        ({"execution": "1", "step": 0, "text": "x"}, 400),
    ],
)
def test_malformed_notes_are_refused(served: tuple[ViewServer, httpx.Client], body: Any, status: int) -> None:
    assert post(served, "notes", body).status_code == status
    assert served[1].get("/api/runs/one/executions/1").json()["notes"] == []
