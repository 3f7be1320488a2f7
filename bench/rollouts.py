"""Rollouts with an endpoint that answers after 0.2 s, and the journal alone."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.executors import LIMIT
from bench.measure import Contender, Measurement, Run, Target
from bench.peers.environments import peer_program
from bench.processes import run_script
from paragent.store import Journal, RolloutResult, RolloutStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["MEASUREMENTS", "endpoint"]

_SCRIPTS = Path(__file__).parent / "scripts"
_LATENCY = 0.2
_TURNS = 5
_AT_A_TIME = 200
_IDEAL = _AT_A_TIME / (_TURNS * _LATENCY)
"""Rollouts per second of a client that only waits for the endpoint."""
_CALL = {"tool": "calculator", "arguments": {"expression": "6*7"}}
_BATCH = 200
"""Results in one commit: as many as rollouts that may end at the same time."""


@contextmanager
def endpoint(replies: Sequence[Any], latency: float) -> Iterator[str]:
    """The scripted endpoint in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps({"default": list(replies), "latency": latency}))
        command = [
            sys.executable,
            "-m",
            "paragent.testing.openai_server",
            "--die-with-parent",
            "--script",
            str(script),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()


def _execute(python: str, name: str, size: int) -> Iterator[Run]:
    """A program that executes `size` rollouts and prints the seconds from the first request to the last result."""
    with endpoint([_CALL] * (_TURNS - 1) + ["42"], _LATENCY) as url, tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any"}

        def run() -> float:
            command = [python, str(_SCRIPTS / name), str(size), str(_AT_A_TIME), folder]
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
            if ended.returncode:
                raise RuntimeError((ended.stderr.strip().splitlines() or ["no error output"])[-1])
            seconds = float(ended.stdout.split()[-1])
            return size / seconds

        yield run


@contextmanager
def _paragent(size: int) -> Iterator[Run]:
    yield from _execute(sys.executable, "rollouts_paragent.py", size)


@contextmanager
def _inspect(size: int) -> Iterator[Run]:
    yield from _execute(str(peer_program("inspect_ai")), "rollouts_inspect.py", size)


def _without_http(value: str) -> Callable[[int], AbstractContextManager[Run]]:
    """Rollouts without HTTP requests, in a separate process; report one of the values that it prints."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with tempfile.TemporaryDirectory() as folder:
            yield lambda: float(json.loads(run_script("rollouts_without_http.py", size, folder))[value])

    return opened


def _results(size: int) -> list[RolloutResult]:
    body = os.urandom(1000)
    return [
        RolloutResult(str(n), 1, RolloutStatus.COMPLETED, score=1.0, answer="42", trajectory=body) for n in range(size)
    ]


@contextmanager
def _journal(size: int) -> Iterator[Run]:
    def run() -> float:
        recorded = _results(size)
        with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "journal") as journal:
            began = time.perf_counter()
            for start in range(0, size, _BATCH):
                journal.record(recorded[start : start + _BATCH])
            return size / (time.perf_counter() - began)

    yield run


@contextmanager
def _plain_sqlite(size: int) -> Iterator[Run]:
    """The minimum: one table, two columns, the same durability."""

    def run() -> float:
        rows = [(one.task, one.trajectory) for one in _results(size)]
        with tempfile.TemporaryDirectory() as folder:
            db = sqlite3.connect(Path(folder) / "plain", isolation_level=None)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("CREATE TABLE results (task TEXT PRIMARY KEY, body BLOB)")
            began = time.perf_counter()
            for start in range(0, size, _BATCH):
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT INTO results VALUES (?, ?)", rows[start : start + _BATCH])
                db.execute("COMMIT")
            seconds = time.perf_counter() - began
            db.close()
        return size / seconds

    yield run


MEASUREMENTS = (
    Measurement(
        name="rollouts",
        title="2,000 rollouts of 5 turns",
        question=f"How many rollouts of {_TURNS} turns per second, {_AT_A_TIME} at a time? (ideal: {_IDEAL:.0f})",
        unit="rollouts/s",
        size=2_000,
        quick_size=400,
        contenders=(Contender("paragent", _paragent), Contender("inspect_ai", _inspect)),
        targets=(Target("at least", 0.7 * _IDEAL), Target("at least", 1.0, times="inspect_ai")),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="rollout-overhead",
        title="CPU time of a rollout",
        question=f"How much CPU does a rollout of {_TURNS} turns take, excluding its requests?",
        unit="ms",
        size=4_000,
        quick_size=1_000,
        contenders=(Contender("paragent", _without_http("cpu_ms")),),
        targets=(Target("at most", 2.0),),
        warm_up=False,
        most_rounds=3,
    ),
    Measurement(
        name="rollout-memory",
        title="Memory gained in 100,000 rollouts",
        question="How much memory do driver and workers gain in total during 100,000 rollouts?",
        unit="MB",
        size=100_000,
        quick_size=4_000,
        contenders=(Contender("paragent", _without_http("growth_mb")),),
        targets=(Target("at most", 100.0),),
        warm_up=False,
        most_rounds=1,
    ),
    Measurement(
        name="journal",
        title="Durable results",
        question="How many results per second become durable, in commits of 200?",
        unit="results/s",
        size=20_000,
        quick_size=4_000,
        contenders=(Contender("paragent", _journal), Contender("plain sqlite3", _plain_sqlite)),
        targets=(Target("at least", 2_000.0),),
    ),
)
