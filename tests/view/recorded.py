"""Runs for the tests of the view, written through the store, and a server that shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from paragent.store import (
    ATTEMPTS,
    Journal,
    RolloutActivity,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    pack_activity,
    summarise,
)
from paragent.store.activity import ActivityInterval
from paragent.store.records import pack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.view.server import ViewServer, ViewSettings

EPOCH = 1_800_000_000.0
"""The start of the recorded runs."""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def trajectory(*messages: dict[str, Any], steps: Sequence[dict[str, Any]] = ()) -> bytes:
    return pack_trajectory({"messages": list(messages), "tools": [], "steps": list(steps)})


def result(task: str, attempt: int = 1, status: str = "completed", **given: Any) -> RolloutResult:
    """Return a result that took two seconds, of which one was spent on generating."""
    started = given.pop("started", EPOCH)
    activity = [
        ActivityInterval(RolloutActivity.STARTING, 0.5),
        ActivityInterval(RolloutActivity.GENERATING, 1.0),
        ActivityInterval(RolloutActivity.ACTING, 0.5),
    ]
    values: dict[str, Any] = {
        "started": started,
        "ended": started + 2,
        "seconds": 2.0,
        "worker": "host:1",
        "activity": pack_activity(activity),
    }
    return RolloutResult(task, attempt, RolloutStatus(status), **values | given)


def write_run(
    folder: Path, name: str, results: Sequence[RolloutResult], tasks: Sequence[str] = (), attempts: int = 1
) -> Path:
    """Write a run that has ended; return its directory."""
    path = folder / name
    with RunDirectory(path) as directory:
        directory.open({"mode": "math", "model": "demo", "engine": "local", "attempts": attempts}, "identity")
        names = tasks or list(dict.fromkeys(one.task for one in results))
        directory.journal.add_tasks([BenchmarkTask(task, f"What is {task}?", answer="42") for task in names])
        directory.journal.set_meta(ATTEMPTS, str(attempts))
        session = directory.journal.begin_session()
        directory.write_files(results)
        directory.journal.record(results)
        directory.append_results(results)
        directory.journal.update_session(session, 2.0, len(results))
        directory.finish(summarise(directory.journal, attempts))
    return path


def journal_of(path: Path) -> Journal:
    return Journal(path / "journal.sqlite")


def fake_bundle(folder: Path) -> Path:
    """Write what the build of the front end writes: the tests of the server need no node."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>pages</title>")
    (folder / "assets" / "index-1a2b3c.js").write_text("export {};")
    return folder


@contextlib.contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[tuple[ViewServer, httpx.Client]]:
    """Serve the runs of a folder; yield the server and a client with its token."""
    bundle = folder.parent / f"{folder.name}-bundle"
    if not bundle.exists():
        fake_bundle(bundle)
    with ViewServer(ViewSettings(folder=folder, bundle=bundle, **settings)) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.address, headers=headers, timeout=30) as client:
            yield server, client
