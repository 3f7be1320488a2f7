"""The programs of docs/howto/training.md run as they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent import RolloutConfig
from paragent.testing import OpenAIServer, Script
from paragent.training import Groups, RolloutService
from paragent.training.http_service import TrainingServer

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "training.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Script(default="5/6")) as started:
        yield started


def run(number: int, **names: Any) -> None:
    exec(compile(programs()[number], str(PAGE), "exec"), names)


@pytest.mark.slow
def test_the_loop(tmp_path: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained: list[Any] = []
    updates: list[int] = []
    run(
        0,
        POLICY_URL=server.url,
        train=lambda *sample: trained.append(sample),
        update_weights_of_the_endpoint=lambda: updates.append(1),
    )
    assert (len(trained), len(updates)) == (4, 1)


def test_a_trainer_in_another_image(tmp_path: Path, server: OpenAIServer) -> None:
    config = RolloutConfig(mode="math", model="policy", output_dir=tmp_path, engine="inline")
    trained: list[Any] = []
    with RolloutService(config, server.url, Groups(n=2)) as service, TrainingServer(service) as training:
        run(1, SERVICE_URL=training.url, TOKEN=training.token, train_on=trained.append)
        assert service.status().accepted == len(trained) == 1
    assert len(programs()) == 2
