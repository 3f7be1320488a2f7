"""An agent that makes other agents of what clients send, in a module that servers can import."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paragent import AgentBase
from tests.remote.crew import Worker


class Spawner(AgentBase):
    """Makes agents with whatever it is given, in every way that code of users has."""

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
