"""Failures of threads in workers and engines, the executor, and the output of workers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from paragent import EngineFailed, RunConfig, Runners, Task, TaskStatus
from paragent._internal.threads import Abandoned, raise_in_thread, run_loop, start_thread
from paragent.engines import Call, open_engine
from paragent.engines._process_pool import ProcessPoolRuntime
from paragent.execution import Ending, ExecutionRecord, Outcome, current_record, limit_itself, record_usage
from paragent.serialization.packing import Packer
from paragent.testing import agents, programs
from paragent.worker import loop_watch
from paragent.worker.call_times import CallTimes
from paragent.worker.executor import CallExecutor
from paragent.worker.loop_watch import Steps
from paragent.worker.output import MAX_LINE_LENGTH, LabelledStream, Line
from tests.engines.thread_cluster import ThreadRuntime

ONE = RunConfig(worker_num=1, concurrency=4)


# --- threads that end or cannot start ---------------------------------------------------------------------------------


def end_thread_once(given: tuple[str, str]) -> str:
    """Make a thread of the worker fail in the first call; return in the second."""
    name, path = given
    if Path(path).exists():
        return "survived"
    Path(path).touch()
    [thread] = [thread for thread in threading.enumerate() if thread.name == name]
    assert thread.ident is not None
    raise_in_thread(thread.ident, SystemExit)
    time.sleep(3600)
    return "the first attempt was not lost"


async def break_the_loop_once(path: str) -> str:
    """Make the event loop itself fail in the first call; return in the second."""
    if Path(path).exists():
        return "survived"
    Path(path).touch()

    def fail() -> None:
        raise OSError("the selector is broken")

    asyncio.get_running_loop()._run_once = fail  # type: ignore[attr-defined]
    await asyncio.sleep(3600)
    return "the first attempt was not lost"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paragent-reader", "paragent-writer", "paragent-loop"])
def test_a_worker_whose_thread_ends_writes_a_traceback_and_is_replaced(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = str(tmp_path / "ended")
    killer = Task(marker, break_the_loop_once) if name == "paragent-loop" else Task((name, marker), end_thread_once)
    killer.id, killer.max_retries = "killer", 1
    # More than the engine sends at once: the reader ends when it receives the next message.
    others = [Task(0.1, agents.sleep, id=str(i)) for i in range(20)]
    responses = Runners.sync_run_task([killer, *others], RunConfig(worker_num=1, concurrency=2))
    assert all(response.success for response in responses.values()), responses
    assert responses["killer"].answer == "survived"
    written = capfd.readouterr().err
    assert f"the thread {name!r} ended unexpectedly" in written
    assert "Traceback" in written


def use_up_threads(_: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = refuse  # type: ignore[method-assign]


def test_a_worker_that_cannot_start_threads_runs_calls_one_after_the_other() -> None:
    with open_engine(ONE) as engine:
        Runners.sync_run(None, use_up_threads, ONE, engine=engine)
        tasks = [Task(0.01, agents.sleep, id=str(i)) for i in range(12)]
        responses = Runners.sync_run_task(tasks, ONE, engine=engine)
        assert all(response.success and response.executions == 1 for response in responses.values()), responses


def test_a_worker_that_cannot_start_an_event_loop_fails_only_async_tasks() -> None:
    with open_engine(ONE) as engine:
        Runners.sync_run(None, use_up_threads, ONE, engine=engine)
        tasks = [Task(0.0, agents.nap if i % 2 else agents.sleep, id=str(i)) for i in range(2000)]
        responses = list(Runners.sync_run_task(tasks, ONE, engine=engine).values())
    assert all(response.success for response in responses[::2])
    assert {(response.status, response.msg) for response in responses[1::2]} == {
        (TaskStatus.FAILED, "RuntimeError: can't start new thread")
    }


def test_inline_engine_fails_if_its_event_loop_breaks(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="paragent-loop"):
        Runners.sync_run(str(tmp_path / "marker"), break_the_loop_once, RunConfig(engine_name="inline"))


@pytest.mark.parametrize(("engine", "possible"), [("inline", 0), ("inline", 1), ("local", 0)])
def test_an_engine_that_cannot_start_threads_raises(
    engine: str, possible: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (logging.getLogRecordFactory(), sys.stdout, sys.stderr)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if len(started) == possible:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(EngineFailed, match=r"can't start new thread.*ulimit -u"):
        Runners.sync_run(1, agents.echo, RunConfig(engine_name=engine))
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    assert (logging.getLogRecordFactory(), sys.stdout, sys.stderr) == before


def test_an_engine_whose_own_thread_ends_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(_: ProcessPoolRuntime) -> None:
        raise SystemExit

    monkeypatch.setattr(ProcessPoolRuntime, "step", leave)
    with pytest.raises(EngineFailed, match=r"paragent-engine.*SystemExit"):
        Runners.sync_run(1, agents.echo, ONE)


def test_inline_engine_has_a_thread_for_the_next_task_after_abandoning_one() -> None:
    config = RunConfig(engine_name="inline", concurrency=1)
    tasks = [Task(3.0, agents.sleep, id="long", timeout=0.2), *(Task(i, agents.echo) for i in range(3))]
    responses = list(Runners.sync_run_task(tasks, config).values())
    assert [response.status for response in responses] == [TaskStatus.TIMED_OUT, *[TaskStatus.SUCCEEDED] * 3]


def start_and_nap(seconds: float) -> Any:
    """A sync function that returns an awaitable."""
    return agents.nap(seconds)


async def work_without_pause(seconds: float) -> str:
    """Keep the event loop busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0)
        sum(range(100_000))
    return "done"


