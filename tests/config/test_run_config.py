"""`RunConfig` and `Task` validate their fields, with messages that name the field and the allowed values."""

from __future__ import annotations

from typing import Any

import pytest

from paragent import ConfigError, EngineName, RunConfig, Task
from paragent.config import usable_cores


def test_defaults_depend_on_the_machine() -> None:
    config = RunConfig()
    assert config.engine_name == EngineName.LOCAL
    assert config.workers == usable_cores()
    assert (config.sync_limit, config.async_limit) == (1, 1000)


def test_concurrency_applies_to_sync_and_async_tasks() -> None:
    config = RunConfig(concurrency=7)
    assert (config.sync_limit, config.async_limit) == (7, 7)


def test_engine_names_and_strings_are_equal() -> None:
    assert RunConfig(engine_name="ray") == RunConfig(engine_name=EngineName.RAY)


def test_an_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'worker_nums', did you mean 'worker_num'\?.*concurrency.*timeout"):
        RunConfig(worker_nums=3)


@pytest.mark.parametrize(
    "settings",
    [
        {"worker_num": 0},
        {"worker_num": 2.5},
        {"worker_num": True},
        {"concurrency": -1},
        {"timeout": 0},
        {"timeout": "3"},
        {"max_retries": -1},
        {"sequence_dependent": 1},
        {"in_local": "yes"},
        {"progress": "bar"},
        {"engine_name": ""},
        {"engine_name": None},
        {"engine_options": ["x"]},
        {"job_name": ""},
        {"reuse_process": None},
    ],
)
def test_invalid_values_are_rejected_with_the_field_name(settings: dict[str, Any]) -> None:
    [name] = settings
    with pytest.raises(ConfigError, match=name):
        RunConfig(**settings)


def test_a_changed_copy_is_validated() -> None:
    config = RunConfig(worker_num=2)
    assert config.with_settings(worker_num=3).workers == 3
    with pytest.raises(ConfigError):
        config.with_settings(worker_num=0)


@pytest.mark.parametrize("settings", [{"id": ""}, {"id": 3}, {"timeout": -1}, {"timeout": True}, {"max_retries": -1}])
def test_tasks_are_validated_on_construction(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Task("input", print, **settings)


def test_tasks_without_an_id_get_a_unique_one() -> None:
    assert len({Task("x").id for _ in range(1000)}) == 1000
