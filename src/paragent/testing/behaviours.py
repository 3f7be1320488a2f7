"""Agents that behave in every way an agent can, for contract suites: well, badly, and fatally."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
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
    "answer_with_a_lock",
    "answer_with_errors",
    "block_the_loop",
    "clean_up_when_cancelled",
    "die_once",
    "echo",
    "exit_at_once",
    "fail",
    "fail_until",
    "hang_in_c",
    "hang_in_python",
    "ignore_cancellation",
    "nap",
    "print_and_log",
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
