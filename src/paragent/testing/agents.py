"""Agents for the contract suites: functions that succeed, fail, hang, or kill their process."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from paragent.agents import AgentBase
from paragent.execution import current_task, record_step, record_usage
from paragent.messages import Msg

__all__ = [
    "Counter",
    "DetailedError",
    "Interval",
    "PlanePoint",
    "answer_that_exits",
    "answer_that_exits_when_read",
    "answer_that_hides_its_attributes",
    "answer_with_a_lock",
    "answer_with_errors",
    "block_briefly",
    "block_the_loop",
    "clean_up_when_cancelled",
    "die_once",
    "echo",
    "exit_at_once",
    "exit_in_a_subtask",
    "fail",
    "fail_until",
    "fail_with_hidden_attributes",
    "fail_with_own_text",
    "hang_in_c",
    "hang_in_python",
    "ignore_cancellation",
    "interrupt_in_a_subtask",
    "leave_a_subtask_that_exits",
    "log_debug",
    "log_with_own_level",
    "nap",
    "nap_interval",
    "print_and_log",
    "record_notes",
    "record_own_number",
    "segfault",
    "shout",
    "sleep",
    "sleep_interval",
    "surroundings",
]


class PlanePoint(NamedTuple):
    """An answer of a class that is not builtin."""

    x: int
    y: int


class DetailedError(Exception):
    """An error whose constructor takes other arguments than it passes to its base, as in many libraries."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class Interval(NamedTuple):
    """The process and the time in which a task ran; times are `time.monotonic()` of one host."""

    pid: int
    began: float
    ended: float


