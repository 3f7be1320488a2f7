"""Tests of the environment and of a whole run. They need no API key."""

import tomllib
from pathlib import Path

from paragent import BenchmarkTask, RolloutConfig, run_parallel_rollout
from paragent.testing import EnvironmentContract

from my_project.environment import Shop

PROJECT = Path(__file__).parent.parent


class TestShop(EnvironmentContract):
    """The tests that every environment must pass: tools, scores, cancelled calls, concurrent rollouts."""

    environment = Shop
    task = BenchmarkTask("fruit", "What do 4 apples and 2 pears cost?", "3.40")
    right, wrong = "Answer: 3.40", "Answer: 9.99"
    good_call = ("price", {"item": "apples"})


def test_the_model_demo_solves_all_tasks_but_one(tmp_path: Path) -> None:
    """Run all tasks in this process, with the settings of rollout.toml."""
    settings = tomllib.loads((PROJECT / "rollout.toml").read_text())
    settings |= {"data": PROJECT / "tasks.jsonl", "model": "demo", "engine": "inline", "output_dir": tmp_path}
    summary = run_parallel_rollout(RolloutConfig(**settings))
    assert summary.scored == 8
    assert summary.mean == 7 / 8
