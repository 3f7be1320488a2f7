"""The machine's browser: connections to its DevTools port, its tabs and its history.

Playwright is imported when a function needs it, because reading addresses and the history works without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from paragent.errors import EnvironmentFailed, MachineFailed
from paragent.machines.guest_client import GuestRequest
from paragent.osworld.access import Access, fetch
from paragent.osworld.controller import checked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
    from pathlib import Path

    from playwright.async_api import BrowserContext, Page, Playwright

    from paragent.osworld.controller import Controller

__all__ = [
    "CALL_SECONDS",
    "browser_address",
    "close_tabs",
    "limited",
    "open_tabs",
    "opened_page",
    "running_driver",
    "update_history",
]

CALL_SECONDS = 15.0
"""Time limit of a call to a page. A page that cannot be loaded may never answer some calls, including `close`."""
_ADDRESS_SECONDS = 10.0
_DRIVER_SECONDS = 60.0
_CONNECT_SECONDS = 75.0
"""OSWorld tries 15 times, 5 s apart; a browser in a machine under load takes that long to start."""
_PAUSE = 1.0
_PAGE_SECONDS = 60.0
_BROWSER_PATH = re.compile(r"(/[A-Za-z0-9_-]+)+")
_EMPTY_HISTORY = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
"""An empty history for a browser that has never been started; published with OSWorld's tasks."""
_FIND_HISTORY = (
    "for d in google-chrome chromium; do "
    'test -d "$HOME/.config/$d" && echo "$HOME/.config/$d/Default/History"; done; true'
)
_CHROME_EPOCH = 11_644_473_600
"""Seconds from 1601, the origin of Chrome's timestamps, to 1970."""
_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


# --- connections ----------------------------------------------------------------------------------------------------------


async def browser_address(devtools: str) -> str:
    """Return the WebSocket address of the browser at `devtools` (`host:port`).

    Only the path comes from the machine. Host and port do not, because the machine could name a service of this host.

    Raises:
        MachineFailed: no browser answers, or the answer is malformed.
    """
    host, _, port = devtools.rpartition(":")
    reply = await GuestRequest(host, int(port), "GET", "/json/version", timeout=_ADDRESS_SECONDS).send_async()
    fields = checked(reply, "/json/version").json()
    if not isinstance(fields, dict) or "webSocketDebuggerUrl" not in fields:
        raise MachineFailed(f"the machine's browser answered {str(fields)[:200]} without an address")
    address = str(fields["webSocketDebuggerUrl"])
    path = urlsplit(address).path if address.startswith(("ws://", "wss://")) else ""
    if not _BROWSER_PATH.fullmatch(path):
        raise MachineFailed(f"the machine's browser has the unexpected address {address[:200]!r}")
    return f"ws://{devtools}{path}"


async def limited(call: Awaitable[Answer], seconds: float = CALL_SECONDS) -> Answer:
    """Return the result of a call to the browser.

    Raises:
        playwright.async_api.Error: it failed, or did not return within `seconds`.
    """
    from playwright.async_api import Error

    try:
        return await asyncio.wait_for(call, seconds)
    except TimeoutError:
        raise Error(f"the browser did not answer within {seconds:g} s") from None


@contextlib.asynccontextmanager
async def running_driver() -> AsyncIterator[Playwright]:
    """Run Playwright's driver inside a `with` block. Browsers that it connects to keep running afterwards."""
    from playwright.async_api import Error, async_playwright

    playwright = await limited(async_playwright().start(), _DRIVER_SECONDS)
    try:
        yield playwright
    finally:
        with contextlib.suppress(Error):
            await limited(playwright.stop())


@contextlib.asynccontextmanager
async def opened_page(opening: Awaitable[Page]) -> AsyncIterator[Page]:
    """Open a page and close it at the end of the `with` block.

    Raises:
        playwright.async_api.Error: the browser does not open the page.
    """
    from playwright.async_api import Error

    page = await limited(opening)
    try:
        yield page
    finally:
        with contextlib.suppress(Error):  # a page that did not load may never confirm that it is closed
            await limited(page.close())


