"""Resources that the rollouts of one worker share: a browser, an index, subprocesses, model clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from paragent.errors import EnvironmentFailed
from paragent.execution import STARTING_HELPER, current_activity, current_record, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractAsyncContextManager
    from contextvars import Context

__all__ = ["SharedResources"]


class _Closable(Protocol):
    async def close(self) -> None: ...


Resource = TypeVar("Resource")
Closable = TypeVar("Closable", bound=_Closable)
_OPEN_TIMEOUT = 300.0
"""Seconds for one resource to open; an index of many documents takes minutes."""
_CLOSE_TIMEOUT = 10.0
"""Seconds for one resource to close; a browser with many pages takes one or two."""
_log = logging.getLogger(__name__)


class SharedResources:
    """The resources of one worker, by key. Belongs to one event loop.

    ::

        async with SharedResources() as shared:  # once per worker
            environment = open_environment("web", options, shared=shared)  # once per attempt

    The first `get` of a key opens the resource; it stays open for other callers, even if the first caller is cancelled.
    Resources are closed in the reverse order of their opening, each within 10 s. Everything that they start must also end
    with the process, so that a killed worker leaves nothing behind.
    """

    def __init__(self) -> None:
        self._opened: dict[Hashable, asyncio.Future[tuple[AbstractAsyncContextManager[Any], Any]]] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, key: Hashable, opener: Callable[[], AbstractAsyncContextManager[Resource]]) -> Resource:
        """Return the resource of `key`; open it with `opener()` if it is not open. Opening is not the rollout's work.

        If opening fails, all callers that wait for it get the error, and the next call tries again.

        Raises:
            EnvironmentFailed: this object is closed, or opening takes longer than 5 minutes.
            Exception: the error of the opener.
        """
        self._require_open()
        opening = self._opened.get(key)
        if opening is None:
            opening = self._opened[key] = asyncio.create_task(_open(key, opener()), context=_shared_context())
            opening.add_done_callback(lambda done: self._remove_failed(key, done))
        resource: Resource
        with contextlib.nullcontext() if opening.done() else waiting(STARTING_HELPER):
            _, resource = await asyncio.shield(opening)
        return resource

    def add(self, key: Hashable, resource: Closable) -> Closable:
        """Add a resource that is already open, so that it is closed with the others; return it.

        Raises:
            EnvironmentFailed: this object is closed.
        """
        self._require_open()
        opened = self._opened[key] = asyncio.get_running_loop().create_future()
        opened.set_result((_Closing(resource), resource))
        return resource

    async def drop(self, key: Hashable, resource: object) -> None:
        """Close a broken resource, so that the next `get` opens a new one.

        Does nothing if `key` already has another resource: of many callers that find it broken, the first one replaces it.
        """
        opened = self._opened.get(key)
        if opened is not None and opened.done() and not opened.cancelled() and opened.result()[1] is resource:
            del self._opened[key]
            await _close(key, opened)

    async def close(self) -> None:
        """Close all resources; idempotent."""
        self._closed = True
        while self._opened:
            key, opened = self._opened.popitem()
            await _close(key, opened)

    def _require_open(self) -> None:
        if self._closed:
            raise EnvironmentFailed("the worker is closing; no more resources can be opened")

    def _remove_failed(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._opened.get(key) is done:
            del self._opened[key]


class _Closing:
    """An async context manager that closes a resource on exit."""

    def __init__(self, resource: _Closable) -> None:
        self._resource = resource

    async def __aenter__(self) -> _Closable:
        return self._resource

    async def __aexit__(self, *_: object) -> None:
        await self._resource.close()


async def _open(
    key: Hashable, context: AbstractAsyncContextManager[Any]
) -> tuple[AbstractAsyncContextManager[Any], Any]:
    limit = asyncio.timeout(_OPEN_TIMEOUT)
    try:
        async with limit:
            return context, await context.__aenter__()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise EnvironmentFailed(f"{key} was not ready after {_OPEN_TIMEOUT:g} s") from error


def _shared_context() -> Context:
    """Return the current context without the rollout: what a resource does later is not done for the one that opened it."""
    context = copy_context()
    for variable in (current_activity, current_record):
        context.run(variable.set, None)
    return context


async def _close(key: Hashable, opened: asyncio.Future[tuple[AbstractAsyncContextManager[Any], Any]]) -> None:
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            context, _ = await opened
            await context.__aexit__(None, None, None)
    except Exception as error:  # noqa: BLE001 - the other resources must be closed too, and no result depends on this
        _log.warning("closing %s failed: %s: %s", key, type(error).__name__, error)
