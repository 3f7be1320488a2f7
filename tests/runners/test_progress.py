"""What the progress of a run shows: to functions, as lines, and on a terminal, also after Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from paragent import Progress, RunConfig, Runners, Task, TaskResponse, TaskStatus
from paragent.engines import open_engine
from paragent.runners.progress import open_reporter
from paragent.testing.agents import echo, fail, nap
from paragent.testing.programs import END_LIMIT, START_LIMIT, wait_until

ONE = RunConfig(worker_num=1)
SHOW_CURSOR = "\x1b[?25h"


class Submitted(NamedTuple):
    """The calls of a run."""

    outstanding: int
    running: int


def test_progress_is_reported_to_a_function() -> None:
    reported: list[tuple[int, int | None]] = []

    def tell(progress: Progress) -> None:
        reported.append((progress.done, progress.total))

    Runners.sync_run_task([Task(0.05, nap) for _ in range(10)], ONE.with_settings(progress=tell))
    assert reported[-1] == (10, 10)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)


def test_progress_is_printed_as_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Runners.sync_run_task([Task(1, fail), Task(1, echo)], ONE.with_settings(progress=True, job_name="lines"))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lines: 2 of 2 done, 0 in progress, 1 without success")


def test_an_engine_that_starts_is_shown_as_starting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.runners.progress._INTERVAL", 0.0)
    monkeypatch.setattr("paragent.runners.progress._LINE_INTERVAL", 0.0)
    reporter = open_reporter(RunConfig(engine_name="ray", progress=True, job_name="r"), 5)
    assert reporter is not None
    reporter.note([], Submitted(5, 5), starting=True)
    reporter.note([], Submitted(5, 5))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("r: 0 of 5 done, starting ray, 0 without success")
    assert second.startswith("r: 0 of 5 done, 5 in progress")


def test_progress_does_not_say_that_the_engine_starts_while_tasks_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.runners.progress._LINE_INTERVAL", 0.0)
    Runners.sync_run_task([Task(1.0, nap)], ONE.with_settings(progress=True))  # one response, after a second
    assert "0 of 1 done, 1 in progress" in capsys.readouterr().err


@pytest.mark.parametrize("known", [True, False], ids=["list", "generator"])
def test_the_last_line_of_progress_is_printed_once(capsys: pytest.CaptureFixture[str], known: bool) -> None:
    tasks = [Task(1, echo), Task(1, echo)]
    assert len(list(Runners.iter_tasks(tasks if known else iter(tasks), ONE, progress=True))) == 2
    assert capsys.readouterr().err.count("2 of 2 done" if known else "2 done, 0 in progress") == 1


def some(count: int) -> Iterator[Task]:
    for _ in range(count):
        yield Task(0.02, nap)


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_the_tasks_in_progress_are_those_in_a_slot_and_not_the_queue(engine: str) -> None:
    running: list[int] = []
    config = RunConfig(
        engine_name=engine, worker_num=1, concurrency=2, progress=lambda progress: running.append(progress.running)
    )
    assert len(list(Runners.iter_tasks(some(60), config))) == 60
    assert (max(running), running[-1]) == (2, 0)


@pytest.mark.parametrize(
    ("settings", "sync", "asynchronous", "running"),
    [
        ({}, 50, 0, 3),
        ({}, 2, 0, 2),
        ({}, 50, 5000, 3003),
        ({"concurrency": 4}, 50, 5000, 12),
        ({"concurrency": 4}, 3, 2, 5),
        ({"reuse_process": False}, 0, 50, 3),
        ({"engine_name": "inline"}, 50, 5000, 1001),
    ],
)
def test_slots_are_those_of_the_settings(settings: dict[str, Any], sync: int, asynchronous: int, running: int) -> None:
    assert open_engine(RunConfig(worker_num=3, **settings)).running(sync, asynchronous) == running


def test_cancelled_tasks_are_counted_apart(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.runners.progress._LINE_INTERVAL", 0.0)
    reporter = open_reporter(RunConfig(progress=True, job_name="r"), None)
    assert reporter is not None
    ended = [TaskStatus.SUCCEEDED, TaskStatus.FAILED, *[TaskStatus.CANCELLED] * 3]
    reporter.note([TaskResponse(str(number), status=status) for number, status in enumerate(ended)], Submitted(0, 0))
    reporter.close()
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"r: 5 done, 0 in progress, 1 without success, 3 cancelled, [0-9.]+ s, [0-9.,]+/s", last)


# --- a terminal -------------------------------------------------------------------------------------------------------


class Terminal:
    """A program whose standard streams are a terminal."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._near, far = pty.openpty()
        command = [sys.executable, "-c", program, *arguments]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=far, stderr=far, env=environment, process_group=0
        )
        os.close(far)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.process.kill()
        os.close(self._near)
        self.process.wait(END_LIMIT)

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def output(self) -> str:
        """Return what the program writes until its end."""
        shown = b""
        try:
            while chunk := os.read(self._near, 65536):
                shown += chunk
        except OSError:  # the other end of the terminal is closed
            pass
        return shown.decode()


