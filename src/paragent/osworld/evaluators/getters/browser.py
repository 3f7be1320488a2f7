"""Getters of the browser without DevTools: preferences, bookmarks, cookies, history and the address bar."""

from __future__ import annotations

import asyncio
import itertools
import json
import posixpath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlparse
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.getters.applications import home_folder
from paragent.osworld.evaluators.getters.machine import accessibility_tree, list_directory, unless_refused
from paragent.osworld.evaluators.metrics.reading import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paragent.osworld.context import GetterContext

__all__ = [
    "active_tab_url_parse",
    "active_url_from_accessTree",
    "address_bar",
    "bookmarks",
    "chrome_font_size",
    "colour_scheme",
    "cookie_data",
    "data_delete_automacally",
    "default_search_engine",
    "enable_do_not_track",
    "enable_enhanced_safety_browsing",
    "enable_safe_browsing",
    "find_installed_extension_name",
    "find_unpacked_extension_path",
    "history",
    "new_startup_page",
    "profile_name",
    "rows",
    "shortcuts_on_desktop",
    "url_dashPart",
    "url_path_parse",
]

_PROFILES = (".config/google-chrome", ".config/chromium", "snap/chromium/common/chromium")
"""Below the home folder: Chrome's, Chromium's, and that of Ubuntu's Chromium on ARM."""
_FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
_GOOGLE = "Google"
"""OSWorld's answer if the preferences cannot be read, whatever was requested."""
_SCHEME_LOOKS = 5
_PROFILE_FILES = """cd "$HOME/.config" && ls -t google-chrome/Default/Preferences "google-chrome/Guest Profile/Preferences" \
google-chrome/"Profile "*/Preferences chromium/Default/Preferences 2>/dev/null | sed "s|^|$HOME/.config/|"; true"""
"""Lists preferences files, the most recently written first."""
_NEW_TAB = 5
"""Chrome's number for "open the New Tab page"."""
_ROWS = "paragent.osworld.evaluators.getters.browser:rows"


async def _file(context: GetterContext, name: str) -> bytes | None:
    """Return a file of the first profile that has it."""
    home = await home_folder(context)
    for profile in _PROFILES:
        data = await context.attempt.controller.file(posixpath.join(home, profile, "Default", name))
        if data:
            return data
    return None


