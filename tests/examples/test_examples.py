"""Every example runs and prints what is expected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Arguments for a short run, and text that the example must print.
EXPECTED: dict[str, tuple[list[str], list[str]]] = {
    "fan_out.py": ([], ["google found 'agents'; wiki found 'agents' (without bing)"]),
    "guess_two_thirds.py": (["--agents", "1000"], ["1,000 agents requested", "round 3: average  9.9544"]),
    "machines.py": ([], ["which had nothing: worker 5 was here", "6 leases, 2 machines and 1 spare"]),
    "mcp_tools.py": ([], ["tools: library__search, library__read", "completed, score 1.0"]),
    "own_engine.py": ([], ["task0 ran with niceness", "task3 ran with niceness"]),
    "own_environment.py": ([], ["find 50: 1 guesses, score 1.00", "3 of 3 rollouts done"]),
    "remote_agents.py": ([], ["reader 4 has read page 4", "is | iterated | over"]),
    "stream.py": (["5000"], ["first answer after", "25000 words in 5000 texts"]),
    "tasks.py": ([], ["task1: tutor explains: what is machine learning?", "task3: tutor explains"]),
    "trouble.py": ([], ["well-3", "raises    failed", "hangs     timed out", "kills     lost", "recovers  succeeded"]),
}


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_runs(name: str) -> None:
    arguments, words = EXPECTED[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout, done.stdout
