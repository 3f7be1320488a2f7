"""Ctrl-C at any line: every task has exactly one response, and no answer that arrived is lost."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from paragent import EngineFailed, Interrupted, Progress, RunConfig, Runners, Task, TaskResponse, TaskStatus, UsageError
from paragent.engines import Call, RuntimeEngine
from paragent.execution import Ending, Outcome, record_step
from paragent.runners import calls as prepare
from paragent.runners import calls as responses
from paragent.runners import dispatch, run
from paragent.runners.progress import Reporter
from paragent.serialization import pack, unpack
from paragent.tasks import ErrorInfo
from paragent.testing.agents import echo

TRACED = {module.__file__ for module in (dispatch, prepare, responses, run)}
UNTRACED = {"_take_ready", "draw"}
"""CPython looks for signals where a function begins or goes on after a `yield`, where a loop goes on, and after calls of
functions in C. That is not before every line: not between `try` and `yield`, nor between taking an item and using it."""


class Immediate(RuntimeEngine):
    """Executes calls in `wait`, a few at a time: each third call loses its worker, each seventh raises."""

    def __init__(self) -> None:
        super().__init__(RunConfig(worker_num=1, concurrency=4))
        self.waiting: list[Call] = []
        self.delivered: set[str] = set()

    def submit(self, calls: Sequence[Call]) -> None:
        self.waiting += calls

    def wait(self, timeout: float) -> list[Outcome]:
        taken, self.waiting = self.waiting[:3], self.waiting[3:]
        return [self._perform(call) for call in taken]

    def _perform(self, call: Call) -> Outcome:
        if call.number % 3 == 2:
            return Outcome(call.number, Ending.LOST, error=ErrorInfo("WorkerLost", "gone", retryable=True))
        if call.number % 7 == 6:
            return Outcome(call.number, Ending.RAISED, error=ErrorInfo("E", "failed", retryable=True))
        self.delivered.add(call.label)
        return Outcome(call.number, Ending.RETURNED, pack([unpack(call.argument)], "it"), seconds=0.1)

    def cancel(self, grace: float) -> None:
        pass

    def close(self) -> None:
        self.waiting = []


def interrupting(line: int) -> tuple[Callable[..., Any], list[str]]:
    """Return a trace function that raises KeyboardInterrupt before a line of the traced files, and a list for that place."""
    left = line
    where: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if where or code.co_filename not in TRACED or code.co_name in UNTRACED:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                where.append(f"{Path(code.co_filename).name}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    return trace, where


def tasks_as(kind: str) -> Any:
    tasks = [Task([number], echo, id=str(number), max_retries=5) for number in range(9)]
    if kind == "generator with a duplicate":
        tasks[8] = Task(0, echo, id="3")
    return tasks if kind == "list" else iter(tasks)


def iterating(given: Any, engine: Immediate, taken: list[TaskResponse]) -> Callable[[], None]:
    running = Runners.iter_tasks(given, engine.config, engine=engine)
    return lambda: taken.extend(running)


def completing(given: Any, engine: Immediate, taken: list[TaskResponse]) -> Callable[[], None]:
    def complete() -> None:
        try:
            taken.extend(Runners.sync_run_task(given, engine.config, engine=engine).values())
        except Interrupted as interrupted:
            taken.extend(interrupted.responses.values())
            raise

    return complete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (iterating, "list"),
        (iterating, "generator with a duplicate"),
        (completing, "list"),
        (completing, "generator"),
    ],
)
def test_an_interrupt_before_any_line_loses_no_response(
    way: Callable[..., Callable[[], None]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CANCEL_GRACE", 0.0)
    monkeypatch.setattr(run, "CANCEL_LIMIT", 0.01)
    line, finished = 0, False
    while not finished:
        engine = Immediate()
        tasks = tasks_as(kind)
        expected = [task.id for task in tasks] if kind == "list" else []
        taken: list[TaskResponse] = []
        going = way(tasks if kind == "list" else noting(tasks, expected), engine, taken)
        trace, where = interrupting(line)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            going()
        except KeyboardInterrupt as interrupt:
            if not isinstance(interrupt, Interrupted) or not taken:  # before the first task, or after the last response
                expected = [response.id for response in taken]
                assert len(expected) in (0, 9), where
                assert not engine.delivered or taken, where
        finally:
            sys.settrace(before)
        finished = not where
        assert sorted(response.id for response in taken) == sorted(expected), where
        answered = {response.id for response in taken if response.success}
        assert engine.delivered <= answered, where
        line += 1
    assert line > 200, "next to nothing was traced"


def noting(tasks: Iterator[Task], drawn: list[str]) -> Iterator[Task]:
    for task in tasks:
        drawn.append(task.id)
        yield task


def test_an_interrupt_in_a_generator_of_tasks_loses_no_task_that_was_drawn() -> None:
    def tasks() -> Iterator[Task]:
        for number in range(5):
            yield Task([number], echo, id=str(number))
        raise KeyboardInterrupt

    engine = Immediate()
    with pytest.raises(Interrupted) as caught:
        Runners.sync_run_task(tasks(), engine.config, engine=engine)
    assert list(caught.value.responses) == [str(number) for number in range(5)]


def interrupt_once(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        raise KeyboardInterrupt
    return "read"


class ReadSlowly:
    """An answer that raises KeyboardInterrupt while it is unpacked."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return interrupt_once, (self.path,)