class Counter(AgentBase):
    """Counts its calls; with a copy for each task the count is always 1."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls = 0

    def reply(self, x: Any = None) -> Msg:
        self.calls += 1
        return Msg(name=self.name, content=[x.content, self.calls])


def echo(given: Any) -> Any:
    """Return the input."""
    return given


def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


def fail(text: str) -> None:
    """Raise a ValueError."""
    raise ValueError(text)


def fail_until(given: tuple[str, int]) -> int:
    """Raise until it was called a given number of times, counted in a file; then return the number of calls."""
    path, needed = Path(given[0]), given[1]
    with path.open("a") as file:
        file.write("called\n")
    calls = len(path.read_text().splitlines())
    if calls < needed:
        raise ConnectionError(f"call {calls} of {needed}")
    return calls


def sleep(seconds: float) -> float:
    """Block a thread."""
    time.sleep(seconds)
    return seconds


async def block_briefly(seconds: float) -> float:
    """Block the event loop for some seconds."""
    time.sleep(seconds)
    return seconds


async def nap(seconds: float) -> float:
    """Wait without blocking."""
    await asyncio.sleep(seconds)
    return seconds


def sleep_interval(seconds: float) -> Interval:
    """Block a thread; return the process and the times."""
    began = time.monotonic()
    time.sleep(seconds)
    return Interval(os.getpid(), began, time.monotonic())


async def nap_interval(seconds: float) -> Interval:
    """Wait without blocking; return the process and the times."""
    began = time.monotonic()
    await asyncio.sleep(seconds)
    return Interval(os.getpid(), began, time.monotonic())


def _append_pid(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def hang_in_python(path: str) -> None:
    """Append the pid to a file and loop forever in Python."""
    _append_pid(path)
    while True:
        pass


def hang_in_c(path: str) -> None:
    """Append the pid to a file and hang in native code that holds the GIL."""
    _append_pid(path)
    ctypes.PyDLL(None).sleep(3600)


async def block_the_loop(path: str) -> None:
    """Append the pid to a file and block the event loop."""
    _append_pid(path)
    time.sleep(3600)


async def ignore_cancellation(path: str) -> None:
    """Append the pid to a file and continue when cancelled."""
    _append_pid(path)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def clean_up_when_cancelled(path: str) -> None:
    """Wait forever; write to a file when cancelled."""
    _append_pid(path)
    try:
        await asyncio.sleep(3600)
    finally:
        with Path(path).open("a") as file:
            file.write("cleaned up\n")


def die_once(path: str) -> str:
    """Kill the worker in the first call; return in the second."""
    if not Path(path).exists():
        _append_pid(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def exit_at_once(status: int) -> None:
    """End the worker without any clean-up."""
    os._exit(status)


def segfault(_: Any) -> None:
    """Crash the worker by an invalid memory access."""
    ctypes.string_at(0)


def answer_with_a_lock(_: Any) -> Any:
    """Return an object that cannot be serialised."""
    return {"fine": 1, "lock": threading.Lock()}


def answer_with_errors(_: Any) -> list[BaseException]:
    """Return exceptions, as `asyncio.gather(..., return_exceptions=True)` does."""
    import urllib.error
    from email.message import Message

    error = DetailedError(7, detail="because")
    error.__cause__ = ValueError("root")
    error.add_note("a note")
    error.stream = threading.Lock()  # type: ignore[attr-defined]
    return [error, urllib.error.HTTPError("http://host", 404, "not found", Message(), None)]


def print_and_log(text: str) -> str | None:
    """Print with and without a newline, and log; return the id of the task."""
    print(f"printed {text}")  # noqa: T201 - the suite tests prints
    print(f"no newline {text}", end="")  # noqa: T201 - the suite tests prints
    logging.getLogger("contract").warning("logged %s", text)
    return current_task()


def log_debug(text: str) -> None:
    """Log with a level below the default of the root logger."""
    logging.getLogger("contract.detailed").debug(text)


def surroundings(names: list[str]) -> tuple[str, list[str | None]]:
    """Return the working directory and the values of environment variables."""
    return str(Path.cwd()), [os.environ.get(name) for name in names]


def record_notes(steps: int) -> int:
    """Record usage and steps."""
    for step in range(steps):
        record_usage(tokens=10)
        record_step({"step": step})
    return steps


async def _exit() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def _interrupt() -> None:
    await asyncio.sleep(0)
    raise KeyboardInterrupt


async def exit_in_a_subtask(_: Any) -> None:
    """Call `sys.exit` in a subtask, which would stop a normal event loop."""
    await asyncio.gather(_exit(), asyncio.sleep(0))


async def interrupt_in_a_subtask(_: Any) -> None:
    """Raise KeyboardInterrupt in a subtask."""
    await asyncio.create_task(_interrupt())


async def leave_a_subtask_that_exits(given: Any) -> Any:
    """Return without waiting for a subtask that calls `sys.exit`."""
    left = asyncio.create_task(_exit())
    left.add_done_callback(lambda task: task.exception())
    await asyncio.sleep(0)
    return given


class _Hiding:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class _HidingError(ValueError):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def answer_that_hides_its_attributes(_: Any) -> Any:
    """Return an object that cannot be serialised and raises KeyError instead of AttributeError."""
    return _Hiding()


def fail_with_hidden_attributes(text: str) -> None:
    """Raise an error that raises KeyError instead of AttributeError."""
    raise _HidingError(text)


def fail_with_own_text(text: str) -> None:
    """Raise an error whose message has a class that only this process knows."""

    class Text(str):
        __slots__ = ()

    class Failure(Exception):
        def __str__(self) -> str:
            return Text(text)

    raise Failure


class _Exiting:
    def __reduce__(self) -> Any:
        sys.exit(3)


def answer_that_exits(_: Any) -> Any:
    """Return an object that calls `sys.exit` when it is pickled."""
    return _Exiting()


class _ExitingWhenRead:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def answer_that_exits_when_read(_: Any) -> Any:
    """Return an object that calls `sys.exit` when it is unpickled."""
    return _ExitingWhenRead()


def record_own_number(number: int) -> int:
    """Record usage with a numeric class that only this process knows."""

    class Tokens(int):
        pass

    record_usage(tokens=Tokens(number))
    return number


def log_with_own_level(text: str) -> str:
    """Log with a level and a name of classes that only this process knows."""

    class Level(int):
        pass

    class Name(str):
        __slots__ = ()

    logging.getLogger(Name("contract")).log(Level(logging.WARNING), "logged %s", text)
    return text
