"""Getters of pages in the machine's browser, through its DevTools port."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from paragent._internal.registry import require
from paragent.errors import MachineFailed
from paragent.osworld.browser import CALL_SECONDS, browser_address, limited, opened_page, running_driver
from paragent.osworld.context import MachineRefused
from paragent.osworld.evaluators.getters.browser import active_url_from_accessTree, colour_scheme

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from playwright.async_api import Browser, Page, Playwright

    from paragent.osworld.context import GetterContext

__all__ = [
    "active_tab_html_parse",
    "active_tab_info",
    "chrome_appearance_mode_ui",
    "info_from_website",
    "open_tabs_info",
    "page_info",
    "pdf_from_url",
]

require("playwright")
_CONNECT_SECONDS = 30.0
_PAGE_SECONDS = 60.0
"""Time limit of loading a page, as in OSWorld."""
_PAGE_TRIES = 2
_ELEMENT_SECONDS = 10.0
_SETTINGS_SECONDS = 30.0
_PRINT_TRIES = 3
_PRINT_PAUSE = 3.0
"""Seconds for a loaded page to finish drawing, as in OSWorld."""
_NO_PAGES = b"%PDF-1.4\n%EOF\n"
_START = ["google-chrome", "--remote-debugging-port=1337"]
"""The browser and the port of OSWorld's images."""
_START_SECONDS = 5.0
_TAB_SECONDS = 30.0
"""Time limit for a tab to finish loading before it is listed."""
_LABEL_SECONDS = 30.0
"""Time limit for an element with a text to appear."""
_TEXTS = "(elements) => elements.map((element) => (element.textContent || '').trim())"
_OWN_TEXTS = """(elements) => elements.slice(0, 1).flatMap((element) => [...element.childNodes]
    .filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.textContent.trim()).filter(Boolean))"""
_CHOSEN_SCHEME = """() => {
    const modes = new Set();
    const valueOf = (...keys) => {
        let found = document.querySelector('settings-ui')?.prefs;
        for (const key of keys) found = found?.[key];
        return found?.value;
    };
    for (const name of ['color_scheme', 'color_scheme2']) {
        const chosen = String(valueOf('browser', 'theme', name) ?? '').toLowerCase();
        modes.add({'1': 'light', light: 'light', '2': 'dark', dark: 'dark', '0': 'system', system: 'system',
            'default': 'system', device: 'system'}[chosen]);
    }
    modes.add({'0': 'light', 'false': 'light', '1': 'dark', 'true': 'dark'}[
        String(valueOf('extensions', 'theme', 'system_theme') ?? '')]);
    const words = {light: 'light', dark: 'dark', device: 'system', system: 'system', 'default': 'system'};
    const look = (root) => root.querySelectorAll('*').forEach((element) => {
        if (element.matches('[selected], [checked], [aria-checked="true"], option:checked')) {
            const text = (element.innerText || element.textContent || '').toLowerCase();
            modes.add(words[Object.keys(words).find((word) => text.includes(word))]);
        }
        if (element.shadowRoot) look(element.shadowRoot);
    });
    look(document);
    return ['light', 'dark', 'system'].find((mode) => modes.has(mode)) || null;
}"""
"""Returns the colour scheme of the preferences on the settings page; light has priority over dark, and dark over system."""


@contextlib.asynccontextmanager
async def _browser(context: GetterContext, *, start: bool = False) -> AsyncIterator[Browser | None]:
    """Connect to the machine's browser inside a `with` block; None if it does not answer (the agent may have closed it).

    Args:
        context: of the getter.
        start: start the browser of OSWorld's images if it does not answer, as some of OSWorld's getters do.
    """
    async with running_driver() as playwright:
        browser = await _connected(playwright, context)
        if browser is None and start:
            with contextlib.suppress(MachineRefused):  # a machine without this browser
                await context.attempt.controller.launch(_START)
            await asyncio.sleep(_START_SECONDS)
            browser = await _connected(playwright, context)
        yield browser


async def _connected(playwright: Playwright, context: GetterContext) -> Browser | None:
    from playwright.async_api import Error

    try:
        address = await browser_address(context.attempt.controller.devtools)
        connecting = playwright.chromium.connect_over_cdp(address, timeout=_CONNECT_SECONDS * 1000)
        return await limited(connecting, _CONNECT_SECONDS + CALL_SECONDS)
    except (Error, MachineFailed):
        return None


def _open_pages(browser: Browser) -> list[Page]:
    return [page for context in browser.contexts for page in context.pages]


