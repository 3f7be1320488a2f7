"""The environment `web`: a real browser, pages as text with numbered elements, and search."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations of the options
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paragent._internal.registry import require
from paragent._internal.validation import integer, seconds
from paragent.envs.base import Environment
from paragent.envs.tools import ToolFailed, ToolResult, tool
from paragent.envs.web.chromium import find_chromium
from paragent.envs.web.search import LocalSearch, remote_search
from paragent.envs.web.ssrf_proxy import AddressRefused
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.async_api import BrowserContext

    from paragent.envs.web.browser import Browser, Tab
    from paragent.envs.web.search import Search
    from paragent.tasks import BenchmarkTask

require("playwright")

__all__ = ["WebEnvironment", "WebOptions"]

_CLOSE_LIMIT = 10.0
"""Seconds for the browser to close an attempt's pages."""


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of the environment `web`."""

    search: Annotated[Literal["none", "local", "searxng", "serper", "tavily"], "the search service"] = "none"
    kb: Annotated[Path | None, "for the search `local`: a knowledge base in which ids are addresses"] = None
    site: Annotated[Path | None, "a folder of pages that is served as http://site.test/"] = None
    allow_private: Annotated[bool, "allow pages on this host and in private networks"] = False
    page_limit: Annotated[float, "seconds for a page to load"] = 30.0
    headless: Annotated[bool, "run without a visible window"] = True
    screen_width: int = 1280
    screen_height: int = 720
    chromium: Annotated[Path | None, "path of the browser; default: the system's Chromium"] = None

    def __post_init__(self) -> None:
        seconds(self.page_limit, "page_limit")
        for name in ("screen_width", "screen_height"):
            integer(getattr(self, name), name, least=1)


class WebEnvironment(Environment):
    """Questions to answer from the web. Each attempt has its own browser context.

    Task metadata: `start_url`, the page to begin with. It has no score of its own; the default scorer is `contains`.
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
            raise ConfigError(f"the site {str(self.options.site)!r} is not a folder")
        if self.options.search != "none":
            await self._searcher()

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        question = await super().open(task, machine)
        start = task.metadata.get("start_url")
        return f"{question}\n\nBegin at {start}" if start else question

    @property
    def open_pages(self) -> int:
        """The number of open pages of this attempt, including pop-ups that are about to be closed."""
        return 0 if self._context is None else len(self._context.pages)

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
        return await (await self._new_or_current_tab(browser)).open(url)

    @tool
    async def click(self, element: Annotated[int, "the number before the link or button"]) -> str:
        """Click an element and read the page that follows."""
        return await self._current_tab().click(element)

    @tool
    async def type(
        self,
        element: Annotated[int, "the number before the field"],
        text: Annotated[str, "the new text of the field; for a list, the option to select"],
        submit: Annotated[bool, "press Enter afterwards"] = False,
    ) -> str:
        """Fill a field and, with submit, press Enter."""
        return await self._current_tab().type(element, text, submit=submit)

    @tool
    async def scroll(self, direction: Annotated[Literal["down", "up"], "direction"] = "down") -> str:
        """Show the next or the previous part of a long page."""
        return await self._current_tab().scroll(down=direction == "down")

    @tool
    async def back(self) -> str:
        """Go back to the previous page."""
        return await self._current_tab().back()

    @tool
    async def read(self) -> str:
        """Read the page again, as it is now."""
        return await self._current_tab().read()

    @tool
    async def search(self, query: Annotated[str, "a few words"]) -> ToolResult:
        """Search the web. Shows the title, the address and a passage of each result."""
        hits = await (await self._searcher()).find(query)
        text = "\n\n".join(f"{hit.title}\n{hit.url}\n{hit.text}" for hit in hits)
        return ToolResult(text or "Nothing was found; try other words.", extras={"urls": [hit.url for hit in hits]})

    # --- browser and search ---------------------------------------------------------------------------------------------

    def _current_tab(self) -> Tab:
        if self._tab is None:
            raise ToolFailed("no page is open yet; use the tool open first")
        return self._tab

    async def _browser(self) -> Browser:
        """Return the worker's browser; start a new one if it has died."""
        from paragent.envs.web.browser import Browser

        options = self.options
        key = ("browser", options.chromium, options.headless, options.allow_private, options.site)
        for _ in range(2):
            browser = await self.shared.get(
                key,
                lambda: Browser.running(
                    find_chromium(options.chromium),
                    headless=options.headless,
                    allow_private=options.allow_private,
                    site=options.site,
                ),
            )
            if browser.alive:
                break
            await self.shared.drop(key, browser)
        return browser

    async def _new_or_current_tab(self, browser: Browser) -> Tab:
        from paragent.envs.web.browser import Tab

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
            raise ConfigError(
                "the search 'local' needs a knowledge base: set --kb to a .json or .jsonl file or a folder"
            )
        return LocalSearch(await self.shared.get(("index", str(kb)), lambda: shared_index(kb)))

    async def close(self) -> None:
        context, self._context, self._tab = self._context, None, None
        if context is not None:
            with contextlib.suppress(Exception):  # the pages of a dead browser are closed already
                async with asyncio.timeout(_CLOSE_LIMIT):
                    await context.close()
        await super().close()
