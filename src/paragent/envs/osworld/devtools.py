"""The guest's browser by its DevTools port: a connection, and time limits for calls that have none of their own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from playwright.async_api import Playwright

__all__ = ["CALL_SECONDS", "driver", "limited"]

CALL_SECONDS = 15.0
"""For a call to a page. A page that cannot be loaded may leave calls without an answer for ever, closing it among them."""
Answer = TypeVar("Answer")


async def limited(call: Awaitable[Answer], seconds: float = CALL_SECONDS) -> Answer:
    """Return what a call to the browser returns.

    Raises:
        playwright.async_api.Error: it failed, or there is no answer after `seconds`.
    """
    from playwright.async_api import Error

    try:
        return await asyncio.wait_for(call, seconds)
    except TimeoutError:
        raise Error(f"the browser did not answer within {seconds:g} s") from None


@contextlib.asynccontextmanager
async def driver() -> AsyncIterator[Playwright]:
    """Run Playwright's driver for the length of a `with`. Browsers that it is connected to go on afterwards."""
    from playwright.async_api import Error, async_playwright

    playwright = await limited(async_playwright().start(), 60.0)
    try:
        yield playwright
    finally:
        with contextlib.suppress(Error):
            await limited(playwright.stop())
