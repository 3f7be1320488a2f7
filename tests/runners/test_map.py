"""`Runners.map`, and settings of a run as keywords."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, Interrupted, Progress, RunConfig, Runners, Task, TaskFailed, exec_tasks
from paragent.engines.inline import InlineRuntime
from paragent.testing.agents import echo
from tests.waiting import wait_until


def wait_for_file(path: str) -> str:
    wait_until(Path(path).exists, 30.0)
    return path


def make_file(path: str) -> str:
    Path(path).touch()
    return path


async def double(number: int) -> int:
    return 2 * number


def invert(number: float) -> float:
    return 1 / number


def test_answers_come_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    """The first input waits for the second, whose answer is kept until the first has arrived."""

    def act(path: str) -> str:
        return make_file(path) if path.endswith("made") else wait_for_file(path + ".made")

    first, second = str(tmp_path / "x"), str(tmp_path / "x.made")
    assert list(Runners.map(act, [first, second], worker_num=2)) == [second, second]


def test_async_functions_and_agents_are_mapped() -> None:
    assert list(Runners.map(double, range(5), engine_name="inline")) == [0, 2, 4, 6, 8]
    assert list(Runners.map(echo, [], engine_name="inline")) == []


def test_a_generator_of_any_length_is_read_as_needed() -> None:
    drawn: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            drawn.append(number)
            yield number

    answers = Runners.map(double, numbers(), engine_name="inline", concurrency=4)
    assert list(itertools.islice(answers, 3)) == [0, 2, 4]
    assert len(drawn) < 10_000


def test_the_error_of_an_input_is_raised_at_its_place() -> None:
    answers = Runners.map(invert, [1, 0, 2], worker_num=1)
    assert next(answers) == 1
    with pytest.raises(TaskFailed, match="ZeroDivisionError") as caught:
        next(answers)
    assert caught.value.response.id == "1"
    assert next(answers, None) is None


def test_settings_are_keywords_of_every_function() -> None:
    tasks = [Task(1, double, id="a")]
    assert Runners.sync_run_task(tasks, engine_name="inline")["a"].answer == 2
    assert exec_tasks(tasks, engine_name="inline")["a"].answer == 2
    assert [response.answer for response in Runners.iter_tasks(tasks, engine_name="inline")] == [2]


def test_keywords_have_priority_over_the_configuration() -> None:
    seen: list[Any] = []
    config = RunConfig(engine_name="no such engine", progress=seen.append)
    assert list(Runners.map(double, [1], config, engine_name="inline")) == [2]
    assert seen


def test_a_misspelled_keyword_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'worker_nm', did you mean 'worker_num'\?"):
        Runners.sync_run_task([], worker_nm=3)  # type: ignore[call-arg]


async def nap_for_long(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def test_ctrl_c_raises_interrupted_and_not_the_failure_of_a_cancelled_task() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.running:
            raise KeyboardInterrupt

    answers = Runners.map(nap_for_long, [60.0] * 3, engine_name="inline", progress=interrupt)
    with pytest.raises(Interrupted):
        next(answers)


def test_settings_that_an_open_engine_has_already_are_rejected_as_keywords() -> None:
    with InlineRuntime(RunConfig(engine_name="inline")) as engine:
        assert list(Runners.map(double, [1], engine=engine, timeout=60, job_name="one")) == [2]
        with pytest.raises(ConfigError, match=r"worker_num, concurrency cannot be changed with engine="):
            Runners.sync_run_task([], engine=engine, worker_num=2, timeout=60, concurrency=3)
