"""The web: a real browser, pages as text with numbered elements, and search."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - the options are read by their annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paragent._internal.registry import require
from paragent._internal.validation import integer, seconds
from paragent.envs.base import Environment
from paragent.envs.tools import ToolFailed, ToolResult, tool
from paragent.envs.web.browser import Browser, find_chromium
from paragent.envs.web.search import LocalSearch, remote_search
from paragent.envs.web.ssrf_proxy import AddressRefused
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.async_api import BrowserContext

    from paragent.envs.web.search import Search
    from paragent.envs.web.tab import Tab

require("playwright")

__all__ = ["WebEnvironment", "WebOptions"]

_CLOSE_LIMIT = 10.0
"""Seconds for the browser to close an attempt's pages."""


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of the environment `web`."""

    search: Annotated[Literal["none", "local", "searxng", "serper", "tavily"], "who answers searches"] = "none"
    kb: Annotated[Path | None, "for the search `local`: a knowledge base whose ids are addresses"] = None
    site: Annotated[Path | None, "a folder of pages to serve as http://site.test/"] = None
    allow_private: Annotated[bool, "whether pages may be on this computer and in private networks"] = False
    page_limit: Annotated[float, "seconds for a page to load"] = 30.0
    headless: Annotated[bool, "whether to hide the browser's window"] = True
    screen_width: int = 1280
    screen_height: int = 720
    chromium: Annotated[Path | None, "the browser; otherwise the system's Chromium"] = None

    def __post_init__(self) -> None:
        seconds(self.page_limit, "page_limit")
        for name in ("screen_width", "screen_height"):
            integer(getattr(self, name), name, least=1)


class WebEnvironment(Environment):
    """Questions to be answered from the web, in a browser context of the attempt's own.

    Metadata read: `start_url`, the page to begin with. It has no score of its own; `contains` decides by default.
    """

    name = "web"
    metric = "contains"
    options_type = WebOptions
    one_at_a_time = True
    instructions = (
        "Answer the question from the web. Pages are shown as text; links, buttons and fields have numbers, which `click` "
        "and `type` take. Numbers change with every look at a page. End with a line `Answer: ...` that has the answer alone."
    )
    options: WebOptions

    def __init__(self, options: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(options, **more)
        self._context: BrowserContext | None = None
        self._tab: Tab | None = None
        if self.options.search == "none":
            del self._tools["search"]

    async def check(self) -> None:
        find_chromium(self.options.chromium)
        if self.options.site is not None and not self.options.site.is_dir():
            raise ConfigError(f"the site {str(self.options.site)!r} is no folder")
        if self.options.search != "none":
            await self._searcher()

    async def open(self, item: Any, machine: Any = None) -> str:
        question = await super().open(item, machine)
        start = item.metadata.get("start_url")
        return f"{question}\n\nBegin at {start}" if start else question

    # --- tools ----------------------------------------------------------------------------------------------------------

    @tool(name="open")
    async def open_page(self, url: Annotated[str, "http:// or https:// address"]) -> str:
        """Open a page and read it."""
        browser = await self._browser()
        url = url.strip()
        try:
            await browser.proxy.check(url)
        except AddressRefused as refused:
            raise ToolFailed(str(refused)) from None
        return await (await self._tab_of(browser)).open(url)

    @tool
    async def click(self, element: Annotated[int, "the number before the link or button"]) -> str:
        """Click an element and read the page that follows."""
        return await self._opened().click(element)

    @tool
    async def type(
        self,
        element: Annotated[int, "the number before the field"],
        text: Annotated[str, "what the field shall hold; for a list, the option to choose"],
        submit: Annotated[bool, "whether to press Enter afterwards"] = False,
    ) -> str:
        """Fill a field, and submit it if asked to."""
        return await self._opened().type(element, text, submit=submit)

    @tool
    async def scroll(self, direction: Annotated[Literal["down", "up"], "where to"] = "down") -> str:
        """Show the next part, or the part before, of a long page."""
        return await self._opened().scroll(down=direction == "down")

    @tool
    async def back(self) -> str:
        """Go back to the page before."""
        return await self._opened().back()

    @tool
    async def read(self) -> str:
        """Read the page again, as it is now."""
        return await self._opened().read()

    @tool
    async def search(self, query: Annotated[str, "a few words"]) -> ToolResult:
        """Search the web. Shows the title, the address and a passage of each result."""
        hits = await (await self._searcher()).find(query)
        told = "\n\n".join(f"{hit.title}\n{hit.url}\n{hit.text}" for hit in hits)
        return ToolResult(told or "Nothing was found; try other words.", extras={"urls": [hit.url for hit in hits]})

    # --- what the tools stand on -------------------------------------------------------------------------------------------

    def _opened(self) -> Tab:
        if self._tab is None:
            raise ToolFailed("no page is open yet; use the tool open first")
        return self._tab

    async def _browser(self) -> Browser:
        """Return the worker's browser, a new one if the last has died."""
        options = self.options
        settings = {
            "program": options.chromium,
            "headless": options.headless,
            "allow_private": options.allow_private,
            "site": options.site,
        }
        key = ("browser", *settings.values())
        for _ in range(2):
            browser = await self.shared.get(key, lambda: Browser.running(**settings))  # type: ignore[arg-type]
            if browser.alive:
                break
            await self.shared.drop(key, browser)
        return browser

    async def _tab_of(self, browser: Browser) -> Tab:
        from paragent.envs.web.tab import Tab

        if self._tab is None:
            self._context = await browser.new_context(self.options.screen_width, self.options.screen_height)
            self._tab = Tab(self._context, self.options.page_limit)
        return self._tab

    async def _searcher(self) -> Search:
        if self.options.search != "local":
            return remote_search(self.options.search)
        from paragent.envs.rag.environment import shared_index

        kb = self.options.kb
        if kb is None:
            raise ConfigError("the search 'local' needs a knowledge base: --kb")
        return LocalSearch(await self.shared.get(("index", str(kb)), lambda: shared_index(kb)))

    async def close(self) -> None:
        context, self._context, self._tab = self._context, None, None
        if context is not None:
            with contextlib.suppress(Exception):  # a browser that died has closed its pages already
                async with asyncio.timeout(_CLOSE_LIMIT):
                    await context.close()
        await super().close()
