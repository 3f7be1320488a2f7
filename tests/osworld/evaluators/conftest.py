"""Fixtures shared by the tests of evaluators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paragent.osworld.evaluators import registry

Score = Callable[..., float]


@pytest.fixture
def score() -> Score:
    """Call a metric as `evaluate` does, in this process."""

    def call(name: str, result: Any, expected: Any = None, **options: Any) -> float:
        return registry.score(name, [result] if expected is None else [result, expected], options)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a text file and return its path."""

    def make(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make