async def _preference(context: GetterContext, read: Callable[[Any], Any], otherwise: Any) -> Any:
    """Return what `read` finds in the browser's preferences; `otherwise` if they are missing or malformed.

    As in OSWorld, each getter has its own answer for preferences that cannot be read, whether or not it is right.
    """
    try:
        return read(json.loads(await _file(context, "Preferences") or b""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return otherwise


def _at(data: Any, *keys: str) -> Any:
    """Return the value below a chain of keys; None if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _word(flag: object) -> str:
    return "true" if flag else "false"


async def default_search_engine(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return the name of the default search engine."""

    def read(found: Any) -> Any:
        return found.get("default_search_provider_data", {}).get("template_url_data", {}).get("short_name", _GOOGLE)

    return await _preference(context, read, _GOOGLE)


async def profile_name(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return the name of the profile."""
    return await _preference(context, lambda found: found.get("profile", {}).get("name"), None)


async def chrome_font_size(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return the font sizes; Chrome's defaults if none were chosen."""
    chosen = dict(_FONT_SIZES)
    unread = {name: size for name, size in _FONT_SIZES.items() if name != "minimum_font_size"}
    return await _preference(context, lambda found: found.get("webkit", {}).get("webprefs", chosen), unread)


async def enable_do_not_track(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return `true` if Do Not Track is on, otherwise `false`."""
    return str(await _preference(context, lambda found: _word(found.get("enable_do_not_track")), "false"))


async def enable_enhanced_safety_browsing(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return `true` if enhanced protection is on, otherwise `false`."""
    return str(await _preference(context, lambda found: _word(found.get("safebrowsing", {}).get("enhanced")), _GOOGLE))


async def enable_safe_browsing(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return `true` if any protection is on, otherwise `false`."""

    def read(found: Any) -> str:
        chosen = found.get("safebrowsing", {})
        return _word(chosen.get("enhanced") or chosen.get("enabled"))

    return str(await _preference(context, read, "false"))


async def new_startup_page(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return `true` if the browser starts with a new tab, which is the default."""

    def read(found: Any) -> str:
        return _word("session" not in found.keys() or found["session"].get("restore_on_startup") == _NEW_TAB)  # noqa: SIM118 - only objects have keys

    return str(await _preference(context, read, _GOOGLE))


async def data_delete_automacally(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return `true` if site data is deleted when the browser exits, otherwise `false`."""

    def read(found: Any) -> str:
        return _word(found["profile"].get("default_content_setting_values") is not None)

    return str(await _preference(context, read, _GOOGLE))


async def find_unpacked_extension_path(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return the folders of all extensions; as in OSWorld, one without a folder makes the list unreadable."""
    return await _preference(context, lambda found: [entry["path"] for entry in _extensions(found)], _GOOGLE)


async def find_installed_extension_name(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return the names of all extensions; as in OSWorld, one without a name makes the list unreadable."""
    return await _preference(
        context, lambda found: [entry["manifest"]["name"] for entry in _extensions(found)], _GOOGLE
    )


def _extensions(found: Any) -> list[Any]:
    return list(found.get("extensions", {}).get("settings", {}).values())


async def colour_scheme(context: GetterContext) -> str:
    """Return `light`, `dark` or `system` from the most recently changed preferences.

    The browser writes the file some time after a change, so anything but `light` is checked again for some seconds, as in
    OSWorld.
    """
    listed = await context.attempt.controller.execute(["/bin/sh", "-c", _PROFILE_FILES])
    paths = listed.output.splitlines()
    scheme = "system"
    for _ in range(_SCHEME_LOOKS):
        schemes = [found for path in paths if (found := await _scheme_of(context, path)) is not None]
        scheme = next((found for found in schemes if found != "system"), schemes[0] if schemes else scheme)
        if scheme == "light":
            break
        await asyncio.sleep(1.0)
    return scheme


async def _scheme_of(context: GetterContext, path: str) -> str | None:
    """Return the colour scheme of one preferences file; None if it cannot be read."""
    try:
        found = json.loads(await context.attempt.controller.file(path) or b"")
        theme = found.get("browser", {}).get("theme", {})
        chosen = theme.get("color_scheme2", theme.get("color_scheme"))
        if found.get("extensions", {}).get("theme", {}).get("system_theme") in (0, "0", False):
            return "light"
    except (ValueError, AttributeError):
        return None
    return {"1": "light", "light": "light", "2": "dark", "dark": "dark"}.get(str(chosen).strip().lower(), "system")


async def bookmarks(context: GetterContext, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the roots of the bookmarks; None if there are none."""
    try:
        found = json.loads(await _file(context, "Bookmarks") or b"{}")
    except ValueError:
        return None
    roots = _at(found, "roots")
    return roots if isinstance(roots, dict) else None


async def cookie_data(context: GetterContext, config: Mapping[str, Any]) -> list[list[Any]] | None:
    """Return the rows of the cookies table without encrypted values; None if there is no table."""
    return await _table(context, "Cookies", config["dest"], "SELECT * FROM cookies")


async def history(context: GetterContext, config: Mapping[str, Any]) -> list[list[Any]] | None:
    """Return the address, title and time of every visit; None if there is no history."""
    return await _table(context, "History", config["dest"], "SELECT url, title, last_visit_time FROM urls")


async def _table(context: GetterContext, name: str, dest: str, query: str) -> list[list[Any]] | None:
    data = await _file(context, name)
    if data is None:
        return None
    rows: list[list[Any]] | None = await context.parse(_ROWS, await context.write(dest, data), query)
    return rows


async def shortcuts_on_desktop(context: GetterContext, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the desktop's shortcuts by name."""
    controller = context.attempt.controller
    folder = await unless_refused(controller.desktop_path())
    if folder is None:
        return {}
    children = (await list_directory(context, {"path": folder}) or {}).get("children", [])
    found = {}
    for name in (str(child["name"]) for child in children):
        if name.endswith(".desktop") and (data := await controller.file(posixpath.join(folder, name))) is not None:
            found[name] = data.decode("utf-8", "replace")
    return found


_MOST = 100_000
"""Maximum number of rows; a browser's history has a few thousand."""


def rows(path: str, query: str) -> list[list[Any]]:
    """Return the first rows of a query's result; values of bytes are None, because they cannot be JSON.

    Raises:
        sqlite3.Error: the file is not a database, or has no such table.
    """
    with open_database(path, immutable=True) as connection:
        found = connection.execute(query).fetchmany(_MOST)
    return [[None if isinstance(value, bytes) else value for value in row] for row in found]


_BROWSERS = {"Google Chrome", "Chromium"}
_BAR = "Address and search bar"
_HALF_OFF, _NOT_HALF_OFF = "50_PERCENT_ off & more", ("30_PERCENT_ off & more", "20_PERCENT_ off & more")


def address_bar(tree: str) -> str | None:
    """Return the text of the browser's first address bar; None if the last one is empty. Runs in a child process.

    OSWorld checks the last bar for an address and then uses the first, regardless of the keyboard focus.

    Raises:
        ElementTree.ParseError: the tree is not valid XML.
    """
    root = ET.fromstring(tree)
    browsers = [one for one in root.iter("application") if one.get("name") in _BROWSERS]
    bars = [bar for one in browsers for bar in one.iter("entry") if bar.get("name") == _BAR]
    return str(bars[0].text) if bars and bars[-1].text else None


async def active_url_from_accessTree(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the task's prefix followed by the text of the address bar; None if no browser shows an address.

    As in OSWorld, the text is used unchanged: a scheme or `www.` that is shown follows the prefix.
    """
    tree = await accessibility_tree(context, {})
    shown = None if tree is None else await context.parse(f"{__name__}:address_bar", tree)
    return None if shown is None else f"{config.get('goto_prefix', 'https://')}{shown}"


async def active_tab_url_parse(context: GetterContext, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first value of each requested query parameter; an empty string for a missing one.

    `replace` renames them. With `split_list` each value is split at commas.
    """
    address = await active_url_from_accessTree(context, config)
    if address is None:
        return None
    query = parse_qs(urlparse(address).query)
    renamed = config.get("replace", {})
    found = {renamed.get(key, key): query.get(key, [""])[0] for key in config["parse_keys"]}
    return {key: value.split(",") for key, value in found.items()} if config.get("split_list", False) else found


async def url_dashPart(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return one part of the address between slashes, as a string or as an object with one key."""
    address = await active_url_from_accessTree(context, config)
    if address is None:
        return None
    try:
        part = address.split("/")[int(config["partIndex"])]
    except IndexError:
        return None
    part = part.split("?")[0] if config.get("needDeleteId", False) else part
    kind = config["returnType"]
    return {config["key"]: part} if kind == "json" else part if kind == "string" else None


async def url_path_parse(context: GetterContext, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the filters in the path of a shop's address: a list of keys, and after the next slash a list of values."""
    address = await active_url_from_accessTree(context, config)
    return None if address is None else filters_of(unquote(urlparse(address).path), config["parse_keys"])


def filters_of(path: str, wanted: list[str]) -> dict[str, Any]:
    """Return the filters that the path of a shop's address names."""
    parts = path.strip("/").split("/")
    values: dict[str, Any] = {"Men_regular_size_t": None, "Price_discount_range": None}
    for keys, given in itertools.pairwise(parts):
        if "," in keys and "," in given:
            pairs = zip(keys.split(","), given.split(","), strict=False)
            values |= {key.strip(): value.strip() or None for key, value in pairs}
            break
    shirts = "shirts" in path or values.get("Product_department") in {"shirts", "Shirts", "Shirt"}
    short = "short-sleeve" in path or values.get("Sleeve_length") in {"short-sleeve", "Short Sleeve"}
    found: dict[str, Any] = {"mens_clothing": "mens-clothing" in path or None}
    found |= {"shirts": shirts or None, "short_sleeve": short or None}
    for key in wanted:
        if key == "Price_discount_range":
            ranges = [one.strip() for one in (values[key] or "").split("|")]
            half = _HALF_OFF in ranges and not any(other in ranges for other in _NOT_HALF_OFF)
            found[key] = _HALF_OFF if half else f"not_{_HALF_OFF}"
        elif key in values:
            found[key] = values[key]
    return found