@pytest.mark.slow
def test_inline_engine_does_not_interrupt_async_tasks_when_it_abandons_others() -> None:
    tasks = [
        Task(1.0, work_without_pause, id="innocent"),
        *(Task(30.0, start_and_nap, id=f"late {number}", timeout=0.1 * number) for number in range(1, 8)),
    ]
    responses = Runners.sync_run_task(tasks, RunConfig(engine_name="inline", concurrency=10))
    assert responses.pop("innocent").answer == "done"
    assert {response.status for response in responses.values()} == {TaskStatus.TIMED_OUT}


@pytest.mark.slow
def test_interrupting_a_call_in_the_event_loop_loses_no_step_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    times, record = CallTimes.by_number(), ExecutionRecord("interrupted")
    record.number = 1
    loop, raised = asyncio.new_event_loop(), list[int]()
    ended, closing = threading.Event(), threading.Event()
    pauses = itertools.cycle([0.0, 0.0005, 0.001])

    def raise_late(thread: int, error: type[BaseException] | None) -> None:
        if error is not None:
            raised.append(thread)
            time.sleep(next(pauses))  # the step that was seen often ends meanwhile
        raise_in_thread(thread, error)

    monkeypatch.setattr(loop_watch, "raise_in_thread", raise_late)

    async def compute() -> None:
        while True:
            with contextlib.suppress(Abandoned):
                await asyncio.sleep(0)
                time.sleep(0.0005)

    async def take_steps() -> None:
        while not ended.is_set():
            await asyncio.sleep(0)
            time.sleep(0.0005)

    async def run_all() -> None:
        others = [asyncio.create_task(take_steps()) for _ in range(3)]
        while not ended.is_set():  # a new one for each that was interrupted outside its `with`
            code = compute()
            call = asyncio.ensure_future(Steps(code, record, steps, lambda *_: None))
            await asyncio.wait([call, others[0]], return_when=asyncio.FIRST_COMPLETED)
            call.cancel()
            await asyncio.wait([call])
            code.close()
        await asyncio.gather(*others)

    thread = start_thread(run_loop, loop, closing.is_set, name="loop")
    assert thread.ident is not None
    steps = loop_watch.LoopSteps(times, thread.ident)
    main = asyncio.run_coroutine_threadsafe(run_all(), loop)
    while len(raised) < 200:
        steps.interrupt(1)
        time.sleep(0.00001)
    ended.set()
    main.result(20)
    closing.set()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def record_under_own_names(_: Any) -> str:
    class Name(StrEnum):
        TOKENS = "tokens"

    record_usage(**{Name.TOKENS: 3})
    return "answered"


async def compute_or_nap(seconds: float) -> float:
    """Block the event loop if `seconds` is negative, otherwise wait without blocking."""
    if seconds < 0:
        time.sleep(-seconds)
    else:
        await asyncio.sleep(seconds)
    return seconds