async def open_tabs_info(context: GetterContext, config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the title and address of every tab."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as NotInTime

    found = []
    async with _browser(context, start=True) as browser:
        for page in [] if browser is None else _open_pages(browser):
            try:
                await page.wait_for_load_state("networkidle", timeout=_TAB_SECONDS * 1000)
                title = await limited(page.title())
            except NotInTime:
                title = "Load timeout"
            except Error:
                title = "Error encountered"
            found.append({"title": title, "url": page.url})
    return found


async def _contents(page: Page, title: str | None = None) -> dict[str, str]:
    title_text = await limited(page.title()) if title is None else title
    return {"title": title_text, "url": page.url, "content": await limited(page.content())}


async def page_info(context: GetterContext, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the title, address and contents of a page that the machine's browser loads; without contents if it cannot."""
    from playwright.async_api import Error

    for _ in range(_PAGE_TRIES):
        async with _browser(context, start=True) as browser:
            if browser is None:
                continue
            with contextlib.suppress(Error, IndexError):
                async with opened_page(browser.contexts[0].new_page()) as page:
                    await page.goto(config["url"], wait_until="networkidle", timeout=_PAGE_SECONDS * 1000)
                    return await _contents(page)
    return {"title": "Connection failed", "url": config["url"], "content": ""}


async def active_tab_info(context: GetterContext, config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the title, address and contents of the page of the active tab, loaded again without its cookies."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as NotInTime

    address = await active_url_from_accessTree(context, config)
    if address is None:
        return None
    async with _browser(context) as browser:
        if browser is None:
            return None
        with contextlib.suppress(Error):
            async with opened_page(browser.new_page()) as page:
                try:
                    await page.goto(address, wait_until="load", timeout=_PAGE_SECONDS * 1000)
                except NotInTime:
                    return await _contents(page, "Load timeout")
                return await _contents(page)
    return None


async def pdf_from_url(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return the path of a page printed to PDF by the machine's browser; the file has no pages if printing fails."""
    from playwright.async_api import Error

    path = context.path(config["dest"])
    async with _browser(context) as browser:
        for _ in range(_PRINT_TRIES if browser is not None else 0):
            assert browser is not None
            with contextlib.suppress(Error):
                async with opened_page(browser.new_page()) as page:
                    await page.goto(config["path"], wait_until="networkidle", timeout=_PAGE_SECONDS * 1000)
                    await asyncio.sleep(_PRINT_PAUSE)
                    await limited(page.pdf(path=path), _PAGE_SECONDS)
                    return str(path)
    return await context.write(config["dest"], _NO_PAGES)


async def chrome_appearance_mode_ui(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return `light`, `dark` or `system`, from the settings page or, if it does not tell, from the preferences file."""
    from playwright.async_api import Error

    async with _browser(context) as browser:
        with contextlib.suppress(Error, IndexError):
            if browser is not None:
                async with opened_page(browser.contexts[0].new_page()) as page:
                    settings = "chrome://settings/appearance"
                    await page.goto(settings, wait_until="domcontentloaded", timeout=_SETTINGS_SECONDS * 1000)
                    await asyncio.sleep(2.5)  # the page fills itself after loading; OSWorld waits as long
                    if shown := await limited(page.evaluate(_CHOSEN_SCHEME)):
                        return str(shown)
    return await colour_scheme(context)


async def info_from_website(context: GetterContext, config: Mapping[str, Any]) -> list[str | None] | Any:
    """Return texts and attributes of a page's elements, some after clicks; the task's `backups` if one is not available.

    Raises:
        KeyError: an entry has no selector.
    """
    from playwright.async_api import Error

    try:
        async with _browser(context, start=True) as browser:
            if browser is not None:
                async with opened_page(browser.contexts[0].new_page()) as page:
                    await page.goto(config["url"], wait_until="load", timeout=_PAGE_SECONDS * 1000)
                    return [await _info(page, config["url"], entry) for entry in config.get("infos", [])]
    except (Error, IndexError):
        pass
    return config.get("backups")


async def _info(page: Page, address: str, entry: Mapping[str, Any]) -> str | None:
    if page.url != address:
        await page.goto(address, wait_until="load", timeout=_PAGE_SECONDS * 1000)
    selectors = entry["selector"] if isinstance(entry["selector"], list) else [entry["selector"]]
    for selector in selectors[:-1]:
        await page.locator(selector).first.click(timeout=_ELEMENT_SECONDS * 1000)
        await page.wait_for_load_state("load", timeout=_PAGE_SECONDS * 1000)
    last = page.locator(selectors[-1]).first
    if str(entry.get("action", "inner_text")).endswith("attribute"):
        return await last.get_attribute(entry["attribute"], timeout=_ELEMENT_SECONDS * 1000)
    return await last.inner_text(timeout=_ELEMENT_SECONDS * 1000)


async def active_tab_html_parse(context: GetterContext, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return texts of elements of the active page, by the names that the task gives them.

    Elements are found by class, XPath or text, depending on `category`. A missing element gives an empty string. The result is
    empty if no tab has the address that the browser shows, and None if the browser shows no address.
    """
    address = await active_url_from_accessTree(context, config)
    if address is None:
        return None
    async with _browser(context, start=True) as browser:
        page = None if browser is None else await _tab_at(browser, address)
        if page is None:
            return {}
        category = config["category"]
        if category == "class":
            return await _by_class(page, config)
        if category == "class&url":
            return await _by_class_and_address(page, config)
        if category == "xpath":
            return {key: await _first(page, f"xpath={path}") for path, key in config.get("xpathObject", {}).items()}
        if category == "label":
            return {key: await _labelled(page, label) for label, key in config.get("labelObject", {}).items()}
        return {key: await _typed(page, f"xpath={path}") for path, key in config.get("inputObject", {}).items()}


async def _tab_at(browser: Browser, address: str) -> Page | None:
    from playwright.async_api import Error

    for page in _open_pages(browser):
        if unquote(page.url).rstrip("/") == unquote(address).rstrip("/"):
            with contextlib.suppress(Error):  # a tab that does not finish loading is skipped, as in OSWorld
                await page.wait_for_load_state("networkidle", timeout=_PAGE_SECONDS * 1000)
                return page
    return None


async def _texts(page: Page, selector: str, script: str = _TEXTS) -> list[str]:
    from playwright.async_api import Error

    try:
        return [str(text) for text in await limited(page.eval_on_selector_all(selector, script))]
    except Error:
        return []


async def _first(page: Page, selector: str) -> str:
    texts = await _texts(page, selector)
    return texts[0] if texts else ""


async def _labelled(page: Page, label: str) -> str:
    from playwright.async_api import Error

    try:
        text = await page.locator(f"text={label}").first.text_content(timeout=_LABEL_SECONDS * 1000)
    except Error:
        return ""
    return (text or "").strip()


async def _typed(page: Page, selector: str) -> str:
    """Return the value of the first input field."""
    texts = await _texts(page, selector, "(fields) => fields.map((field) => (field.value || '').trim())")
    return texts[0] if texts else ""


async def _by_class(page: Page, config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ways = (("class_multiObject", "", _TEXTS), ("class_multiObject_child", "", _OWN_TEXTS))
    for field, below, script in (*ways, ("class_multiObject_only_child", " h3", _TEXTS)):
        for name, places in config.get(field, {}).items():
            texts = await _texts(page, f".{name}{below}", script)
            for number, key in places.items():
                found[key] = texts[int(number)] if int(number) < len(texts) else ""
    for name, wanted in config.get("class_multiObject_search_exist", {}).items():
        texts = await _texts(page, f".{name}")
        found |= {key: key in texts for key in wanted if key != "is_other_exist"}
        if "is_other_exist" in wanted:
            found["is_other_exist"] = any(text not in wanted for text in texts)
    for name, key in config.get("class_singleObject", {}).items():
        found[key] = await _first(page, f".{name}")
    return found


async def _by_class_and_address(page: Page, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return which expected words the page shows as selected or has in its address, and whether it shows others as selected."""
    found: dict[str, Any] = {}
    for field, below in (("class_multiObject", ""), ("class_multiObject_li", " li.catAllProducts span:first-of-type")):
        for name, words in config.get(field, {}).items():
            texts = [text.lower() for text in await _texts(page, f".{name}{below}")]
            wanted = [str(word).lower() for word in words]
            found |= dict.fromkeys((word for word in wanted if word in texts), True)
            others = any(all(text not in word for word in wanted) for text in texts)
            found["is_other_exist"] = found.get("is_other_exist", False) or others
    address = page.url.lower()
    expected = {word: word for word in config.get("url_include_expected", [])}
    for part, word in {**expected, **config.get("url_include_expected_multichoice", {})}.items():
        found.setdefault(str(word).lower(), str(part).lower() in address)
    return found
