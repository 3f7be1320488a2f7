"""Agents for the tests, in a module that servers can import."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent import AgentBase, Msg, as_completed, concurrent, wait
from paragent.testing.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class OwnError(ValueError):
    """An exception whose constructor cannot be called with the arguments that it stores."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


class Worker(AgentBase):
    """Does what tests ask for."""

    def __init__(self, name: str = "worker", start: int = 0, *, to_dist: Any = None) -> None:
        super().__init__(name)
        self.count = start
        self.log: list[Any] = []

    def reply(self, x: Any = None) -> Any:
        return Msg(name=self.name, content=x.content if isinstance(x, Msg) else x)

    def echo(self, x: Any = None) -> Any:
        return x

    def add(self, a: int, b: int = 1) -> int:
        return a + b

    def make(self, size: int) -> bytes:
        return b"x" * size

    def size(self, x: Any) -> int:
        return len(x)

    def note(self, thing: Any) -> int:
        self.log.append(thing)
        self.count += 1
        return self.count

    def notes(self) -> list[Any]:
        return self.log

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return self.name

    def spin(self, path: str) -> None:
        """Run until interrupted, and then create the file."""
        try:
            Path(path + ".started").touch()
            while True:
                time.sleep(0.001)
        finally:
            Path(path).touch()

    def wait_for_nap(self, other: Any, how: str, path: str) -> None:
        """Wait for a call of another agent, given as a proxy, until interrupted, and then create the file."""
        try:
            nap = other.nap(60)
            Path(path + ".started").touch()
            if how == "str":
                str(nap)
            elif how == "wait":
                wait([nap])
            else:
                list(as_completed([nap]))
        finally:
            Path(path).touch()

    async def nap(self, seconds: float, path: str = "") -> str:
        if path:
            Path(path + ".started").touch()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if path:
                Path(path).touch()
            raise
        return self.name

    async def hog(self, seconds: float, path: str) -> None:
        """Block the event loop, as an async method must not."""
        Path(path).touch()
        time.sleep(seconds)

    async def slow_note(self, thing: Any) -> int:
        await asyncio.sleep(0.02)
        self.log.append(thing)
        return len(self.log)

    @concurrent
    async def together(self, seconds: float) -> int:
        self.count += 1
        await asyncio.sleep(seconds)
        return self.count

    @concurrent
    def together_sync(self, barrier: int) -> int:
        self.count += 1
        deadline = time.monotonic() + 5
        while self.count < barrier and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.count

    def block_until(self, path: str) -> str:
        deadline = time.monotonic() + 20
        while not Path(path).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        return path

    def fail(self, kind: str) -> None:
        if kind == "own":
            raise OwnError(7, why="because")
        raise {"value": ValueError, "key": KeyError, "exit": SystemExit}[kind](f"a {kind} error")

    def refuse(self, kind: str) -> None:
        """Raise an error of a library whose constructor does not take the arguments that the error stores."""
        import email.message
        import urllib.error

        import httpx
        import openai

        request = httpx.Request("POST", "http://host/v1", headers={"authorization": "Bearer secret"})
        response: Any = httpx.Response(429, request=request, json={"error": "slow"})
        errors: dict[str, BaseException] = {
            "openai": openai.RateLimitError("slow down", response=response, body={"code": "limit"}),
            "httpx": httpx.HTTPStatusError("429", request=request, response=response),
            "urllib": urllib.error.HTTPError("http://host", 404, "not found", email.message.Message(), None),
            "own": OwnError(7, why="because"),
        }
        raise errors[kind] from LookupError("root")

    def local_error(self) -> None:
        class Local(Exception):
            pass

        raise Local("not importable")

    def unserialisable(self) -> Any:
        return {"lock": threading.Lock()}

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def start_process(self) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    def numbers(self, count: int, path: str = "") -> Iterator[int]:
        try:
            for number in range(count):
                self.count = number
                yield number
        finally:
            if path:
                Path(path).touch()

    def pass_numbers(self, other: Any, count: int) -> Any:
        """Return the stream of another agent, which a method cannot."""
        return {"numbers": [other.numbers(count)]}

    async def async_numbers(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            self.count = number
            await asyncio.sleep(0)
            yield number

    def chunks(self, count: int, size: int) -> Iterator[bytes]:
        for number in range(count):
            self.count = number
            yield bytes(size)

    async def async_chunks(self, count: int, size: int) -> AsyncIterator[bytes]:
        for number in range(count):
            self.count = number
            yield bytes(size)

    def late_numbers(self, mark: str) -> Iterator[int]:
        yield 0
        try:
            while True:
                time.sleep(0.01)
        finally:
            Path(mark).touch()

    async def async_late_numbers(self, mark: str) -> AsyncIterator[int]:
        yield 0
        try:
            await asyncio.sleep(3600)
        finally:
            Path(mark).touch()

    @concurrent
    def seen_pid(self) -> int:
        return os.getpid()

    @concurrent
    def seen(self) -> int:
        return self.count

    def broken_numbers(self) -> Iterator[int]:
        yield 1
        raise ValueError("no second number")

    async def ask(self, other: Any, x: Any) -> Any:
        """Call another agent, given as a proxy."""
        return await other.echo(x)

    def ask_sync(self, other: Any, x: Any) -> Any:
        return other.echo(x).result(60)

    async def current_task_is_real(self) -> bool:
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return asyncio.current_task() is not None

    @property
    def double(self) -> int:
        return self.count * 2


class Moderator(AgentBase):
    """Calls other agents, given as proxies."""

    def __init__(self, members: list[Any], *, to_dist: Any = None) -> None:
        super().__init__("moderator")
        self._members = members

    def names(self) -> list[str]:
        return [member.name for member in self._members]

    def ask_all(self, x: Any) -> list[Any]:
        answers = [member.echo(x) for member in self._members]
        return [answer.result(60) for answer in answers]

    async def ask(self, member: Any, x: Any) -> Any:
        return await member.echo(x)

    def ask_last(self, members: list[Any], x: Any) -> Any:
        return members[-1].reply(x).result(60)

    async def fail(self, member: Any) -> None:
        await member.fail("value")

    def count(self, member: Any, number: int) -> list[int]:
        return list(member.numbers(number))


class Team(AgentBase):
    """Creates agents with the given arguments."""

    def __init__(self, members: list[dict[str, Any]]) -> None:
        super().__init__("team")
        self.members = [Worker(**member) for member in members]

    def echo(self, x: Any) -> Any:
        return [member.echo(x) for member in self.members]


class Slow(AgentBase):
    """Has a constructor that may wait: for as many constructors as `together`, and for the file `go` in the folder."""

    def __init__(self, folder: str = "", together: int = 1) -> None:
        super().__init__("slow")
        if folder:
            (Path(folder) / f"{os.getpid()}-{id(self)}.started").touch()
            wait_until(lambda: len(list(Path(folder).glob("*.started"))) >= together and (Path(folder) / "go").exists())
        self.made_in = os.getpid()

    def where(self) -> int:
        return self.made_in


class Failing(AgentBase):
    """Has a constructor that fails."""

    def __init__(self) -> None:
        raise RuntimeError("no such model")


class Holder(AgentBase):
    """Has an attribute that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holder")
        self.parts = {"lock": threading.Lock()}


class Spawner(AgentBase):
    """Creates agents with arguments from clients, in every way that user code can."""

    allowed = ("/safe",)

    def __init__(self, name: str = "spawner", root: str = "/safe", *, to_dist: Any = None) -> None:
        super().__init__(name)
        self._root = root
        self.show = functools.partial(self.root)

    def root(self) -> str:
        return self._root

    def spawn(self, **options: Any) -> Any:
        return str(Worker(**options).echo(1))

    def spawn_pairs(self, pairs: Any) -> Any:
        return self.spawn(**dict(pairs))

    async def spawn_async(self, pairs: Any) -> Any:
        return self.spawn(**dict(pairs))

    async def spawn_to_thread(self, pairs: Any) -> Any:
        return await asyncio.to_thread(self.spawn_pairs, pairs)

    def spawn_in_thread(self, pairs: Any) -> Any:
        with ThreadPoolExecutor() as threads:
            return threads.submit(self.spawn_pairs, pairs).result(20)

    def spawn_in_child(self, pairs: Any) -> Any:
        return Spawner(to_dist=True).spawn_pairs(pairs).result(20)

    def spawn_in_own_child(self, pairs: Any) -> Any:
        return Spawner(to_dist={"own_process": True}).spawn_pairs(pairs).result(20)

    def move(self, host: str, port: int) -> Any:
        return str(Worker().to_dist(host, port).echo(1))

    def as_dict(self, pairs: Any) -> dict[str, Any]:
        return dict(pairs)

    def square(self, number: int) -> int:
        return number * number
