"""Run directories that came from elsewhere and may contain anything: none hides other runs, hangs the view or leads out."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.view.recorded import PNG, result, serving, trajectory, write_run
from tests.waiting import wait_until

PAGES = ["", "/rollouts", "/timeline", "/executions/1", "/executions/1/raw/1", "/search?q=word", "/engine"]


def execute(path: Path, statement: str, *values: Any) -> None:
    db = sqlite3.connect(path / "journal.sqlite", isolation_level=None)
    db.execute(statement, values)
    db.close()


def with_meta(key: str, value: str) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        (path / "summary.json").unlink()
        execute(path, "INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    return attack


def with_session(**given: Any) -> Callable[[Path], None]:
    values = {"run": "odd", "state": "running", "at": time.time(), "pid": 1, "host": "h", **given}
    return with_file("live/session.json", json.dumps(values))


def with_file(name: str, text: str) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        (path / name).write_text(text)

    return attack


def with_trajectory(text: bytes) -> Callable[[Path], None]:
    return lambda path: execute(path, "UPDATE trajectories SET body = ?", zlib.compress(text))


def with_pipe(name: str) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)

    return attack


def with_summary(**changes: Any) -> Callable[[Path], None]:
    def attack(path: Path) -> None:
        file = path / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return attack


def with_endless_view(path: Path) -> None:
    execute(path, "ALTER TABLE sessions RENAME TO other")
    count = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
    execute(path, f"CREATE VIEW sessions AS {count} SELECT n AS number, 1.0 AS started, 1.0 AS seconds FROM c")


def with_name_of_bytes(path: Path) -> None:
    path.rename(path.parent / os.fsdecode(b"odd\xff"))


def with_endless_link(path: Path) -> None:
    (path / "journal.sqlite").unlink()
    (path / "journal.sqlite").symlink_to("journal.sqlite")


ATTACKS: dict[str, Callable[[Path], None]] = {
    "a time that is text": with_session(at="soon"),
    "a cost that is not a number": with_session(cost=float("nan")),
    "a nested session": with_file("live/session.json", "[" * 100_000),
    "a nested configuration": with_file("config.json", "[" * 100_000),
    "a configuration with many levels": with_file("config.json", '{"x": ' + "[" * 700 + "]" * 700 + "}"),
    "a configuration with NaN": with_file("config.json", '{"model": "m", "x": NaN, "y": [-Infinity]}'),
    "a configuration that is a list": with_file("config.json", "[1]"),
    "a configuration that is a pipe": with_pipe("config.json"),
    "a session that is a pipe": with_pipe("live/session.json"),
    "a journal that is a pipe": with_pipe("journal.sqlite"),
    "a journal that is an endless link": with_endless_link,
    "a summary with wrong types": with_summary(statuses=[], interval=3),
    "a summary with NaN": with_summary(mean=float("nan")),
    "attempts that are text": with_meta("attempts", "many"),
    "too many attempts": with_meta("attempts", "1000000000"),
    "prices without a model": with_meta("prices", '{"x": 1}'),
    "machines that are a list": with_meta("machines", "[]"),
    "an endless view": with_endless_view,
    "a nested trajectory": with_trajectory(b'{"messages": ' + b"[" * 100_000),
    "a large trajectory in a few bytes": with_trajectory(b'{"messages": "' + bytes(200 << 20)),
    "a task that is a list": lambda path: execute(path, "UPDATE tasks SET body = '[]'"),
    "an unknown status": lambda path: execute(path, "UPDATE results SET status = 'odd'"),
    "an error that is bytes": lambda path: execute(path, "UPDATE results SET error = x'ff', kind = 'k'"),
    "a name that is not text": with_name_of_bytes,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_damaged_run_does_not_hide_others_and_answers(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    said = trajectory({"role": "user", "content": "a word"}, {"role": "assistant", "content": "x"})
    write_run(tmp_path / "runs", "good", [result("a", trajectory=said)])
    attack(write_run(tmp_path / "runs", "odd", [result("a", trajectory=said)]))
    with serving(tmp_path / "runs") as (_, client):
        rows = {row["name"]: row for row in strict(client.get("/api/runs"))["runs"]}
        assert rows["good"]["state"] == "complete"
        for page in PAGES:
            answer = client.get(f"/api/runs/odd{page}")
            strict(answer)
            assert answer.status_code in {200, 404, 503}, answer.text
        assert client.get("/api/pools").status_code == 200


def strict(answer: httpx.Response) -> Any:
    """Return the JSON of an answer as a browser reads it, which knows no NaN."""

    def fail(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(answer.text, parse_constant=fail)


def test_numbers_of_a_reply_that_are_not_finite_become_null(tmp_path: Path) -> None:
    reply = {"kind": "model", "seconds": float("nan"), "response": {"logprob": float("-inf"), "text": "x"}}
    said = trajectory({"role": "assistant", "content": "x"}, steps=[reply])
    write_run(tmp_path / "runs", "one", [result("a", trajectory=said)])
    with serving(tmp_path / "runs") as (_, client):
        raw = strict(client.get("/api/runs/one/executions/1/raw/0"))
        assert raw["response"] == {"logprob": None, "text": "x"}
        assert strict(client.get("/api/runs/one/executions/1"))["steps"][0]["seconds"] is None


def test_a_copied_run_cannot_claim_to_be_live(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [result("a")])
    with_session(at=time.time() + 1e6)(path)
    pool = path / "live/pool.json"
    pool.write_text(json.dumps({"address": "192.0.2.1:80", "secret": "s" * 40, "tls": None}))
    pool.chmod(0o600)
    with serving(tmp_path / "runs") as (_, client):
        assert client.get("/api/runs").json()["runs"][0]["state"] == "complete"
        assert client.get("/api/pools").json() == {"pools": []}


@pytest.mark.parametrize("by", ["attempt", "link"])
def test_files_outside_of_the_run_are_neither_listed_nor_served(tmp_path: Path, by: str) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "secret.txt").write_text("secret")
    (private / "secret.png").write_bytes(PNG)
    path = write_run(tmp_path / "runs", "one", [result("a")])
    if by == "attempt":
        execute(path, "UPDATE results SET attempt = ?", str(private))
    else:
        (path / "images/a").mkdir(parents=True)
        (path / "images/a/1").symlink_to(private)
    with serving(tmp_path / "runs") as (_, client):
        assert "secret.txt" not in client.get("/api/runs/one/executions/1").text
        assert client.get("/api/runs/one/images/1/secret.png").status_code in {404, 503}


def test_the_index_is_not_written_through_a_link(tmp_path: Path) -> None:
    said = trajectory({"role": "user", "content": "a word"})
    path = write_run(tmp_path / "runs", "one", [result("a", trajectory=said)])
    (path / "search.sqlite").symlink_to(tmp_path / "outside")
    with serving(tmp_path / "runs") as (_, client):
        wait_until(lambda: client.get("/api/runs/one/search?q=word").json()["total"] == 1, what="the index")
    assert not (tmp_path / "outside").exists()


def test_an_index_with_damaged_pages_is_built_again(tmp_path: Path) -> None:
    said = trajectory({"role": "user", "content": " ".join(f"word{number}" for number in range(20_000))})
    path = write_run(tmp_path / "runs", "one", [result("a", trajectory=said)])
    with serving(tmp_path / "runs") as (_, client):
        wait_until(lambda: client.get("/api/runs/one/search?q=word77").json()["total"] == 1, what="the index")
    index = path / "search.sqlite"
    content = index.read_bytes()
    assert len(content) > 5 * 4096
    index.write_bytes(content[: 4 * 4096] + bytes(len(content) - 4 * 4096))
    with serving(tmp_path / "runs") as (_, client):
        wait_until(lambda: client.get("/api/runs/one/search?q=word77").json()["total"] == 1, what="the new index")


def test_credentials_in_addresses_are_not_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [result("a")])
    config = {"model": "m", "base_url": "https://me:hunter2@host/v1", "args": {"proxy": ["http://hunter2@p:1?a=b@c"]}}
    (path / "config.json").write_text(json.dumps(config))
    with serving(tmp_path / "runs") as (_, client):
        shown = client.get("/api/runs/one").json()["config"]
    assert shown == {"model": "m", "base_url": "https://…@host/v1", "args": {"proxy": ["http://…@p:1?a=b@c"]}}


BOMBS = {
    "a long text": b'{"messages": [{"role": "user", "content": "' + b"x" * (200 << 20) + b'"}]}',
    "many values": b'{"messages": [' + b"[]," * (40 << 20) + b"[]]}",
    "a text below the limit": b'{"messages": [{"role": "user", "content": "' + b"x" * (20 << 20) + b'"}]}',
    "a damaged text": b'{"messages": [',
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_commands_read_a_packed_trajectory_with_little_memory(bomb: bytes, tmp_path: Path) -> None:
    said = trajectory({"role": "user", "content": "a word"}, {"role": "assistant", "content": "x"})
    path = write_run(tmp_path, "odd", [result("a", trajectory=said)])
    with_trajectory(bomb)(path)
    most, target = 700 << 20, str(tmp_path / "out.jsonl")
    commands = [["show", str(path), "a"], ["export", str(path), "--format", "openai-chat", "--output", target]]
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({most}, {most}))"
    code = f"{limit}; from paragent.cli import main; sys.exit(any([main(one) for one in {commands!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout) < 100_000
