"""AWorld's engines on the same 200 tasks. AWorld is installed from PyPI into a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.executors import LIMIT, WORKERS
from bench.measure import Contender, Measurement, Run
from bench.simple_agents import echo
from paragent import RunConfig, Runners, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_HOME = Path(__file__).parent / "peers" / "aworld"
_PYTHON = _HOME / "bin" / "python"
_REQUIREMENTS = ("aworld==0.3.2", "pydantic<2.12", "ray", "pyspark")
"""Release 0.3.2 needs an MCP library that cannot be imported with a later pydantic."""
_INSTALLING = 900.0
"""Seconds for pip to install them; the set of packages is large."""
_SCRIPT = Path(__file__).parent / "scripts" / "aworld_tasks.py"


def _environment() -> None:
    """Create AWorld's environment, if it does not exist."""
    ready = _HOME / ".ready"
    if ready.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(_HOME)], check=True, timeout=LIMIT)
    install = [str(_PYTHON), "-m", "pip", "install", "--quiet", *_REQUIREMENTS]
    subprocess.run(install, check=True, timeout=_INSTALLING, capture_output=True)
    ready.touch()


def _aworld(engine: str) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        _environment()

        def run() -> float:
            command = [str(_PYTHON), str(_SCRIPT), engine, str(size), str(WORKERS)]
            variables = {**os.environ, "RAY_ADDRESS": "local", "PYSPARK_PYTHON": str(_PYTHON)}
            ended = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=_HOME
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
        question=f"How long do 200 trivial tasks take on {engine}, including its start, here and with AWorld?",
        unit="s",
        size=200,
        quick_size=20,
        contenders=(
            Contender(f"paragent on {engine}", _paragent(engine), needs=needs),
            Contender(f"AWorld 0.3.2 on {engine}", _aworld(engine)),
        ),
        warm_up=False,
        most_rounds=3,
    )


MEASUREMENTS = (_side_by_side("local"), _side_by_side("ray", "ray"), _side_by_side("spark", "pyspark"))
