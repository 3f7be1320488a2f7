"""What the rollouts of one worker share: a browser, an index, helper processes. Opened when first needed, closed once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self, TypeVar

from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractAsyncContextManager

__all__ = ["SharedResources"]

Resource = TypeVar("Resource")
_CLOSE_LIMIT = 10.0
"""Seconds that one resource may take to close; a browser with many pages takes one or two."""
_log = logging.getLogger(__name__)


class SharedResources:
    """A worker's resources by key; belongs to one event loop, whose owner opens and closes it.

    ::

        async with SharedResources() as shared:  # once per worker
            environment = open_environment("web", options, shared=shared)  # once per attempt

    A resource is opened by whoever needs it first and stays open for the others, also when the first one is cancelled.
    Resources are closed in the reverse order of their opening, each within 10 s. Whatever they start dies with the process
    as well, so a worker that is killed leaves nothing behind.
    """

    def __init__(self) -> None:
        self._opened: dict[Hashable, asyncio.Task[tuple[AbstractAsyncContextManager[Any], Any]]] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, key: Hashable, opener: Callable[[], AbstractAsyncContextManager[Resource]]) -> Resource:
        """Return the resource called `key`, opened with `opener()` if there is none.

        An opening that fails is told to all who wait for it; the next call tries again.

        Raises:
            EnvironmentFailed: this object is closed.
            Exception: whatever the opener raised.
        """
        if self._closed:
            raise EnvironmentFailed("the worker is closing; nothing more can be opened in it")
        task = self._opened.get(key)
        if task is None:
            task = self._opened[key] = asyncio.create_task(_open(opener()))
            task.add_done_callback(lambda done: self._forget_failure(key, done))
        resource: Resource
        _, resource = await asyncio.shield(task)
        return resource

    async def drop(self, key: Hashable, resource: object) -> None:
        """Close a resource that turned out to be broken, so that the next `get` opens a new one.

        Nothing happens if `key` is by now another resource: of many who find it broken, the first one replaces it.
        """
        task = self._opened.get(key)
        if task is not None and task.done() and not task.cancelled() and task.result()[1] is resource:
            del self._opened[key]
            await _close(key, task)

    async def close(self) -> None:
        """Close everything; more calls do nothing."""
        self._closed = True
        while self._opened:
            key, task = self._opened.popitem()
            await _close(key, task)

    def _forget_failure(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._opened.get(key) is done:
            del self._opened[key]


async def _open(context: AbstractAsyncContextManager[Any]) -> tuple[AbstractAsyncContextManager[Any], Any]:
    return context, await context.__aenter__()


async def _close(key: Hashable, task: asyncio.Task[tuple[AbstractAsyncContextManager[Any], Any]]) -> None:
    try:
        async with asyncio.timeout(_CLOSE_LIMIT):
            context, _ = await task
            await context.__aexit__(None, None, None)
    except Exception as error:  # noqa: BLE001 - the others must be closed too, and no result depends on this
        _log.warning("closing %s failed: %s: %s", key, type(error).__name__, error)
