"""The tabs of the guest's browser, by its DevTools port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from playwright.async_api import Error

from paragent.errors import EnvironmentFailed, MachineFailed
from paragent.osworld.access import Access
from paragent.osworld.controller import browser_address, driver, limited
from paragent.osworld.setup.download import fetch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from playwright.async_api import BrowserContext

    from paragent.osworld.controller import Controller

__all__ = ["close_tabs", "open_tabs", "update_history"]


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


_EMPTY = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
"""An empty history, for a browser that has not been started yet; published with OSWorld's tasks."""
_WHERE = 'for d in google-chrome chromium; do test -d "$HOME/.config/$d" && echo "$HOME/.config/$d/Default/History"; done; true'
_EPOCH = 11_644_473_600
"""Seconds from 1601, where Chrome's clock begins, to 1970."""


async def update_history(guest: Controller, folder: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Add visits to the history of the guest's browser, which should not be running.

    Raises:
        EnvironmentFailed: the guest has no browser, or what it has as its history is none.
    """
    looked = await guest.execute(_WHERE, shell=True)  # noqa: S604 - a shell of the guest, with a constant
    found = looked.output.split("\n")[0].strip()
    if not found:
        raise EnvironmentFailed("the guest has no folder of Google Chrome or Chromium in ~/.config")
    database = folder / "history.sqlite"
    known = await guest.file(found)
    if known is None:
        shutil.copyfile(await fetch(_EMPTY, Access()), database)
    else:
        database.write_bytes(known)
    try:
        await asyncio.to_thread(_add, database, history)
    except sqlite3.Error as error:
        raise EnvironmentFailed(f"the browser's history {found}: {error}") from error
    await guest.upload(found, await asyncio.to_thread(database.read_bytes))


def _add(database: Path, history: Sequence[Mapping[str, Any]]) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for visit in history:
            ago = float(visit["visit_time_from_now_in_seconds"])
            moment = int((time.time() - ago + _EPOCH) * 1_000_000)
            cursor = connection.execute(
                "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, 1, 0, ?, 0)",
                (visit["url"], visit["title"], moment),
            )
            connection.execute(
                "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                "VALUES (?, ?, 0, 805306368, 0, 0)",
                (cursor.lastrowid, moment),
            )