GENERATOR = """
from paragent import RunConfig, Runners, Task
from paragent.testing.agents import nap
tasks = (Task(0.05, nap) for _ in range(40))
assert len(list(Runners.iter_tasks(tasks, RunConfig(worker_num=1, concurrency=2, progress=True)))) == 40
"""


def test_the_bar_of_a_generator_has_time_and_rate() -> None:
    with Terminal(GENERATOR) as terminal:
        shown = terminal.output()
    assert re.search(r"[1-9][0-9]*/\? 2 in progress 0 without success [0-9.]+/s 0:00:0[0-9]", plain(shown)), plain(
        shown
    )


def plain(shown: str) -> str:
    """Return text without styles, with one space between words."""
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split())


TWICE = """
import asyncio, sys, threading
from pathlib import Path
from paragent import RunConfig, Runners, Task
from paragent.engines.{module} import {engine} as Engine
from paragent.testing.agents import clean_up_when_cancelled

class Noting(Engine):
    def close(self):
        Path(sys.argv[2]).touch()
        if "{engine}" == "LocalRuntime":
            threading.Event().wait({limit})
        super().close()

tasks, config = [Task(sys.argv[1], clean_up_when_cancelled)], RunConfig(cls=Noting, worker_num=1, progress=True)
try:
    {call}
except KeyboardInterrupt:
    print("the program goes on", flush=True)
    threading.Event().wait(0.5)  # a bar that still draws does so ten times a second
"""
SYNC = "Runners.sync_run_task(tasks, config)"
ASYNC = "asyncio.run(Runners.run_task(tasks, config))"
RAY = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("module", "engine", "call", "limit"),
    [
        ("local", "LocalRuntime", SYNC, END_LIMIT),
        ("local", "LocalRuntime", ASYNC, 3.0),  # at its end the program waits for the thread that closes the engine
        pytest.param("ray", "RayRuntime", SYNC, 0, marks=RAY),
        pytest.param("ray", "RayRuntime", ASYNC, 0, marks=[*RAY, pytest.mark.nightly]),
    ],
    ids=["local", "local async", "ray", "ray async"],
)
def test_a_second_ctrl_c_while_the_engine_closes_restores_the_terminal(
    module: str, engine: str, call: str, limit: float, tmp_path: Path
) -> None:
    started, closing = tmp_path / "started", tmp_path / "closing"
    program = TWICE.format(module=module, engine=engine, call=call, limit=limit)
    with Terminal(program, str(started), str(closing)) as terminal:
        wait_until(started.exists, START_LIMIT)
        terminal.press_ctrl_c()
        wait_until(closing.exists)
        terminal.press_ctrl_c()
        shown = terminal.output()
    drawn, said, after = shown.partition("the program goes on")
    assert said, plain(shown)
    assert drawn.rindex(SHOW_CURSOR) > drawn.rindex("\x1b[?25l"), "the cursor was hidden and is shown again"
    assert "in progress" not in after


KILLED = """
import os, signal
from paragent import RunConfig, Runners, Task
from paragent.testing.agents import nap

tasks = [Task(0.01, nap), Task(60, nap)]
for response in Runners.iter_tasks(tasks, RunConfig(worker_num=1, concurrency=2, progress=True)):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_the_cursor_is_visible_after_the_program_was_killed() -> None:
    with Terminal(KILLED) as terminal:
        shown = terminal.output()
        assert terminal.process.wait(END_LIMIT) == -signal.SIGTERM
    assert shown.rindex(SHOW_CURSOR) > shown.rfind("\x1b[?25l")