@pytest.mark.slow
def test_tasks_get_the_time_back_in_which_another_one_blocked_the_event_loop() -> None:
    others = [Task(1.0, compute_or_nap, id=str(i), timeout=1.5) for i in range(5)]
    responses = Runners.sync_run_task(
        [Task(-3.0, compute_or_nap, id="blocks", timeout=60.0), *others], RunConfig(worker_num=1)
    )
    assert all(response.success and response.executions == 1 for response in responses.values()), responses


async def compute_and_nap(seconds: float) -> None:
    time.sleep(seconds)
    await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "inline"])
def test_tasks_get_the_time_back_in_which_the_steps_of_many_others_ran(engine: str) -> None:
    tasks = [Task(0.03, compute_and_nap, timeout=1.2) for _ in range(100)]
    responses = Runners.sync_run_task(tasks, RunConfig(engine_name=engine, worker_num=1, concurrency=100))
    assert [response.msg for response in responses.values() if not response.success] == []


@pytest.mark.slow
def test_a_task_without_a_limit_that_blocks_the_event_loop_does_not_stop_the_limits_of_others() -> None:
    tasks = [Task(600.0, compute_or_nap, id="other", timeout=1.0), Task(-600.0, compute_or_nap, id="blocks")]
    for response in Runners.iter_tasks(tasks, RunConfig(worker_num=1)):
        assert (response.id, response.status) == ("other", TaskStatus.TIMED_OUT)
        break


class Limited:
    """A call that enforces its own limit, as rollouts do. It blocks the event loop, except for negative seconds."""

    async def __call__(self, seconds: float) -> str:
        limit_itself(self)(time.monotonic() + 0.5)
        if seconds < 0:
            await asyncio.sleep(-seconds)
        else:
            time.sleep(seconds)
        return "returned"

    def excuse(self, seconds: float) -> None:
        pass

    def stop(self, stack: str) -> str:
        return f"stopped in {stack}"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [{"engine_name": "local"}, {"cls": ThreadRuntime}], ids=str)
def test_a_call_that_enforces_its_own_limit_and_blocks_the_event_loop_is_stopped(engine: dict[str, Any]) -> None:
    tasks = [Task(600.0, Limited(), id="blocks"), Task(-0.1, Limited(), id="other")]
    responses = Runners.sync_run_task(tasks, RunConfig(worker_num=1, **engine))
    assert "time.sleep(seconds)" in responses["blocks"].answer, responses
    assert (responses["other"].answer, responses["other"].executions) == ("returned", 1)


def test_the_threads_of_an_inline_engine_end_with_it() -> None:
    before = set(threading.enumerate())
    tasks = [Task(-0.01, Limited(), id="limited"), Task(1, agents.echo, id="sync")]
    responses = Runners.sync_run_task(tasks, RunConfig(engine_name="inline"))
    assert all(response.success for response in responses.values())
    programs.wait_until(lambda: set(threading.enumerate()) <= before, what="the end of all threads")


def test_the_names_of_usage_are_plain_strings() -> None:
    response = Runners.sync_run(1, record_under_own_names, ONE)
    assert (response.answer, response.usage, response.executions) == ("answered", {"tokens": 3}, 1)
    assert [type(name) for name in response.usage] == [str]


def break_the_recording(_: Any) -> None:
    recording = current_record.get()
    assert recording is not None
    recording.usage[threading.Lock()] = 1  # type: ignore[index]


def test_an_outcome_that_cannot_be_sent_fails_only_its_task() -> None:
    tasks = [Task(i, break_the_recording if i == 5 else agents.echo, id=str(i)) for i in range(20)]
    responses = Runners.sync_run_task(tasks, ONE)
    failed = responses.pop("5")
    assert (failed.status, failed.executions) == (TaskStatus.FAILED, 1)
    assert "lock" in failed.msg
    assert [(response.success, response.executions) for response in responses.values()] == [(True, 1)] * 19


def test_the_number_of_a_call_can_be_reused_after_its_outcome() -> None:
    outcomes: list[Outcome] = []
    done = threading.Event()
    target = Packer().pack(agents.nap, "it")

    def emit(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) < 20:
            executor.submit([Call(0, target, 0.01, "next", is_async=True)])
        else:
            done.set()

    executor = CallExecutor(
        emit, sync_limit=1, async_limit=1, shared=True, times=CallTimes.by_number(), finished=lambda _: None
    )
    executor.submit([Call(0, target, 0.01, "first", is_async=True)])
    assert done.wait(60)
    executor.close()
    assert [(outcome.ending, outcome.value) for outcome in outcomes] == [(Ending.RETURNED, 0.01)] * 20


