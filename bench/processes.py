"""Programs that need a process of their own, because their start or their memory is what is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.pools import LIMIT

__all__ = ["run_script"]

_SCRIPTS = Path(__file__).parent / "scripts"


def run_script(name: str, *arguments: object) -> str:
    """Run a program of `bench/scripts` and return what it printed.

    Raises:
        RuntimeError: it failed; the message ends with the last line of its error output.
        subprocess.TimeoutExpired: it did not end.
    """
    command = [sys.executable, str(_SCRIPTS / name), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no error output"])[-1]
        raise RuntimeError(f"{name} ended with {ended.returncode}: {last}")
    return ended.stdout
