"""AWorld's engines on the same 200 tasks. AWorld is in an environment of its own (`python -m bench.peers`)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.executors import LIMIT, WORKERS
from bench.measure import Contender, Measurement, Run
from bench.peers.environments import peer_program
from bench.simple_agents import echo
from paragent import RunConfig, Runners, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_SCRIPT = Path(__file__).parent / "scripts" / "aworld_tasks.py"


def _aworld(engine: str) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        python = str(peer_program("aworld"))

        def run() -> float:
            command = [python, str(_SCRIPT), engine, str(size), str(WORKERS)]
            variables = {**os.environ, "RAY_ADDRESS": "local", "PYSPARK_PYTHON": python}
            with tempfile.TemporaryDirectory() as folder:  # it writes logs to the working directory
                ended = subprocess.run(
                    command, env=variables, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=folder
                )
            [result] = [line for line in ended.stdout.splitlines() if "RESULT" in line] or [""]
            if not result:
                raise RuntimeError(f"AWorld on {engine}: {(ended.stderr.strip().splitlines() or ['no output'])[-1]}")
            count, seconds = result.partition("RESULT")[2].split()
            if int(count) != size:
                raise RuntimeError(f"AWorld on {engine} returned {count} of {size} answers")
            return float(seconds)

        yield run

    return opened


def _paragent(engine: str) -> Callable[[int], AbstractContextManager[Run]]:
    """Start an engine for each run and close it after the run, as AWorld does."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        def run() -> float:
            started = perf_counter()
            tasks = [Task(input=f"question {number}", agent=echo, id=str(number)) for number in range(size)]
            responses = Runners.sync_run_task(tasks, RunConfig(engine_name=engine, worker_num=WORKERS))
            seconds = perf_counter() - started
            assert all(response.success for response in responses.values())
            return seconds

        yield run

    return opened


def _side_by_side(engine: str, needs: str = "") -> Measurement:
    return Measurement(
        name=f"aworld-{engine}",
        title=f"200 tasks and start, {engine}",
        question=f"How long do 200 trivial tasks take on {engine}, including its start, here and with AWorld?",
        unit="s",
        size=200,
        quick_size=20,
        contenders=(
            Contender(f"paragent on {engine}", _paragent(engine), needs=needs),
            Contender(f"AWorld 0.3.2 on {engine}", _aworld(engine)),
        ),
        warm_up=False,
        most_rounds=2,
    )


MEASUREMENTS = (_side_by_side("local"), _side_by_side("ray", "ray"), _side_by_side("spark", "pyspark"))