# --- other code in the user's process ---------------------------------------------------------------------------------


class _Leaves(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit


@pytest.fixture
def handler_that_leaves() -> Iterator[None]:
    handler = _Leaves()
    logging.getLogger("contract").addHandler(handler)
    yield
    logging.getLogger("contract").removeHandler(handler)


@pytest.mark.usefixtures("handler_that_leaves")
def test_a_log_handler_that_raises_does_not_end_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    responses = Runners.sync_run_task([Task(str(i), agents.print_and_log, id=str(i)) for i in range(3)], ONE)
    assert [response.answer for response in responses.values()] == ["0", "1", "2"]
    assert "could not be shown" in capfd.readouterr().err


OTHERS_REAP = """
import os, signal, sys, threading, time

def reap():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.001)

if sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
else:
    threading.Thread(target=reap, daemon=True).start()

import subprocess
from paragent import RunConfig, Runners, Task
from paragent.testing import agents

def fail(_):
    return subprocess.run(["false"]).returncode

tasks = [Task(i, agents.echo, id=str(i)) for i in range(20)]
tasks += [Task(3, agents.exit_at_once, id="killer", max_retries=1), Task(0, fail, id="false")]
tasks += [Task(sys.argv[2], agents.hang_in_python, id="hang", timeout=0.5)]
responses = Runners.sync_run_task(tasks, RunConfig(**SETTINGS))
assert all(responses[str(i)].success for i in range(20)), responses
for name in ("killer", "false", "hang"):
    print(name, responses[name].status, responses[name].executions, responses[name].answer)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ignored", "waited for by another thread"])
def test_workers_that_other_code_reaps_have_outcomes(mode: str, tmp_path: Path) -> None:
    program = programs.Program(tmp_path, OTHERS_REAP, {"worker_num": 2})
    printed = program.run(mode, str(tmp_path / "pid")).splitlines()
    assert printed == ["killer lost 2 None", "false succeeded 1 1", "hang timed out 1 None"]
    programs.wait_until(lambda: not any(map(programs.alive, programs.pids_in(tmp_path / "pid"))))


WHILE_LOGGING_LOADS = """
import importlib.machinery, sys
from paragent import RunConfig
from paragent.engines.local import LocalRuntime
from paragent.engines.base import Call
from paragent.serialization.packing import Packer

for name in [name for name in sys.modules if name.partition(".")[0] == "logging"]:
    del sys.modules[name]
target = Packer().pack(abs, "it")

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "logging":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader.exec_module = lambda module: run_a_call(module)
        return spec

def run_a_call(module):
    assert sys.modules["logging"] is module and not hasattr(module, "getLogger")
    with LocalRuntime(RunConfig(worker_num=1)) as engine:
        engine.submit([Call(0, target, -5, "a")])
        print([outcome.value for outcome in engine.wait(60.0)])

sys.meta_path.insert(0, Finder)
import logging
"""


def test_workers_start_while_the_program_is_importing_logging(tmp_path: Path) -> None:
    assert programs.Program(tmp_path, WHILE_LOGGING_LOADS, {}).run() == "[5]\n"


OWN_LEVELS = """
import enum, logging
from paragent import RunConfig, Runners, Task
from paragent.testing import agents

class Level(enum.IntEnum):
    LOUD = 25

if __name__ == "__main__":
    logging.getLogger().setLevel(Level.LOUD)
    logging.getLogger("other").setLevel(Level.LOUD)
    [response] = Runners.sync_run_task([Task(5, agents.echo)], RunConfig(**SETTINGS)).values()
    print(response.answer)
"""


def test_a_log_level_of_an_own_enum_is_sent_as_a_number(tmp_path: Path) -> None:
    assert programs.Program(tmp_path, OWN_LEVELS, {"worker_num": 1}).run() == "5\n"


BROKEN_SETUP = """
import sys
from paragent import EngineFailed, RunConfig, Runners, Task
from paragent.testing import agents

class Folder(str):
    pass

if __name__ == "__main__":
    sys.path.append(Folder("/nowhere"))
    try:
        Runners.sync_run_task([Task(5, agents.echo)], RunConfig(**SETTINGS))
    except EngineFailed as error:
        print(error)
"""


def test_a_worker_that_fails_before_it_is_ready_was_not_killed(tmp_path: Path) -> None:
    message = programs.Program(tmp_path, BROKEN_SETUP, {"worker_num": 1}).run()
    assert "exited with status 1. Its error output is above" in message
    assert "memory" not in message


# --- output of workers ------------------------------------------------------------------------------------------------


def labelled(lines: list[Line]) -> LabelledStream:
    return LabelledStream("stdout", lines.append, None, keep_unlabelled=False)  # type: ignore[arg-type]


@pytest.mark.slow
def test_text_without_newlines_takes_linear_time_and_bounded_space() -> None:
    lines: list[Line] = []
    stream = labelled(lines)
    pieces = 2 * MAX_LINE_LENGTH + 7
    for _ in range(pieces):
        stream.write("x")
    assert [len(line.text) for line in lines] == [MAX_LINE_LENGTH] * 2
    stream.write("y\nz")
    assert (len(lines[2].text), lines[2].text[-2:], len(lines)) == (8, "xy", 3)


def test_a_line_longer_than_the_limit_is_split() -> None:
    lines: list[Line] = []
    stream = labelled(lines)
    stream.write("a" * (MAX_LINE_LENGTH + 3) + "\n\nb")
    stream.write("c" * (2 * MAX_LINE_LENGTH))
    assert [len(line.text) for line in lines] == [MAX_LINE_LENGTH, 3, 0, MAX_LINE_LENGTH, MAX_LINE_LENGTH]
    stream.write("\n")
    assert lines[-1].text == "c"
    assert "".join(line.text for line in lines) == "a" * (MAX_LINE_LENGTH + 3) + "b" + "c" * (2 * MAX_LINE_LENGTH)


def write_and_wait(given: tuple[str, str]) -> None:
    """Print and log while another task does, then wait for permission to return."""
    folder, name = given
    Path(folder, name).touch()
    programs.wait_until(lambda: all(Path(folder, each).exists() for each in "ab"), 60)
    print("printed", end="")
    logging.getLogger("tasks").warning("logged by %s", name)
    programs.wait_until(Path(folder, f"end {name}").exists, 60)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_inline_engines_in_two_threads_label_each_line_once(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = (logging.getLogRecordFactory(), sys.stdout, sys.stderr)
    threads = {}
    for name in "ab":
        task = Task((str(tmp_path), name), write_and_wait, id=name)
        arguments = ([task], RunConfig(engine_name="inline"))
        threads[name] = threading.Thread(target=Runners.sync_run_task, args=arguments)
        threads[name].start()
        programs.wait_until((tmp_path / name).exists, 60)
    for name in order:
        (tmp_path / f"end {name}").touch()
        threads[name].join(60)
        assert not threads[name].is_alive()
    assert sorted(caplog.messages) == ["[a] logged by a", "[b] logged by b"]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[a] printed", "[b] printed"]
    assert (logging.getLogRecordFactory(), sys.stdout, sys.stderr) == before


def print_and_log(_: Any) -> None:
    print("printed")
    logging.getLogger("tasks").warning("logged")


def run_inline(_: Any) -> None:
    Runners.sync_run_task([Task(None, print_and_log, id="inner")], RunConfig(engine_name="inline"))
    print_and_log(None)


def test_an_inline_engine_in_a_worker_labels_each_line_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    [response] = Runners.sync_run_task([Task(None, run_inline, id="outer")], ONE).values()
    assert response.success, response.msg
    assert caplog.messages == ["[inner] logged", "[outer] logged"]
    assert capsys.readouterr().out.splitlines() == ["[inner] printed", "[outer] printed"]


def print_much(_: Any) -> int:
    """Print 200 MB in long lines to an engine that reads slowly; return how much the worker has grown."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(50):
        print("x" * (4 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


@pytest.mark.slow
def test_a_worker_that_prints_faster_than_the_engine_reads_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(lines: list[Line]) -> None:
        time.sleep(0.02 * len(lines))

    monkeypatch.setattr("paragent.engines._process_pool.show", slowly)
    grown = Runners.sync_run(None, print_much, ONE).unwrap()
    assert grown < 100 << 10, f"the worker has grown by {grown >> 10} MB"
