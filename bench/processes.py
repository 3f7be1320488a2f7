"""Runs programs in separate processes, because their start time or memory is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.executors import LIMIT

__all__ = ["run_script"]

_SCRIPTS = Path(__file__).parent / "scripts"


def run_script(name: str, *arguments: object) -> str:
    """Run a program of `bench/scripts` and return what it printed.

    `PYTHONDONTWRITEBYTECODE` is removed from its environment: peers are installed with bytecode, and without it a checkout of
    paragent would be compiled at every start, in the program and in each worker.

    Raises:
        RuntimeError: it failed; the message ends with the last line of its error output.
        subprocess.TimeoutExpired: it did not end.
    """
    command = [sys.executable, str(_SCRIPTS / name), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no error output"])[-1]
        raise RuntimeError(f"{name} ended with {ended.returncode}: {last}")
    return ended.stdout
