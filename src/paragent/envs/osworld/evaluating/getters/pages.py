"""Pages of the guest's browser, by its DevTools port."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from paragent._plugins import require
from paragent.envs.osworld.evaluating.getters.addresses import active_url_from_accessTree
from paragent.envs.osworld.evaluating.getters.profile import colour_scheme

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from playwright.async_api import BrowserContext, Page

    from paragent.envs.osworld.evaluating.place import Place

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
"""For a page to load, as in OSWorld."""
_ELEMENT_SECONDS = 10.0
_SETTLE_SECONDS = 10.0
"""For a tab that is still loading: OSWorld waits up to 60 s for each, although what counts was there when the agent ended."""
_TEXTS = "(elements) => elements.map((element) => (element.textContent || '').trim())"
_OWN_TEXTS = """(elements) => elements.slice(0, 1).flatMap((element) => [...element.childNodes]
    .filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.textContent.trim()).filter(Boolean))"""
_CHOSEN_SCHEME = """() => {
    const found = [];
    const look = (root) => root.querySelectorAll('*').forEach((element) => {
        if (element.matches('[selected], [checked], [aria-checked="true"], option:checked')) found.push(element.textContent);
        if (element.shadowRoot) look(element.shadowRoot);
    });
    look(document);
    const text = found.join(' ').toLowerCase();
    return ['light', 'dark'].find((mode) => text.includes(mode)) || null;
}"""


@contextlib.asynccontextmanager
async def _tabs(place: Place) -> AsyncIterator[BrowserContext | None]:
    """Connect to the guest's browser for the length of a `with`; None if it does not answer: the agent may have ended it."""
    from playwright.async_api import Error, async_playwright

    async with async_playwright() as playwright:
        try:
            address = f"http://{place.ground.controller.devtools}"
            browser = await playwright.chromium.connect_over_cdp(address, timeout=_CONNECT_SECONDS * 1000)
        except Error:
            yield None
            return
        yield browser.contexts[0]


async def open_tabs_info(place: Place, config: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return title and address of every tab."""
    from playwright.async_api import Error

    found = []
    async with _tabs(place) as context:
        for page in [] if context is None else context.pages:
            with contextlib.suppress(Error):
                await page.wait_for_load_state("load", timeout=_SETTLE_SECONDS * 1000)
            title = ""
            with contextlib.suppress(Error):
                title = await page.title()
            found.append({"title": title, "url": page.url})
    return found


@contextlib.asynccontextmanager
async def _loaded(place: Place, address: str) -> AsyncIterator[Page | None]:
    """Open a tab of its own at an address for the length of a `with`; None if there is no browser."""
    from playwright.async_api import Error

    async with _tabs(place) as context:
        if context is None:
            yield None
            return
        page = await context.new_page()
        try:
            with contextlib.suppress(Error):  # what there is after that time counts
                await page.goto(address, wait_until="load", timeout=_PAGE_SECONDS * 1000)
            yield page
        finally:
            with contextlib.suppress(Error):
                await page.close()


async def page_info(place: Place, config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return title, address and contents of a page that the guest's browser loads for this."""
    async with _loaded(place, config["url"]) as page:
        if page is None:
            return None
        return {"title": await page.title(), "url": page.url, "content": await page.content()}


async def active_tab_info(place: Place, config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return title, address and contents of the page of the tab in front, loaded once more."""
    address = await active_url_from_accessTree(place, config)
    return None if address is None else await page_info(place, {"url": address})


async def pdf_from_url(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return the path of a page printed to PDF by the guest's browser, None if there is no browser or it cannot print."""
    from playwright.async_api import Error

    async with _loaded(place, config["path"]) as page:
        if page is None:
            return None
        path = place.path(config["dest"])
        with contextlib.suppress(Error):
            await page.pdf(path=path)
        return str(path) if path.is_file() else None


async def chrome_appearance_mode_ui(place: Place, config: Mapping[str, Any]) -> str:
    """Return `light`, `dark` or `system`: what the settings page shows, else what the preferences say."""
    from playwright.async_api import Error

    async with _loaded(place, "chrome://settings/appearance") as page:
        if page is not None:
            with contextlib.suppress(Error):
                await asyncio.sleep(2.5)  # the page fills itself in after it has loaded; OSWorld waits as long
                if shown := await page.evaluate(_CHOSEN_SCHEME):
                    return str(shown)
    return await colour_scheme(place)


async def info_from_website(place: Place, config: Mapping[str, Any]) -> list[str | None] | Any:
    """Return texts and attributes of a page's elements, some after clicks; the task's `backups` if one cannot be had.

    Raises:
        KeyError: an entry has no selector.
    """
    from playwright.async_api import Error

    try:
        async with _loaded(place, config["url"]) as page:
            if page is not None:
                return [await _info(page, config["url"], entry) for entry in config.get("infos", [])]
    except Error:
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


async def active_tab_html_parse(place: Place, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return texts of elements of the page in front, by the names that the task gives them.

    Elements are found by class, XPath or text, as `category` says. What is not there is an empty text. The result is empty
    if no tab is at the address that the browser shows, and None if it shows none.
    """
    address = await active_url_from_accessTree(place, config)
    if address is None:
        return None
    async with _tabs(place) as context:
        page = None if context is None else await _tab_at(context, address)
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
            return {key: await _first(page, f"text={label}") for label, key in config.get("labelObject", {}).items()}
        return {key: await _typed(page, f"xpath={path}") for path, key in config.get("inputObject", {}).items()}


async def _tab_at(context: BrowserContext, address: str) -> Page | None:
    from playwright.async_api import Error

    for page in context.pages:
        if unquote(page.url).rstrip("/") == unquote(address).rstrip("/"):
            with contextlib.suppress(Error):
                await page.wait_for_load_state("networkidle", timeout=_SETTLE_SECONDS * 1000)
            return page
    return None


async def _texts(page: Page, selector: str, script: str = _TEXTS) -> list[str]:
    from playwright.async_api import Error

    try:
        return [str(text) for text in await page.eval_on_selector_all(selector, script)]
    except Error:
        return []


async def _first(page: Page, selector: str) -> str:
    texts = await _texts(page, selector)
    return texts[0] if texts else ""


async def _typed(page: Page, selector: str) -> str:
    """Return what is typed into the first of some fields."""
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
    """Return which expected words the page shows as chosen or has in its address, and whether it shows others as chosen."""
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
