"""Agents that behave in every way an agent can, for contract suites: well, badly, and fatally."""

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
from paragent.messages import Msg
from paragent.tasks import current_task, record_step, record_usage

__all__ = [
    "Counter",
    "Point",
    "Presence",
    "Rejected",
    "answer_that_exits",
    "answer_that_exits_when_read",
    "answer_that_hides_its_attributes",
    "answer_with_a_lock",
    "answer_with_errors",
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
    "log_with_own_level",
    "nap",
    "print_and_log",
    "record_own_number",
    "segfault",
    "shout",
    "sleep",
    "stay",
    "stay_async",
    "take_notes",
]


class Point(NamedTuple):
    """An answer that is no builtin."""

    x: int
    y: int


class Rejected(Exception):
    """An error whose constructor takes other arguments than it passes on, as those of many libraries do."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class Presence(NamedTuple):
    """Where and when a task ran; times are `time.monotonic()` of one machine."""

    pid: int
    began: float
    ended: float


class Counter(AgentBase):
    """Counts its calls; a copy for each task always says 1."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls = 0

    def reply(self, x: Any = None) -> Msg:
        self.calls += 1
        return Msg(name=self.name, content=[x.content, self.calls])


def echo(given: Any) -> Any:
    """Return what was given."""
    return given


def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


def fail(text: str) -> None:
    """Raise a ValueError."""
    raise ValueError(text)


def fail_until(given: tuple[str, int]) -> int:
    """Raise until it was called often enough, as the lines of a file tell; then return how often that was."""
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


async def nap(seconds: float) -> float:
    """Wait without blocking."""
    await asyncio.sleep(seconds)
    return seconds


def stay(seconds: float) -> Presence:
    """Block a thread and tell where and when."""
    began = time.monotonic()
    time.sleep(seconds)
    return Presence(os.getpid(), began, time.monotonic())


async def stay_async(seconds: float) -> Presence:
    """Wait and tell where and when."""
    began = time.monotonic()
    await asyncio.sleep(seconds)
    return Presence(os.getpid(), began, time.monotonic())


def _note_pid(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def hang_in_python(path: str) -> None:
    """Note the process and never end, in Python."""
    _note_pid(path)
    while True:
        pass


def hang_in_c(path: str) -> None:
    """Note the process and never end, in native code that holds the interpreter's lock."""
    _note_pid(path)
    ctypes.PyDLL(None).sleep(3600)


async def block_the_loop(path: str) -> None:
    """Note the process and block the event loop, as async code must not."""
    _note_pid(path)
    time.sleep(3600)


async def ignore_cancellation(path: str) -> None:
    """Note the process and go on when cancelled."""
    _note_pid(path)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def clean_up_when_cancelled(path: str) -> None:
    """Wait for ever; write to a file when cancelled."""
    _note_pid(path)
    try:
        await asyncio.sleep(3600)
    finally:
        with Path(path).open("a") as file:
            file.write("cleaned up\n")


def die_once(path: str) -> str:
    """Kill the worker the first time; answer the second."""
    if not Path(path).exists():
        _note_pid(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def exit_at_once(status: int) -> None:
    """End the worker without a word."""
    os._exit(status)


def segfault(_: Any) -> None:
    """Make the kernel end the worker."""
    ctypes.string_at(0)


def answer_with_a_lock(_: Any) -> Any:
    """Return what no process can send to another."""
    return {"fine": 1, "lock": threading.Lock()}


def answer_with_errors(_: Any) -> list[BaseException]:
    """Answer with exceptions, as `asyncio.gather(..., return_exceptions=True)` does."""
    import urllib.error
    from email.message import Message

    error = Rejected(7, detail="because")
    error.__cause__ = ValueError("root")
    error.add_note("a note")
    error.stream = threading.Lock()  # type: ignore[attr-defined]
    return [error, urllib.error.HTTPError("http://host", 404, "not found", Message(), None)]


def print_and_log(text: str) -> str | None:
    """Say something in every way."""
    print(f"printed {text}")  # noqa: T201 - what is tested
    print(f"no newline {text}", end="")  # noqa: T201 - what is tested
    logging.getLogger("contract").warning("logged %s", text)
    return current_task()


def take_notes(steps: int) -> int:
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
    """Call `sys.exit` in a task of its own making, which ends a plain event loop."""
    await asyncio.gather(_exit(), asyncio.sleep(0))


async def interrupt_in_a_subtask(_: Any) -> None:
    """Raise KeyboardInterrupt in a task of its own making."""
    await asyncio.create_task(_interrupt())


async def leave_a_subtask_that_exits(given: Any) -> Any:
    """Return without waiting for a task that calls `sys.exit`."""
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
    """Return an object that cannot be packed and raises KeyError where AttributeError is expected."""
    return _Hiding()


def fail_with_hidden_attributes(text: str) -> None:
    """Raise an error that raises KeyError where AttributeError is expected."""
    raise _HidingError(text)


def fail_with_own_text(text: str) -> None:
    """Raise an error whose message is of a class that only this process has."""

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
    """Return an object that calls `sys.exit` when it is packed."""
    return _Exiting()


class _ExitingWhenRead:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def answer_that_exits_when_read(_: Any) -> Any:
    """Return an object that calls `sys.exit` when it is unpacked."""
    return _ExitingWhenRead()


def record_own_number(number: int) -> int:
    """Record usage of a numeric class that only this process has."""

    class Tokens(int):
        pass

    record_usage(tokens=Tokens(number))
    return number


def log_with_own_level(text: str) -> str:
    """Log with a level and a name of classes that only this process has."""

    class Level(int):
        pass

    class Name(str):
        __slots__ = ()

    logging.getLogger(Name("contract")).log(Level(logging.WARNING), "logged %s", text)
    return text