def read_slowly(path: str) -> ReadSlowly:
    return ReadSlowly(path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "local"])
def test_an_interrupt_while_an_answer_is_read_keeps_all_that_came(engine: str, tmp_path: Path) -> None:
    path = str(tmp_path / "interrupted")
    tasks = [Task(path, read_slowly, id=str(i)) for i in range(60)]
    with pytest.raises(Interrupted) as caught:
        Runners.sync_run_task(tasks, RunConfig(engine_name=engine))
    responses = caught.value.responses
    assert list(responses) == [task.id for task in tasks]
    assert {response.status for response in responses.values()} <= {TaskStatus.SUCCEEDED, TaskStatus.CANCELLED}
    assert {response.answer for response in responses.values() if response.success} == {"read"}


def test_an_interrupt_in_the_loop_of_the_caller_can_be_passed_into_the_run() -> None:
    engine = Immediate()
    tasks = [Task([number], echo, id=str(number)) for number in range(9)]
    running: Any = Runners.iter_tasks(tasks, engine.config, engine=engine)
    responses = [next(running) for _ in range(3)]
    responses.append(running.throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        responses.extend(running)
    assert sorted(response.id for response in responses) == [task.id for task in tasks]


def exits_when_read() -> None:
    sys.exit(3)


class ExitsWhenRead:
    def __reduce__(self) -> Any:
        return exits_when_read, ()


def test_an_answer_that_exits_when_it_is_read_fails_its_task_and_no_other() -> None:
    tasks = [Task(i, (lambda _: ExitsWhenRead()) if i == 2 else echo, id=str(i)) for i in range(5)]
    responses = Runners.sync_run_task(tasks, RunConfig(worker_num=1))
    failed = responses.pop("2")
    assert failed.error is not None
    assert (failed.status, failed.error.type) == (TaskStatus.FAILED, "SystemExit")
    assert all(response.success for response in responses.values())


def raises_cancelled() -> None:
    raise asyncio.CancelledError


class CancelledWhenRead:
    def __reduce__(self) -> Any:
        return raises_cancelled, ()


def record_and_answer(answer: Any) -> Any:
    record_step(CancelledWhenRead())
    return answer


def test_an_answer_or_step_that_is_cancelled_when_it_is_read_costs_nothing_else() -> None:
    tasks = [Task(i, (lambda _: CancelledWhenRead()) if i == 2 else echo, id=str(i)) for i in range(4)]
    responses = Runners.sync_run_task([*tasks, Task(4, record_and_answer, id="4")], RunConfig(worker_num=1))
    failed = responses.pop("2")
    assert failed.error is not None
    assert (failed.status, failed.error.type) == (TaskStatus.FAILED, "asyncio.exceptions.CancelledError")
    assert [response.answer for response in responses.values()] == [0, 1, 3, 4]
    assert "CancelledError" in responses["4"].trajectory[0]


class FailsWhenCancelled(Immediate):
    """Returns one answer, then raises KeyboardInterrupt; after `cancel` it fails."""

    def wait(self, timeout: float) -> list[Outcome]:
        if not self.delivered:
            taken, self.waiting = self.waiting[:1], self.waiting[1:]
            return [self._perform(call) for call in taken]
        if not self.cancelled:
            raise KeyboardInterrupt
        raise EngineFailed("the workers are gone")

    cancelled = False

    def cancel(self, grace: float) -> None:
        self.cancelled = True


def test_an_engine_that_fails_while_it_is_cancelled_costs_no_response() -> None:
    tasks, engine = tasks_as("list"), FailsWhenCancelled()
    with pytest.raises(Interrupted) as caught:
        Runners.sync_run_task(tasks, engine.config, engine=engine)
    assert sorted(caught.value.responses) == [task.id for task in tasks]
    statuses = [response.status for response in caught.value.responses.values()]
    assert statuses.count(TaskStatus.SUCCEEDED) == 1
    assert statuses.count(TaskStatus.CANCELLED) == len(tasks) - 1


class InterruptedTwice(Immediate):
    """Returns some answers, then raises KeyboardInterrupt; the second one comes in `cancel` or `close`."""

    def __init__(self, answers: int, method: str) -> None:
        super().__init__()
        self.answers = answers
        setattr(self, method, self.interrupt)

    def wait(self, timeout: float) -> list[Outcome]:
        if len(self.delivered) < self.answers:
            self.delivered.add(self.waiting[0].label)
            call = self.waiting.pop(0)
            return [Outcome(call.number, Ending.RETURNED, pack([unpack(call.argument)], "it"), seconds=0.1)]
        raise KeyboardInterrupt

    def interrupt(self, *_: float) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["cancel", "close"])
