"""The tabs of the guest's browser, by its DevTools port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from playwright.async_api import Error

from paragent.envs.osworld.controller import browser_address
from paragent.envs.osworld.devtools import driver, limited
from paragent.errors import EnvironmentFailed, MachineFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from playwright.async_api import BrowserContext

__all__ = ["close_tabs", "open_tabs"]

_CONNECT_SECONDS = 75.0
"""OSWorld asks 15 times, 5 s apart; a browser in a guest under load takes that long to start."""
_PAUSE = 1.0
_PAGE_SECONDS = 60.0
_log = logging.getLogger(__name__)


async def open_tabs(devtools: str, urls: Sequence[str]) -> None:
    """Open a tab for each address, in their order; the first one takes the place of the tab that is there.

    Pages that do not load in time are left as they are, as in OSWorld.

    Raises:
        EnvironmentFailed: the browser does not answer.
    """
    async with _tabs(devtools) as context:
        for number, url in enumerate(urls):
            page = await limited(context.new_page())
            try:
                await page.goto(url, timeout=_PAGE_SECONDS * 1000)
            except Error as error:
                _log.warning("the page %s did not load: %s", url, error)
            if number == 0 and len(context.pages) > 1:
                await limited(context.pages[0].close())


async def close_tabs(devtools: str, urls: Sequence[str]) -> None:
    """Close the tabs that show these addresses.

    Raises:
        EnvironmentFailed: the browser does not answer.
    """
    unwanted = {_plain(url) for url in urls}
    async with _tabs(devtools) as context:
        for page in context.pages:
            if _plain(page.url) in unwanted:
                await limited(page.close())


@contextlib.asynccontextmanager
async def _tabs(devtools: str) -> AsyncIterator[BrowserContext]:
    """Connect to the browser; it goes on when the connection ends."""
    async with driver() as playwright:
        deadline = asyncio.get_running_loop().time() + _CONNECT_SECONDS
        while True:
            try:
                address = await browser_address(devtools)
                browser = await playwright.chromium.connect_over_cdp(address, timeout=10_000)
                break
            except (Error, MachineFailed) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise EnvironmentFailed(f"the guest's browser does not answer at {devtools}: {error}") from error
            await asyncio.sleep(_PAUSE)
        try:
            yield browser.contexts[0]
        except Error as error:
            raise EnvironmentFailed(f"the guest's browser at {devtools}: {error}") from error


def _plain(url: str) -> tuple[str, str, str]:
    """Return what makes two addresses the same page: neither the scheme, nor `www.`, nor a slash at the end."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.removeprefix("www."), parts.path.rstrip("/"), parts.query
