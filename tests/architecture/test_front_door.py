"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import paragent

HEAVY = {"asyncio", "cloudpickle", "grpc", "multiprocessing", "openai", "pyspark", "ray", "rich", "torch"}


def test_public_names_are_sorted_unique_and_real() -> None:
    assert paragent.__all__ == sorted(set(paragent.__all__))
    for name in paragent.__all__:
        assert getattr(paragent, name) is not None


def test_every_public_name_has_a_home_and_the_other_way_round() -> None:
    assert sorted(paragent._HOME) == sorted(set(paragent.__all__) - paragent_own_names())


def paragent_own_names() -> set[str]:
    return {name for name in paragent.__all__ if getattr(getattr(paragent, name), "__module__", "") == "paragent"}


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Runner"):
        _ = paragent.Runner


def modules_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_paragent_loads_nothing_heavy() -> None:
    loaded = modules_after("import paragent")
    assert not loaded & HEAVY, loaded & HEAVY


def test_the_names_of_the_task_door_load_nothing_of_the_engines() -> None:
    loaded = modules_after("from paragent import Task, RunConfig, EngineName, TaskResponse, AgentBase, Msg")
    assert not loaded & (HEAVY - {"asyncio"}), loaded & HEAVY


def test_importing_paragent_is_quick() -> None:
    """Its own working time, the best of five, so that a busy machine does not matter."""
    code = "import time; t = time.process_time(); import paragent; print(time.process_time() - t)"
    best = min(
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(5)
    )
    assert best < 0.1, best
