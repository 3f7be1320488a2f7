"""Agents whose code may harm their server, in a module that servers can import."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from paragent import AgentBase, concurrent

if TYPE_CHECKING:
    from collections.abc import Iterator


class Unreadable:
    """Raises an error at every access."""

    def __init__(self, raises: type[BaseException]) -> None:
        self.__dict__["raises"] = raises

    def __getattr__(self, name: str) -> NoReturn:
        raise self.__dict__["raises"](name)

    def __reduce__(self) -> NoReturn:
        raise self.__dict__["raises"]("reduce")


class UnreadableError(Exception):
    """Raises an error at every access, and when it is printed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise KeyError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise KeyError(name)

    def __str__(self) -> str:
        raise SystemExit("no text")

    def __reduce__(self) -> NoReturn:
        raise KeyboardInterrupt


class FaultyAgent(AgentBase):
    """Does what the code of an agent must not do."""

    def __init__(self) -> None:
        super().__init__("faulty")

    async def gather(self, kind: str) -> str:
        """Await two tasks, one of which raises `SystemExit` or `KeyboardInterrupt`."""
        await asyncio.gather(self._end(kind), asyncio.sleep(0.01))
        return "gathered"

    async def leave_task(self, kind: str) -> str:
        """Create a task that raises such an error, and await something else."""
        task = asyncio.create_task(self._end(kind))
        await asyncio.sleep(0.01)
        return str(task.done())

    async def _end(self, kind: str) -> None:
        await asyncio.sleep(0)
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}[kind](kind)

    async def callback(self, kind: str) -> str:
        """Have a callback raise such an error in the same millisecond as other callbacks."""

        def end() -> None:
            raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}[kind](kind)

        loop = asyncio.get_running_loop()
        due = loop.time() + 0.01
        before, after = asyncio.Event(), asyncio.Event()
        loop.call_at(due, before.set)
        loop.call_at(due, end)
        loop.call_at(due, after.set)
        await before.wait()
        await after.wait()
        return "called"

    async def stop_loop(self) -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "stopped"

    async def cancel_everything(self) -> int:
        """Cancel every task of the loop but this one."""
        count = sum(task.cancel() for task in asyncio.all_tasks() if task is not asyncio.current_task())
        await asyncio.sleep(0)
        return count

    async def break_loop(self) -> None:
        """Make the event loop fail. It needs the private selector: the public interface offers no way to break a running loop."""
        asyncio.get_running_loop()._selector.close()  # type: ignore[attr-defined]

    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    @concurrent
    async def long_nap(self) -> str:
        await asyncio.sleep(60)
        return "slept"

    def sleep(self, seconds: float) -> str:
        """Sleep in one native call, which no exception interrupts."""
        time.sleep(seconds)
        return "slept"

    def hold_interpreter(self, seconds: int, path: str) -> int:
        """Create the file, and then hold the interpreter lock in native code."""
        sleep = ctypes.PyDLL(None).sleep
        while True:
            with contextlib.suppress(BaseException):  # the call may be cancelled before it is in native code
                Path(path).touch()
                return int(sleep(seconds))

    async def hog(self, seconds: float) -> None:
        """Block the event loop."""
        time.sleep(seconds)

    def late(self, seconds: float, path: str) -> Iterator[int]:
        """Yield an item, create the file, and take long for the second item, whatever is raised in this thread."""
        yield 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(BaseException):
                Path(path).touch()
                time.sleep(seconds)
        yield 1

    def spin(self) -> None:
        """Run in small steps, which can be interrupted."""
        while True:
            time.sleep(0.001)

    def start_process(self) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    @concurrent
    def pid(self) -> int:
        return os.getpid()

    def add(self, a: int) -> int:
        return a + 1

    def no_more_threads(self, path: str) -> str:
        """Have starting a thread fail until the file exists."""
        original = threading.Thread.start

        def start(self: threading.Thread) -> None:
            if not Path(path).exists():
                raise RuntimeError("can't start new thread")
            original(self)

        threading.Thread.start = start  # type: ignore[method-assign]
        return "none"

    @concurrent
    def wait_for(self, path: str) -> str:
        deadline = time.monotonic() + 30
        while not Path(path).exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return path

    def answer(self, raises: type[BaseException]) -> Any:
        return Unreadable(raises)

    async def answer_async(self, raises: type[BaseException]) -> Any:
        return [Unreadable(raises)]

    def fail(self) -> None:
        raise UnreadableError

    async def fail_async(self) -> None:
        await asyncio.sleep(0)
        raise UnreadableError

    @property
    def trap(self) -> str:
        raise SystemExit("trap")


class Nameless(AgentBase):
    """Raises `SystemExit` when its name is read."""

    def __init__(self) -> None:
        return

    @property
    def name(self) -> str:  # type: ignore[override]
        raise SystemExit("name")

    def add(self, a: int) -> int:
        return a + 1
