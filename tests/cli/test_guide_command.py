"""The command of the parallel rollout guide, `python src/run_parallel_rollout.py`, works from a clone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paragent.rollout.machines import DEFAULT_PROVIDER
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "migration" / "from_run_parallel_rollout.md"
SETTINGS = ROOT / "docs" / "reference" / "settings.md"
DEFAULTS = dict(re.findall(r"^\| `--([a-z-]+)`[^|]*\| (.+?) \|$", PAGE.read_text(), re.MULTILINE))


def run(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [python, str(ROOT / "src" / "run_parallel_rollout.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.timeout(180)
def test_it_runs_rollouts(tmp_path: Path) -> None:
    chosen = ["--mode", "math", "--data", "sample", "--limit", "2", "--num-rollouts", "2", "--model", "demo"]
    done = run(*chosen, "--output-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 done" in done.stdout
    assert len(list(tmp_path.glob("*/results.jsonl"))) == 1


def test_the_page_states_the_defaults_of_the_settings() -> None:
    assert len(DEFAULTS) == 17
    rows = re.findall(r"^\| `--([a-z-]+)[^|]*\|[^|]*\|([^|]*)\|", SETTINGS.read_text(), re.MULTILINE)
    settings = {flag: default.strip() for flag, default in rows}
    shown = {
        flag: "" if default.startswith("none") or default == "`False`" else default
        for flag, default in DEFAULTS.items()
    }
    settings["provider-name"] = f"`{DEFAULT_PROVIDER}`"  # the settings have None, for runs without machines
    assert shown == {flag: settings[flag] for flag in DEFAULTS}


def test_a_python_without_the_packages_is_told_what_to_do() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "src" / "run_parallel_rollout.py"), "--mode", "math"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install '.[demo]'" in done.stderr
