"""What the browser keeps in its profile: preferences, bookmarks, cookies, history; and shortcuts on the desktop."""

from __future__ import annotations

import asyncio
import json
import posixpath
from typing import TYPE_CHECKING, Any

from paragent.osworld.evaluators.getters.applications import home_folder
from paragent.osworld.evaluators.getters.machine import list_directory, unless_refused
from paragent.osworld.evaluators.metrics.reading import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paragent.osworld.evaluators.context import Place

__all__ = [
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
]


_PROFILES = (".config/google-chrome", ".config/chromium", "snap/chromium/common/chromium")
"""Below the home folder: Chrome's, Chromium's, and that of Ubuntu's Chromium on ARM."""
_FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
_GOOGLE = "Google"
"""OSWorld's answer for preferences that cannot be read, whatever was asked."""
_SCHEME_LOOKS = 5
_PROFILE_FILES = """cd "$HOME/.config" && ls -t google-chrome/Default/Preferences "google-chrome/Guest Profile/Preferences" \
google-chrome/"Profile "*/Preferences chromium/Default/Preferences 2>/dev/null | sed "s|^|$HOME/.config/|"; true"""
"""Lists files of preferences, the one that was written last at first."""
_NEW_TAB = 5
"""Chrome's number for: open the New Tab page."""
_ROWS = "paragent.osworld.evaluators.getters.profile:rows"


async def _file(place: Place, name: str) -> bytes | None:
    """Return a file of the first profile that has it."""
    home = await home_folder(place)
    for profile in _PROFILES:
        data = await place.ground.controller.file(posixpath.join(home, profile, "Default", name))
        if data:
            return data
    return None