# --- tabs -----------------------------------------------------------------------------------------------------------------


async def open_tabs(devtools: str, urls: Sequence[str]) -> None:
    """Open a tab for each URL, in order; the first one replaces the tab that was open.

    As in OSWorld, a page that does not load in time is left as it is.

    Raises:
        EnvironmentFailed: the browser does not answer.
    """
    from playwright.async_api import Error

    async with _browser_context(devtools) as context:
        for index, url in enumerate(urls):
            page = await limited(context.new_page())
            try:
                await page.goto(url, timeout=_PAGE_SECONDS * 1000)
            except Error as error:
                _log.warning("the page %s did not load: %s", url, error)
            if index == 0 and len(context.pages) > 1:
                await limited(context.pages[0].close())


async def close_tabs(devtools: str, urls: Sequence[str]) -> None:
    """Close the tabs that show these URLs.

    Raises:
        EnvironmentFailed: the browser does not answer.
    """
    closing = {_normalised(url) for url in urls}
    async with _browser_context(devtools) as context:
        for page in context.pages:
            if _normalised(page.url) in closing:
                await limited(page.close())


@contextlib.asynccontextmanager
async def _browser_context(devtools: str) -> AsyncIterator[BrowserContext]:
    """Connect to the browser, which keeps running when the connection ends."""
    from playwright.async_api import Error

    async with running_driver() as playwright:
        deadline = asyncio.get_running_loop().time() + _CONNECT_SECONDS
        while True:
            try:
                address = await browser_address(devtools)
                browser = await playwright.chromium.connect_over_cdp(address, timeout=10_000)
                break
            except (Error, MachineFailed) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise EnvironmentFailed(f"the machine's browser does not answer at {devtools}: {error}") from error
            await asyncio.sleep(_PAUSE)
        try:
            yield browser.contexts[0]
        except Error as error:
            raise EnvironmentFailed(f"the machine's browser at {devtools}: {error}") from error


def _normalised(url: str) -> tuple[str, str, str]:
    """Return the parts of a URL that identify a page: without the scheme, `www.` and a trailing slash."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.removeprefix("www."), parts.path.rstrip("/"), parts.query


# --- history --------------------------------------------------------------------------------------------------------------


async def update_history(controller: Controller, folder: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Add visits to the history of the machine's browser, which should not be running.

    Raises:
        EnvironmentFailed: the machine has no browser, or its history file is not a valid database.
    """
    search = await controller.execute(_FIND_HISTORY, shell=True)  # noqa: S604 - a constant, in a shell of the machine
    path = search.output.split("\n")[0].strip()
    if not path:
        raise EnvironmentFailed("the machine has no folder of Google Chrome or Chromium in ~/.config")
    database = folder / "history.sqlite"
    data = await controller.file(path)
    if data is None:
        shutil.copyfile(await fetch(_EMPTY_HISTORY, Access()), database)
    else:
        database.write_bytes(data)
    try:
        await asyncio.to_thread(_add_visits, database, history)
    except sqlite3.Error as error:
        raise EnvironmentFailed(f"the browser's history {path}: {error}") from error
    await controller.upload(path, await asyncio.to_thread(database.read_bytes))


def _add_visits(database: Path, history: Sequence[Mapping[str, Any]]) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for visit in history:
            ago = float(visit["visit_time_from_now_in_seconds"])
            moment = int((time.time() - ago + _CHROME_EPOCH) * 1_000_000)
            cursor = connection.execute(
                "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, 1, 0, ?, 0)",
                (visit["url"], visit["title"], moment),
            )
            connection.execute(
                "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                "VALUES (?, ?, 0, 805306368, 0, 0)",
                (cursor.lastrowid, moment),
            )
