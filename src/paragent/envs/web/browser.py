"""The browser of a worker: one Chromium process tree, one isolated context and one tab per attempt.

Import this module only where a browser is used: importing playwright takes 0.3 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.async_api import Error, Page, async_playwright
from playwright.async_api import TimeoutError as PlaywrightTimeout

from paragent._internal.processes import plain_environment
from paragent.envs.tools import ToolFailed
from paragent.envs.web.ssrf_proxy import SsrfProxy
from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from playwright.async_api import Browser as PlaywrightBrowser
    from playwright.async_api import BrowserContext

__all__ = ["FLAGS", "Browser", "Tab"]

_START_LIMIT = 60.0
"""Seconds for Chromium to start; it takes one or two on an idle host."""
_DISPLAY = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY")
"""Environment variables for a visible window. Other variables are not passed on: a browser runs untrusted code."""
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",  # WebRTC would send UDP past the proxy, to any address
    "--js-flags=--max-old-space-size=512",
]
_SNAPSHOT = Path(__file__).with_name("snapshot.js").read_text(encoding="utf-8")
_SETTLE = 3.0
"""Seconds that a page gets after an action to load. What loads later is seen by the next `read`."""
_ACTION_LIMIT = 10.0
"""Seconds for one action on an element, and for one snapshot of a page."""
_PULSE_LIMIT = 3.0
"""Seconds for a page to evaluate a constant; a healthy page takes milliseconds."""
_CLOSE_LIMIT = 5.0
_WINDOW = 6_000
"""Characters of a page that are shown at a time: about 1,500 tokens."""


class Browser:
    """A running Chromium that makes all connections through the proxy."""

    def __init__(self, chromium: PlaywrightBrowser, proxy: SsrfProxy) -> None:
        self._chromium = chromium
        self.proxy = proxy

    @classmethod
    @asynccontextmanager
    async def running(
        cls, executable: str, *, headless: bool, allow_private: bool, site: Path | None
    ) -> AsyncIterator[Browser]:
        """Run a browser as a context manager.

        Raises:
            EnvironmentFailed: it does not start.
        """
        async with SsrfProxy(allow_private=allow_private, site=site) as proxy, async_playwright() as playwright:
            try:
                chromium = await playwright.chromium.launch(
                    executable_path=executable,
                    headless=headless,
                    # Chromium's own sandbox does not run as root, as which containers usually run it.
                    args=[*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])],
                    proxy={"server": f"http://127.0.0.1:{proxy.port}", "bypass": "<-loopback>"},
                    env={**plain_environment(), **{name: os.environ[name] for name in _DISPLAY if name in os.environ}},
                    timeout=_START_LIMIT * 1000,
                    handle_sigint=False,
                    handle_sigterm=False,
                    handle_sighup=False,
                )
            except Error as error:
                raise EnvironmentFailed(f"{executable} does not start: {error}") from None
            try:
                yield cls(chromium, proxy)
            finally:
                await chromium.close()

    @property
    def alive(self) -> bool:
        """Whether the browser still runs."""
        return self._chromium.is_connected()

    async def new_context(self, width: int, height: int) -> BrowserContext:
        """Return a context with its own cookies, storage and cache; the caller closes it.

        Raises:
            EnvironmentFailed: the browser died.
        """
        try:
            return await self._chromium.new_context(
                accept_downloads=False, service_workers="block", viewport={"width": width, "height": height}
            )
        except Error as error:
            raise EnvironmentFailed(f"the browser died: {error}") from None


class Tab:
    """The tab of an attempt: acts on one page at a time and returns its text.

    The browser context is borrowed. Pages that hang or crash are closed; pop-ups are closed and reported.

    Raises:
        ToolFailed: (all methods) the action failed; the message is for the agent.
        EnvironmentFailed: (all methods) the browser died.
    """

    def __init__(self, context: BrowserContext, page_limit: float) -> None:
        self._context, self._page_limit = context, page_limit
        self._page: Page | None = None
        self._crashed = False
        self._at = 0
        """Where the shown part of the page's text begins."""
        self._elements = 0
        """How many elements the last snapshot numbered."""
        self._closing: set[asyncio.Task[None]] = set()
        self._popups: list[str] = []
        context.on("page", self._on_page)

    async def open(self, url: str) -> str:
        """Open an address and return the page's text, as the other methods do."""
        self._at = 0
        return await self._act(
            lambda page: page.goto(url, timeout=self._page_limit * 1000, wait_until="domcontentloaded")
        )

    async def click(self, element: int) -> str:
        """Click a numbered element."""
        self._at = 0
        return await self._act(lambda page: self._element(page, element).click(timeout=_ACTION_LIMIT * 1000))

    async def type(self, element: int, text: str, *, submit: bool) -> str:
        """Fill a numbered field, or select an option of a numbered list; with `submit`, press Enter."""

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
        """Show the next or the previous part of the page's text, and scroll the page."""
        self._at = max(0, self._at + (_WINDOW if down else -_WINDOW))
        return await self._act(lambda page: page.mouse.wheel(0, 800 if down else -800))

    async def back(self) -> str:
        """Go back to the previous page."""
        self._at = 0
        return await self._act(
            lambda page: page.go_back(timeout=self._page_limit * 1000, wait_until="domcontentloaded")
        )

    async def read(self) -> str:
        """Return the page's text, with a number before each element that can be acted on."""
        page = await self._current()
        try:
            async with asyncio.timeout(_ACTION_LIMIT):
                seen = await page.evaluate(_SNAPSHOT)
        except TimeoutError:
            await self._abandon()
            raise ToolFailed("the page hangs and was closed; open another one") from None
        except Error as error:
            raise await self._failure(error) from None
        return self._format(seen)

    def _format(self, seen: dict[str, Any]) -> str:
        text, self._elements = str(seen["text"]), int(seen["elements"])
        self._at = min(self._at, max(0, (len(text) - 1) // _WINDOW * _WINDOW))
        shown = text[self._at : self._at + _WINDOW]
        head = [f"{seen['title']}\n{seen['url']}" if seen["title"] else str(seen["url"])]
        head += [f"(a pop-up was closed: {url})" for url in self._popups]
        self._popups.clear()
        if len(text) > _WINDOW:
            head.append(f"(characters {self._at} to {self._at + len(shown)} of {len(text)}; scroll for the rest)")
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
        """Return whether the page still runs scripts; a page in an endless loop does not."""
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
                raise EnvironmentFailed(f"the browser cannot open a page: {error}") from None
            page.on("crash", self._on_crash)
        return self._page

    def _element(self, page: Page, number: int) -> Any:
        if not 1 <= number <= self._elements:
            raise ToolFailed(f"there is no element {number}; the page has 1 to {self._elements}")
        return page.locator(f'[data-paragent="{number}"]').first

    def _on_crash(self, _: Page) -> None:
        self._crashed = True

    def _on_page(self, page: Page) -> None:
        """Close pages that a page opened. Pages of our own `new_page` have no opener."""
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
