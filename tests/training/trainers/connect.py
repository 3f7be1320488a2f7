"""Connects a program of a trainer to the rollout service of the test."""

from __future__ import annotations

import os
from typing import Any

from paragent.training.client import RemoteRolloutService

QUESTIONS = [(f"Ann has {number} coins.", "42") for number in range(2, 10)]
"""Questions, and the answers that are right; the scripted endpoint does not read the questions."""


def connect() -> RemoteRolloutService:
    return RemoteRolloutService(os.environ["SERVICE_URL"], os.environ["SERVICE_TOKEN"])


def rows(n: int) -> list[dict[str, Any]]:
    """Return some rows of a dataset, in the form that SkyRL and verl share."""
    return [
        {
            "prompt": [{"role": "system", "content": "ignored"}, {"role": "user", "content": question}],
            "uid": f"row-{number}",
            "reward": {"ground_truth": answer, "style": "rule"},
        }
        for number, (question, answer) in enumerate(QUESTIONS[:n])
    ]
