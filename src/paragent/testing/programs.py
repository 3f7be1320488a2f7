"""Programs that the contract suites run as separate processes: agents in `__main__`, Ctrl-C, a killed program."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "AGENTS_IN_MAIN",
    "BESIDE",
    "END_LIMIT",
    "LONG_RUN",
    "NOTEBOOK",
    "START_LIMIT",
    "Program",
    "alive",
    "pids_in",
    "press_ctrl_c",
    "wait_until",
    "wait_until_async",
]

T = TypeVar("T")

AGENTS_IN_MAIN = """
import dataclasses, sys
from paragent import AgentBase, Msg, RunConfig, Runners, Task
import beside

@dataclasses.dataclass
class Question:
    text: str

class Answer:
    def __init__(self, text):
        self.text = text

class Tutor(AgentBase):
    def __init__(self, name, greeting):
        super().__init__(name)
        self.greeting = greeting
    def reply(self, x):
        return Msg(name=self.name, content=Answer(f"{self.greeting} {decorate(x.content.text)}"))

def decorate(text):
    return f"<{text}>"

agents = [Tutor("t", "hello"), lambda q: Answer(decorate(q.text)), beside.Helper("h"), beside.assist]
tasks = [Task(Question(f"q{i}"), agent, id=str(i)) for i, agent in enumerate(agents)]
responses = Runners.sync_run_task(tasks, RunConfig(**SETTINGS))
for response in responses.values():
    assert response.success, response
assert all(type(r.answer) is Answer for r in list(responses.values())[:2]), responses
print([getattr(r.answer, "text", r.answer) for r in responses.values()])
"""

BESIDE = """
from paragent import AgentBase, Msg

class Helper(AgentBase):
    def reply(self, x):
        return Msg(name=self.name, content="helped " + x.content.text)

def assist(question):
    return "assisted " + question.text
"""

NOTEBOOK = """
import __main__, asyncio
CELLS = ['''
from paragent import RunConfig, Runners, Task
class Cell:
    def __init__(self, value):
        self.value = value
''', '''
def agent(x):
    return Cell(x.value * FACTOR)
FACTOR = 7
''', '''
responses = Runners.sync_run_task([Task(Cell(6), agent, id="a")], RunConfig(**SETTINGS))
assert isinstance(responses["a"].answer, Cell), responses
print("cell", responses["a"].answer.value)
FACTOR = 8
responses = Runners.sync_run_task([Task(Cell(6), agent, id="a")], RunConfig(**SETTINGS))
print("again", responses["a"].answer.value)
''']
__main__.SETTINGS = SETTINGS
async def kernel():
    for number, cell in enumerate(CELLS):
        exec(compile(cell, f"<cell {number}>", "exec"), vars(__main__))
asyncio.run(kernel())
"""

LONG_RUN = """
import sys
from paragent import Interrupted, RunConfig, Runners, Task
from paragent.testing import agents
tasks = [Task("done", agents.echo, id="quick")]
tasks += [Task(sys.argv[1], getattr(agents, name), id=f"slow{i}") for i, name in enumerate(sys.argv[2:])]
try:
    Runners.sync_run_task(tasks, RunConfig(**SETTINGS))
except Interrupted as interrupted:
    print({k: str(r.status) for k, r in interrupted.responses.items()}, flush=True)
    raise
"""


START_LIMIT = 150.0
"""Seconds for a program to start its engine and its tasks: Ray and Spark need 5 s on an idle host and 30 s on a busy one."""
END_LIMIT = 90.0
"""Seconds for a program to end, including the engine that it started."""


class Program:
    """A Python program in a folder of its own, with `SETTINGS` as the keyword arguments of its RunConfig."""

    def __init__(self, folder: Path, source: str, settings: Mapping[str, Any], **beside: str) -> None:
        self.folder = folder
        self.path = folder / "program.py"
        self.path.write_text(f"SETTINGS = {dict(settings)!r}\n{source}")
        for name, text in beside.items():
            (folder / f"{name}.py").write_text(text)

    def run(self, *arguments: str, timeout: float = START_LIMIT) -> str:
        """Run it to its end and return its standard output; a failure shows all of its output."""
        done = subprocess.run(
            [sys.executable, str(self.path), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd="/",
            check=False,
        )
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it as the leader of its own process group, as a shell does, so that a test can press Ctrl-C."""
        return subprocess.Popen(
            [sys.executable, str(self.path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            cwd="/",
        )


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """Send SIGINT to the whole foreground process group, as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second, if it ends between opening and reading
        return False


def pids_in(path: Path) -> list[int]:
    """Return the process ids that agents appended to a file."""
    return [int(line) for line in path.read_text().splitlines() if line.isdigit()] if path.exists() else []


def wait_until(
    condition: Callable[[], T], timeout: float = 60.0, *, what: str = "the condition", interval: float = 0.01
) -> T:
    """Call `condition` until it returns something true, and return that.

    Args:
        condition: called again and again in the calling thread.
        timeout: the limit in seconds.
        what: what is waited for, for the message.
        interval: seconds between two calls.

    Raises:
        TimeoutError: the condition was still false at the limit.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not become true within {timeout:g} s: {condition}")
        time.sleep(interval)
    return value


async def wait_until_async(
    condition: Callable[[], T], timeout: float = 60.0, *, what: str = "the condition", interval: float = 0.01
) -> T:
    """As `wait_until`, for coroutines: the event loop runs between two calls of `condition`."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not become true within {timeout:g} s: {condition}")
        await asyncio.sleep(interval)
    return value