async def _preference(place: Place, read: Callable[[Any], Any], otherwise: Any) -> Any:
    """Return what `read` finds in the browser's preferences; `otherwise` if they are not there or not of the usual form.

    OSWorld has an answer of its own for each getter whose preferences cannot be read, right or not.
    """
    try:
        return read(json.loads(await _file(place, "Preferences") or b""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return otherwise


def _at(data: Any, *keys: str) -> Any:
    """Return what is below a chain of keys; None where there is nothing."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _word(flag: object) -> str:
    return "true" if flag else "false"


async def default_search_engine(place: Place, config: Mapping[str, Any]) -> Any:
    """Return the name of the default search engine."""

    def read(found: Any) -> Any:
        return found.get("default_search_provider_data", {}).get("template_url_data", {}).get("short_name", _GOOGLE)

    return await _preference(place, read, _GOOGLE)


async def profile_name(place: Place, config: Mapping[str, Any]) -> Any:
    """Return the name of the profile."""
    return await _preference(place, lambda found: found.get("profile", {}).get("name"), None)


async def chrome_font_size(place: Place, config: Mapping[str, Any]) -> Any:
    """Return the font sizes, Chrome's own where none were chosen."""
    chosen = dict(_FONT_SIZES)
    unread = {name: size for name, size in _FONT_SIZES.items() if name != "minimum_font_size"}
    return await _preference(place, lambda found: found.get("webkit", {}).get("webprefs", chosen), unread)


async def enable_do_not_track(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if pages are asked not to track, else `false`."""
    return str(await _preference(place, lambda found: _word(found.get("enable_do_not_track")), "false"))


async def enable_enhanced_safety_browsing(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if the enhanced protection is on, else `false`."""
    return str(await _preference(place, lambda found: _word(found.get("safebrowsing", {}).get("enhanced")), _GOOGLE))


async def enable_safe_browsing(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if any protection is on, else `false`."""

    def read(found: Any) -> str:
        chosen = found.get("safebrowsing", {})
        return _word(chosen.get("enhanced") or chosen.get("enabled"))

    return str(await _preference(place, read, "false"))


async def new_startup_page(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if the browser starts with a new tab, which it does as long as nothing else was chosen."""

    def read(found: Any) -> str:
        return _word("session" not in found.keys() or found["session"].get("restore_on_startup") == _NEW_TAB)  # noqa: SIM118 - only objects have keys

    return str(await _preference(place, read, _GOOGLE))


async def data_delete_automacally(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if sites' data is deleted when the browser ends, else `false`."""

    def read(found: Any) -> str:
        return _word(found["profile"].get("default_content_setting_values") is not None)

    return str(await _preference(place, read, _GOOGLE))


async def find_unpacked_extension_path(place: Place, config: Mapping[str, Any]) -> Any:
    """Return the folders of all extensions; one without a folder makes the list unreadable, as in OSWorld."""
    return await _preference(place, lambda found: [entry["path"] for entry in _extensions(found)], _GOOGLE)


async def find_installed_extension_name(place: Place, config: Mapping[str, Any]) -> Any:
    """Return the names of all extensions; one without a name makes the list unreadable, as in OSWorld."""
    return await _preference(place, lambda found: [entry["manifest"]["name"] for entry in _extensions(found)], _GOOGLE)


def _extensions(found: Any) -> list[Any]:
    return list(found.get("extensions", {}).get("settings", {}).values())


async def colour_scheme(place: Place) -> str:
    """Return `light`, `dark` or `system`, as the preferences of the profile that was changed last have it.

    The browser writes them a while after a choice was made, so that anything but `light` is looked at for some seconds, as in
    OSWorld.
    """
    listed = await place.ground.controller.execute(["/bin/sh", "-c", _PROFILE_FILES])
    paths = listed.output.splitlines()
    scheme = "system"
    for _ in range(_SCHEME_LOOKS):
        schemes = [found for path in paths if (found := await _scheme_of(place, path)) is not None]
        scheme = next((found for found in schemes if found != "system"), schemes[0] if schemes else scheme)
        if scheme == "light":
            break
        await asyncio.sleep(1.0)
    return scheme


async def _scheme_of(place: Place, path: str) -> str | None:
    """Return what one file of preferences says; None if it cannot be read."""
    try:
        found = json.loads(await place.ground.controller.file(path) or b"")
        theme = found.get("browser", {}).get("theme", {})
        chosen = theme.get("color_scheme2", theme.get("color_scheme"))
        if found.get("extensions", {}).get("theme", {}).get("system_theme") in (0, "0", False):
            return "light"
    except (ValueError, AttributeError):
        return None
    return {"1": "light", "light": "light", "2": "dark", "dark": "dark"}.get(str(chosen).strip().lower(), "system")


async def bookmarks(place: Place, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the roots of the bookmarks, None if there are none."""
    try:
        found = json.loads(await _file(place, "Bookmarks") or b"{}")
    except ValueError:
        return None
    roots = _at(found, "roots")
    return roots if isinstance(roots, dict) else None


async def cookie_data(place: Place, config: Mapping[str, Any]) -> list[list[Any]] | None:
    """Return the rows of the cookies' table, None if there is none; what is encrypted is left out."""
    return await _table(place, "Cookies", config["dest"], "SELECT * FROM cookies")


async def history(place: Place, config: Mapping[str, Any]) -> list[list[Any]] | None:
    """Return address, title and time of every visit, None if there is no history."""
    return await _table(place, "History", config["dest"], "SELECT url, title, last_visit_time FROM urls")


async def _table(place: Place, name: str, dest: str, query: str) -> list[list[Any]] | None:
    data = await _file(place, name)
    if data is None:
        return None
    rows: list[list[Any]] | None = await place.parse(_ROWS, await place.keep(dest, data), query)
    return rows


async def shortcuts_on_desktop(place: Place, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the desktop's shortcuts by name."""
    controller = place.ground.controller
    folder = await unless_refused(controller.desktop_path())
    if folder is None:
        return {}
    children = (await list_directory(place, {"path": folder}) or {}).get("children", [])
    found = {}
    for name in (str(child["name"]) for child in children):
        if name.endswith(".desktop") and (data := await controller.file(posixpath.join(folder, name))) is not None:
            found[name] = data.decode("utf-8", "replace")
    return found


_MOST = 100_000
"""Rows; a browser's history has a few thousand."""


def rows(path: str, query: str) -> list[list[Any]]:
    """Return what a query gives, of the first rows at most; bytes are left out, since they are no JSON.

    Raises:
        sqlite3.Error: it is no database, or has no such table.
    """
    with open_database(path, immutable=True) as connection:
        found = connection.execute(query).fetchmany(_MOST)
    return [[None if isinstance(value, bytes) else value for value in row] for row in found]
