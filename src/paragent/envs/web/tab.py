"""The one tab of an attempt: acts on its page and tells what it shows; survives pages that hang, crash or open others."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.async_api import Error, Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from paragent.envs.tools import ToolFailed
from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from playwright.async_api import BrowserContext

__all__ = ["Tab"]

_SNAPSHOT = Path(__file__).with_name("snapshot.js").read_text(encoding="utf-8")
_SETTLE = 3.0
"""Seconds that a page gets after an action to load what follows from it; what comes later is seen by the next `read`."""
_ACTION_LIMIT = 10.0
"""Seconds for one action on an element, and for one look at a page."""
_PULSE_LIMIT = 3.0
"""Seconds for a page to evaluate a constant; a healthy one takes milliseconds."""
_CLOSE_LIMIT = 5.0
_WINDOW = 6_000
"""Characters of a page that are shown at a time: some 1,500 tokens."""


class Tab:
    """Drives one page at a time within a browser context, which is borrowed.

    Raises:
        ToolFailed: (all methods) the page does not do what is asked; the message is for the agent.
        EnvironmentFailed: (all methods) the browser died.
    """

    def __init__(self, context: BrowserContext, page_limit: float) -> None:
        self._context, self._page_limit = context, page_limit
        self._page: Page | None = None
        self._crashed = False
        self._at = 0
        """Where in the text of the page the window begins."""
        self._elements = 0
        """How many elements the last look at the page numbered."""
        self._closing: set[asyncio.Task[None]] = set()
        self._popups: list[str] = []
        context.on("page", self._on_page)

    async def open(self, url: str) -> str:
        """Go to an address and return what is there."""
        self._at = 0
        return await self._act(
            lambda page: page.goto(url, timeout=self._page_limit * 1000, wait_until="domcontentloaded")
        )

    async def click(self, element: int) -> str:
        """Click a numbered element."""
        self._at = 0
        return await self._act(lambda page: self._element(page, element).click(timeout=_ACTION_LIMIT * 1000))

    async def type(self, element: int, text: str, *, submit: bool) -> str:
        """Fill a numbered field, or choose in a numbered list, and press Enter if asked to."""

        async def fill(page: Page) -> None:
            target = self._element(page, element)
            if await target.evaluate("element => element.tagName", timeout=_ACTION_LIMIT * 1000) == "SELECT":
                await target.select_option(label=text, timeout=_ACTION_LIMIT * 1000)
            else:
                await target.fill(text, timeout=_ACTION_LIMIT * 1000)
            if submit:
                await target.press("Enter", timeout=_ACTION_LIMIT * 1000)

        return await self._act(fill)

    async def scroll(self, *, down: bool) -> str:
        """Move the window over the page's text by one, and the page along."""
        self._at = max(0, self._at + (_WINDOW if down else -_WINDOW))
        return await self._act(lambda page: page.mouse.wheel(0, 800 if down else -800))

    async def back(self) -> str:
        """Go to the page before."""
        self._at = 0
        return await self._act(
            lambda page: page.go_back(timeout=self._page_limit * 1000, wait_until="domcontentloaded")
        )

    async def read(self) -> str:
        """Return what the page shows."""
        page = await self._current()
        try:
            async with asyncio.timeout(_ACTION_LIMIT):
                seen = await page.evaluate(_SNAPSHOT)
        except TimeoutError:
            await self._abandon()
            raise ToolFailed("the page hangs and was closed; open another one") from None
        except Error as error:
            raise await self._failure(error) from None
        return self._told(seen)

    def _told(self, seen: dict[str, Any]) -> str:
        text, self._elements = str(seen["text"]), int(seen["elements"])
        self._at = min(self._at, max(0, (len(text) - 1) // _WINDOW * _WINDOW))
        shown = text[self._at : self._at + _WINDOW]
        head = [f"{seen['title']}\n{seen['url']}" if seen["title"] else str(seen["url"])]
        head += [f"(a pop-up was closed: {url})" for url in self._popups]
        self._popups.clear()
        if len(text) > _WINDOW:
            head.append(f"(characters {self._at} to {self._at + len(shown)} of {len(text)}; scroll for the others)")
        return "\n".join(head) + "\n\n" + (shown or "(the page is empty)")

    async def _act(self, action: Callable[[Page], Awaitable[Any]]) -> str:
        page = await self._current()
        try:
            async with asyncio.timeout(self._page_limit + _ACTION_LIMIT):
                await action(page)
                with contextlib.suppress(PlaywrightTimeout):
                    await page.wait_for_load_state("load", timeout=_SETTLE * 1000)
        except (TimeoutError, Error) as error:
            raise await self._failure(error) from None
        return await self.read()

    async def _failure(self, error: Exception) -> ToolFailed | EnvironmentFailed:
        browser = self._context.browser
        if browser is None or not browser.is_connected():
            return EnvironmentFailed("the browser died")
        first = str(error).partition("\n")[0].removeprefix("Page.")
        if self._crashed or "crashed" in first:
            await self._abandon()
            return ToolFailed("the page crashed and was closed; open another one")
        if isinstance(error, TimeoutError) or (isinstance(error, PlaywrightTimeout) and not await self._answers()):
            await self._abandon()
            return ToolFailed("the page does not answer and was closed; open another one")
        return ToolFailed(first)

    async def _answers(self) -> bool:
        """Tell whether the page still runs scripts; one in an endless loop does not."""
        try:
            async with asyncio.timeout(_PULSE_LIMIT):
                return self._page is not None and await self._page.evaluate("true") is True
        except (TimeoutError, Error):
            return False

    async def _current(self) -> Page:
        if self._page is None or self._page.is_closed():
            self._crashed = False
            try:
                self._page = page = await self._context.new_page()
            except Error as error:
                raise EnvironmentFailed(f"the browser opens no page: {error}") from None
            page.on("crash", self._on_crash)
        return self._page

    def _element(self, page: Page, number: int) -> Any:
        if not 1 <= number <= self._elements:
            raise ToolFailed(f"there is no element {number}; the page has 1 to {self._elements}")
        return page.locator(f'[data-paragent="{number}"]').first

    def _on_crash(self, _: Page) -> None:
        self._crashed = True

    def _on_page(self, page: Page) -> None:
        """Close what a page opened by itself; `new_page` of our own has no opener yet when it is announced."""
        task = asyncio.create_task(self._close_popup(page))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_popup(self, page: Page) -> None:
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(_CLOSE_LIMIT):
                if await page.opener() is None:
                    return
                self._popups.append(page.url[:200])
                await page.close()

    async def _abandon(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            with contextlib.suppress(Error, TimeoutError):
                async with asyncio.timeout(_CLOSE_LIMIT):
                    await page.close()