@pytest.mark.parametrize("way", ["iter_tasks", "map", "sync_run_task"])
def test_a_second_ctrl_c_raises_interrupted_without_a_chained_traceback(
    way: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CANCEL_GRACE", 0.0)
    monkeypatch.setattr(run, "CANCEL_LIMIT", 0.01)
    engine = InterruptedTwice(2, method)
    monkeypatch.setattr("paragent.engines.open_engine", lambda _: engine)
    given = (echo, [[number] for number in range(9)]) if way == "map" else (tasks_as("list"),)
    with pytest.raises(KeyboardInterrupt) as caught:
        list(getattr(Runners, way)(*given))
    assert isinstance(caught.value, Interrupted)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("kind", "answers", "summary"),
    [
        ("list", 2, "2 of 9 tasks had succeeded; the others are cancelled"),
        ("list", 0, "0 of 9 tasks had succeeded; the others are cancelled"),
        ("generator", 2, "2 tasks had succeeded; the others are cancelled"),
        ("generator", 0, "the running tasks are cancelled"),
    ],
)
def test_the_message_after_a_second_ctrl_c_counts_all_tasks(kind: str, answers: int, summary: str) -> None:
    engine = InterruptedTwice(answers, "cancel")
    with pytest.raises(Interrupted) as caught:
        Runners.sync_run_task(tasks_as(kind), engine.config, engine=engine)
    assert str(caught.value) == f"interrupted: {summary}"
    assert len(caught.value.responses) == answers
    assert caught.value.total == (9 if kind == "list" else None)


def test_the_message_after_one_ctrl_c_counts_all_tasks() -> None:
    engine = FailsWhenCancelled()
    with pytest.raises(Interrupted, match=r"interrupted: 1 of 9 tasks had succeeded; the others are cancelled"):
        Runners.sync_run_task(tasks_as("list"), engine.config, engine=engine)


@pytest.mark.parametrize("way", ["iter_tasks", "sync_run_task"])
def test_the_last_progress_after_ctrl_c_counts_tasks_that_were_not_submitted(way: str) -> None:
    reported: list[tuple[int, int]] = []

    def note(progress: Progress) -> None:
        reported.append((progress.done, progress.counts[TaskStatus.CANCELLED]))

    engine = FailsWhenCancelled()
    tasks = [Task([number], echo, id=str(number)) for number in range(2 * engine.window)]
    with pytest.raises(Interrupted):
        list(getattr(Runners, way)(tasks, engine.config, engine=engine, progress=note))
    assert reported[-1] == (len(tasks), len(tasks) - 1)


class ClosedReporter(Reporter):
    """Notes that it was closed."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


@pytest.mark.parametrize("way", ["complete", "iterate"])
def test_an_interrupt_while_the_display_opens_closes_it_and_loses_no_task(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar that is not closed draws over the output of the program."""
    opened: list[ClosedReporter] = []

    def open_and_interrupt(config: RunConfig, total: int | None) -> Reporter:
        opened.append(ClosedReporter(config, total, lambda _: None))
        signal.raise_signal(signal.SIGINT)
        return opened[0]

    monkeypatch.setattr(run, "open_reporter", open_and_interrupt)
    engine, taken = Immediate(), list[TaskResponse]()
    with pytest.raises(Interrupted):
        (completing if way == "complete" else iterating)(tasks_as("list"), engine, taken)()
    assert opened[0].closed
    assert [response.status for response in taken] == [TaskStatus.CANCELLED] * 9
    assert engine.claim(), "another run can use the engine"


def test_an_engine_that_is_busy_is_left_to_its_run() -> None:
    engine = Immediate()
    assert engine.claim()
    engine.cancel = engine.close = lambda *_: pytest.fail("the engine belongs to another run")  # type: ignore[method-assign, assignment]
    with pytest.raises(UsageError, match="busy with another run"):
        Runners.sync_run_task(tasks_as("list"), engine.config, engine=engine)
    assert not engine.claim()
