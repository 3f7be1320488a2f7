"""Async code for callers that have no event loop, and for those that run inside one, as a notebook's cells do."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["run_to_the_end"]

T = TypeVar("T")


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, which keeps limits of its own, and return what it returns: in this thread, or beside the loop that it has."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="paragent-beside") as beside:
        return beside.submit(asyncio.run, work).result()
