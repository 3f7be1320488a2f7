"""What the browser keeps in its profile: preferences, bookmarks, cookies, history; and shortcuts on the desktop."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.getters.applications import home_folder
from paragent.envs.osworld.evaluating.getters.guest import list_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.envs.osworld.evaluating.place import Place

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
    "shortcuts_on_desktop",
]

_PROFILES = (".config/google-chrome", ".config/chromium", "snap/chromium/common/chromium")
"""Below the home folder: Chrome's, Chromium's, and that of Ubuntu's Chromium on ARM."""
_FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
_NEW_TAB = 5
"""Chrome's number for: open the New Tab page."""
_ROWS = "paragent.envs.osworld.evaluating.getters.databases:rows"


async def _file(place: Place, name: str) -> bytes | None:
    """Return a file of the first profile that has it."""
    home = await home_folder(place)
    for profile in _PROFILES:
        data = await place.ground.controller.file(posixpath.join(home, profile, "Default", name))
        if data:
            return data
    return None


async def _preferences(place: Place) -> dict[str, Any]:
    """Return the browser's preferences, empty where there are none that can be read."""
    try:
        found = json.loads(await _file(place, "Preferences") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _at(data: Any, *keys: str) -> Any:
    """Return what is below a chain of keys; None where there is nothing."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _word(flag: object) -> str:
    return "true" if flag else "false"


async def default_search_engine(place: Place, config: Mapping[str, Any]) -> str:
    """Return the name of the default search engine."""
    name = _at(await _preferences(place), "default_search_provider_data", "template_url_data", "short_name")
    return str(name or "Google")


async def profile_name(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return the name of the profile."""
    name = _at(await _preferences(place), "profile", "name")
    return None if name is None else str(name)


async def chrome_font_size(place: Place, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the font sizes, Chrome's own where none were chosen."""
    found = _at(await _preferences(place), "webkit", "webprefs")
    return found if isinstance(found, dict) else dict(_FONT_SIZES)


async def enable_do_not_track(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if pages are asked not to track, else `false`."""
    return _word(_at(await _preferences(place), "enable_do_not_track"))


async def enable_enhanced_safety_browsing(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if the enhanced protection is on, else `false`."""
    return _word(_at(await _preferences(place), "safebrowsing", "enhanced"))


async def enable_safe_browsing(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if any protection is on, else `false`."""
    found = _at(await _preferences(place), "safebrowsing")
    return _word(_at(found, "enhanced") or _at(found, "enabled"))


async def new_startup_page(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if the browser starts with a new tab, which it does as long as nothing else was chosen."""
    found = await _preferences(place)
    return _word("session" not in found or _at(found, "session", "restore_on_startup") == _NEW_TAB)


async def data_delete_automacally(place: Place, config: Mapping[str, Any]) -> str:
    """Return `true` if sites' data is deleted when the browser ends, else `false`."""
    return _word(_at(await _preferences(place), "profile", "default_content_setting_values") is not None)


async def _extensions(place: Place) -> list[Any]:
    found = _at(await _preferences(place), "extensions", "settings")
    return list(found.values()) if isinstance(found, dict) else []


async def find_unpacked_extension_path(place: Place, config: Mapping[str, Any]) -> list[str]:
    """Return the folders of all extensions."""
    return [path for entry in await _extensions(place) if isinstance(path := _at(entry, "path"), str)]


async def find_installed_extension_name(place: Place, config: Mapping[str, Any]) -> list[str]:
    """Return the names of all extensions."""
    return [name for entry in await _extensions(place) if isinstance(name := _at(entry, "manifest", "name"), str)]


async def colour_scheme(place: Place) -> str:
    """Return `light`, `dark` or `system`, as the preferences have it."""
    found = await _preferences(place)
    if _at(found, "extensions", "theme", "system_theme") in (0, "0", False):
        return "light"
    theme = _at(found, "browser", "theme")
    chosen = _at(theme, "color_scheme2") if _at(theme, "color_scheme2") is not None else _at(theme, "color_scheme")
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
    folder = await controller.desktop_path()
    children = (await list_directory(place, {"path": folder}) or {}).get("children", [])
    found = {}
    for name in (str(child["name"]) for child in children):
        if name.endswith(".desktop") and (data := await controller.file(posixpath.join(folder, name))) is not None:
            found[name] = data.decode("utf-8", "replace")
    return found
