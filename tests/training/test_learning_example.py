"""The example that learns, while workers, the endpoint and the trainer are killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/training/train.py"


@pytest.mark.slow(30)
@pytest.mark.timeout(360)
def test_policy_learns_and_trains_each_group_once_while_processes_are_killed(tmp_path: Path) -> None:
    options = ["--chaos", "--groups=100", "--versions-between-kills=5", "--time-limit=300", f"--folder={tmp_path}"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], capture_output=True, text=True, check=False, timeout=340
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = dict(re.split(r" {2,}", line.removesuffix("  ok"), maxsplit=1) for line in done.stdout.splitlines())
    assert lines["groups owed, trained"] == "100, 100"
    assert lines["groups trained twice"] == "0"
    assert lines["rollouts owed, trained"] == "800, 800"
    assert float(lines["largest error of a log probability"]) < 1e-6
    killed = {kind: int(number) for number, kind in re.findall(r"(\d+) x (\w+)", lines["killed"])}
    assert min(killed.values()) >= 1, killed
    first, last = map(float, lines["mean reward, first and last third"].split(", "))
    assert last > first + 0.05, done.stdout
