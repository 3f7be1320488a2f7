"""The model `demo-noisy` in real rollouts: its mistakes depend on the temperature, and a run can be repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paragent.demo import noisy_policy
from paragent.demo.samples import sample_path
from paragent.rollout import RolloutConfig, run_parallel_rollout
from paragent.store import Summary

pytestmark = pytest.mark.slow


def run(folder: Path, name: str, temperature: float) -> tuple[Summary, list[tuple[str, int, str]]]:
    """Return the summary, and the answer to each attempt."""
    settings: dict[str, Any] = {
        "mode": "math",
        "model": "demo-noisy",
        "limit": 10,
        "attempts": 2,
        "num_rollouts": 20,
        "engine": "inline",
    }
    config = RolloutConfig(
        **settings, data=sample_path("math"), temperature=temperature, output_dir=folder, run_name=name
    )
    summary = run_parallel_rollout(config)
    lines = (folder / name / "results.jsonl").read_text().splitlines()
    return summary, sorted((one["task"], one["attempt"], one["answer"]) for one in map(json.loads, lines))


def test_a_run_can_be_repeated_and_has_right_and_wrong_answers(tmp_path: Path) -> None:
    summary, answers = run(tmp_path, "one", 0.7)
    assert summary.mean is not None
    assert 0.0 < summary.mean < 1.0
    assert summary.prompt_tokens
    assert run(tmp_path, "two", 0.7)[1] == answers


def test_the_policy_makes_no_mistakes_at_temperature_0(tmp_path: Path) -> None:
    summary, _ = run(tmp_path, "cold", 0.0)
    assert summary.mean == 1.0
    assert not summary.failures


def test_every_rollout_has_a_result_although_many_requests_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three failures in a row would leave a rollout pending."""
    monkeypatch.setattr(noisy_policy, "_DOWN", 0.8)  # two of three first requests
    summary, _ = run(tmp_path, "many", 0.7)
    assert (summary.done, summary.pending) == (20, 0)
