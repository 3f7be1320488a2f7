"""`RunConfig` and `Task` validate their fields, with messages that name the field and the allowed values."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from paragent import (
    ConfigError,
    DistConf,
    EngineName,
    ErrorInfo,
    RunConfig,
    Task,
    TaskResponse,
    TaskStatus,
)
from paragent.config import RunSettings, usable_cores
from paragent.tasks import TaskSettings


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
        RunConfig(worker_nums=3)  # type: ignore[call-arg]


def test_unknown_fields_of_tasks_and_remote_agents_suggest_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Task has no field 'timeot', did you mean 'timeout'\?.*max_retries"):
        Task("x", len, timeot=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"DistConf has no field 'hots', did you mean 'host'\?.*own_process"):
        DistConf(hots="a")  # type: ignore[call-arg]


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


def test_an_own_engine_and_the_name_of_another_are_rejected_together() -> None:
    with pytest.raises(ConfigError, match="cls and engine_name='ray' name two engines"):
        RunConfig(cls="module:Engine", engine_name=EngineName.RAY)
    with pytest.raises(ConfigError, match="name two engines"):
        RunConfig(engine_name="ray").with_settings(cls="module:Engine")
    assert RunConfig(cls="module:Engine").with_settings(worker_num=2).cls == "module:Engine"
    assert RunConfig(cls="module:Engine", engine_name="local").cls == "module:Engine", "the default may be written"


def test_the_signature_has_all_fields_with_their_types_and_defaults() -> None:
    signature = inspect.signature(RunConfig)
    assert signature.parameters["worker_num"].annotation == "int | None"
    assert signature.parameters["job_name"].default == "paragent"
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in signature.parameters.values())


@pytest.mark.parametrize(("settings", "record"), [(RunSettings, RunConfig), (TaskSettings, Task)])
def test_keyword_settings_are_the_fields_of_their_record(settings: Any, record: Any) -> None:
    """Python cannot derive one from the other, so both list the fields."""
    fields = {field.name: field.type for field in dataclasses.fields(record) if field.name not in ("input", "agent")}
    assert {name: kind.__forward_arg__ for name, kind in settings.__annotations__.items()} == fields


def test_representations_show_settings_that_are_not_defaults() -> None:
    assert repr(RunConfig(engine_name="local")) == "RunConfig()"
    config = RunConfig(engine_name=EngineName.RAY, worker_num=3, timeout=1 / 3, engine_options={"address": "auto"})
    text = "RunConfig(engine_name='ray', worker_num=3, timeout=0.333, engine_options={'address': 'auto'})"
    assert repr(config) == text


def test_representations_of_responses_have_no_empty_fields() -> None:
    response = TaskResponse("t1", answer=[1], success=True, status=TaskStatus.SUCCEEDED, time_cost=0.011412878999976783)
    assert repr(response) == "TaskResponse(id='t1', answer=[1], status='succeeded', time_cost=0.0114)"
    error = ErrorInfo("ValueError", "no", "Traceback ...")
    failed = TaskResponse("t2", msg="ValueError: no", error=error, queue_time=12.34567, executions=3, trace_id="7")
    text = "TaskResponse(id='t2', status='failed', msg='ValueError: no', queue_time=12.346, executions=3)"
    assert repr(failed) == text
    assert len(repr(TaskResponse("t3", answer="x" * 10_000))) < 300


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
