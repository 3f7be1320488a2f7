"""The desktop's own state: favourites, time zone, folders, window sizes, settings of GIMP and of LibreOffice."""

from __future__ import annotations

import ast
import io
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.metrics.reading import bytes_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "check_auto_saving_time",
    "check_config_status",
    "check_gnome_favorite_apps",
    "check_left_panel",
    "check_moved_jpgs",
    "check_presenter_console_disable",
    "find_default_font",
    "is_utc_0",
    "is_vlc_fullscreen",
]

_OOR = "{http://openoffice.org/2001/registry}"
_ZONE_LINE = 3
"""The line of `timedatectl` with the time zone."""


def check_gnome_favorite_apps(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a list that GNOME printed has exactly the expected applications, in any order."""
    apps = ast.literal_eval(result.strip())
    return len(apps) == len(rules["expected"]) and set(apps) == set(rules["expected"])


def is_utc_0(result: str, **_: Any) -> bool:
    """Return whether `timedatectl` says that the time zone has no offset."""
    return result.split("\n")[_ZONE_LINE].endswith("+0000)")


def check_moved_jpgs(result: Mapping[str, Any], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a folder has exactly the expected entries."""
    names = [entry["name"] for entry in result["children"]]
    return len(names) == len(rules["expected"]) and set(names) == set(rules["expected"])


def is_vlc_fullscreen(result: Mapping[str, Any] | None, expected: Mapping[str, Any] | None = None, **_: Any) -> bool:
    """Return whether the window is as large as the screen."""
    if result is None or expected is None:
        return False
    return bool(result["width"] == expected["width"] and result["height"] == expected["height"])


def check_config_status(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a line of GIMP's settings, `(key ... value)`, has the expected key (or two) and value.

    Raises:
        IndexError: a line before it is blank but not empty, or too short.
    """
    if result is None:
        return False
    wanted = rules["key"]
    for line in io.StringIO(text_of(result)):
        if line.startswith("#") or line == "\n":
            continue
        words = line.strip().lstrip("(").rstrip(")").split()
        if _begins(words, wanted) and words[-1] == rules["value"]:
            return True
    return False


def _begins(words: list[str], wanted: str | list[str]) -> bool:
    if isinstance(wanted, str):
        return words[0] == wanted
    return len(wanted) == 2 and words[0] == wanted[0] and words[1] == wanted[1]


def _registry_properties(path: str, item_path: str, name: str) -> list[Any]:
    """Return what LibreOffice's registry has for a property, in the order of the file."""
    items = ET.fromstring(bytes_of(path)).findall(".//item")
    chosen = [item for item in items if item.get(f"{_OOR}path") == item_path]
    return [prop for item in chosen for prop in item.findall(".//prop") if prop.get(f"{_OOR}name") == name]


def check_presenter_console_disable(result: str, **_: Any) -> bool:
    """Return whether LibreOffice's presenter console is off."""
    found = _registry_properties(result, "/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen")
    return bool(found) and str(found[0].find("value").text).lower() == "false"


def check_auto_saving_time(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether LibreOffice saves by itself after the expected minutes."""
    found = _registry_properties(result, "/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall")
    return bool(found) and int(found[-1].find("value").text) == rules["minutes"]


def find_default_font(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether LibreOffice Writer's default font is the expected one."""
    if not result:
        return False
    found = _registry_properties(result, "/org.openoffice.Office.Writer/DefaultFont", "Standard")
    values = [value.text for prop in found for value in prop.findall("value")]
    return values[-1:] == [rules["font_name"]]


def check_left_panel(result: str, **_: Any) -> bool:
    """Return whether the accessibility tree has the panel of slides."""
    tree = ET.fromstring(result)
    return any(frame.get("name") == "Slides View" for frame in tree.iter("document-frame"))
