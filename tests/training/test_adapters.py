"""The adapters for trainers, with the real packages in the environment `.venv-trainers`, against a service over HTTP."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paragent.testing import OpenAIServer, Script
from paragent.testing.toy_tokens import decode
from paragent.training import Groups, RolloutService
from paragent.training.http_service import TrainingServer
from tests.training.policy import LOOK, config

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "trainers"
ATTEMPTS = 4

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(360)]


@dataclass(slots=True)
class HalfRight(Script):
    """Every second answer is right, so that advantages are not all 0."""

    turns: Iterator[str] = field(default_factory=lambda: itertools.cycle(["41", "42"]))

    def reply(self, request: Mapping[str, Any]) -> Any:
        answers = request["messages"][-1]["role"] == "tool"
        self.default = next(self.turns) if answers else LOOK
        return Script.reply(self, request)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingServer]:
    with (
        OpenAIServer(HalfRight(default=[LOOK])) as endpoint,
        RolloutService(
            config(tmp_path, engine="inline"), endpoint.url, Groups(n=ATTEMPTS), max_staleness=3, groups_per_version=2
        ) as service,
        TrainingServer(service) as server,
    ):
        yield server


def run_program(name: str, training: TrainingServer) -> Any:
    """Run a program of `trainers/` in its environment and return what it printed."""
    python = REPOSITORY / ".venv-trainers/bin/python"
    assert python.exists(), "`make .venv-trainers/.ready` installs the trainers"
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "src"),
        "SERVICE_URL": training.url,
        "SERVICE_TOKEN": training.token,
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [str(python), str(PROGRAMS / name)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def test_trl_trains_with_groups_of_the_service(training: TrainingServer) -> None:
    report = run_program("trl_steps.py", training)
    steps = report["steps"]
    assert len(steps) == 4
    assert all(step["reward"] == 0.5 and step["sample/staleness_max"] <= 4 for step in steps)
    assert all(step["sample/trained_tokens_mean"] > 0 and step["grad_norm"] > 0 for step in steps)
    assert not any("sample/dropped_stale_total" in step for step in steps)
    assert report["changed"] > 0, "the weights were trained"
    assert report["version"] == 5, "one before the first step, and one after each"
    assert report["accepted"] >= 2 * 3, "two groups of each step whose training is certain"


def test_skyrl_accepts_the_batches_of_the_generator(training: TrainingServer) -> None:
    report = run_program("skyrl_batch.py", training)
    assert report["is generator"]
    assert report["metrics"]["avg_score"] == 0.5
    assert report["metrics"]["pass_at_n"] == 1.0
    assert {shape[0] for shape in report["shapes"]} == {3 * ATTEMPTS}
    asked = [decode(ids) for ids in report["prompts"]]
    assert all(f"Ann has {2 + number // ATTEMPTS} coins" in text for number, text in enumerate(asked)), "in its order"
    for mask, logprobs in zip(report["masks"], report["logprobs"], strict=True):
        assert {sampled == 1 for sampled, one in zip(mask, logprobs, strict=True) if one != 0.0} == {True}
        assert 0 < sum(mask) < len(mask), "results of tools are not sampled"
    assert (report["version"], report["accepted"]) == (7, 3)


def test_verl_computes_advantages_of_the_batches_of_the_manager(training: TrainingServer) -> None:
    report = run_program("verl_batch.py", training)
    assert report["shapes"]["input_ids"] == [3 * ATTEMPTS, 1024]
    assert report["shapes"]["responses"] == [3 * ATTEMPTS, 512]
    assert report["seen as sampled"] == 0, "padding has the mask 0"
    assert sorted(report["rewards"]) == [0.0] * 6 + [1.0] * 6
    for reward, mask, advantages in zip(report["rewards"], report["masks"], report["advantages"], strict=True):
        values = {value for sampled, value in zip(mask, advantages, strict=True) if sampled}
        assert {value > 0 for value in values} == {reward == 1.0}
    assert set(report["turns"]) == {4}, "question, call, result, answer"
    assert report["output"] == [-1.0, 0.0, -2.0]
    assert report["version"] == 7
