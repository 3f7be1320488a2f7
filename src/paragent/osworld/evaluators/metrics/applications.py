"""Metrics of application and desktop settings: VLC, Thunderbird, GNOME, GIMP, LibreOffice."""

from __future__ import annotations

import ast
import io
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.metrics.matching import check_methods, matches, meets_rules
from paragent.osworld.evaluators.metrics.reading import bytes_of, text_of
from paragent.osworld.evaluators.supported import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "check_auto_saving_time",
    "check_config_status",
    "check_global_key_play_pause",
    "check_gnome_favorite_apps",
    "check_left_panel",
    "check_moved_jpgs",
    "check_one_instance_when_started_from_file",
    "check_play_and_exit",
    "check_presenter_console_disable",
    "check_qt_bgcone",
    "check_qt_max_volume",
    "check_qt_minimal_view",
    "check_qt_slider_colours",
    "check_thunderbird_filter",
    "check_thunderbird_folder",
    "check_thunderbird_prefs",
    "find_default_font",
    "is_utc_0",
    "is_vlc_fullscreen",
    "is_vlc_playing",
    "is_vlc_recordings_folder",
]

_NAMES = ("filename", "title", "uri", "location", "name")
_ADDRESSES = ("url", "URI", "location", "title", "filename")
_SLIDER = "153;210;153;20;210;20;255;199;15;245;39;29"
"""VLC's default colours of the volume slider."""
_BLACKISH = 100
"""A colour is blackish if each component is below this."""


def is_vlc_playing(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether VLC's status says that it plays the expected file or address."""
    status = ET.fromstring(bytes_of(result).decode())
    if status.findtext("state") != "playing":
        return False
    if rules["type"] == "file_name":
        return _meta(status, _NAMES).endswith(rules["file_name"])
    return rules["type"] == "url" and _is_address(_meta(status, _ADDRESSES), rules["url"])


def _meta(status: ET.Element, names: tuple[str, ...]) -> str:
    """Return the first value of the status under one of these names."""
    for name in names:
        found = status.findtext(f"information/category[@name='meta']/info[@name='{name}']")
        if found:
            return found
    return ""


def _is_address(found: str, expected: str) -> bool:
    """Return whether VLC's name of a stream means an address; often it is only the last part."""
    if not found:
        return False
    wanted, shown = urlparse(expected), urlparse(found)
    if expected in found or found == wanted.path.rpartition("/")[2]:
        return True
    return "://" in found and wanted.netloc == shown.netloc and wanted.path in shown.path


def _setting(path: str, key: str, default: str) -> str:
    """Return the text after the last equals sign of the last line with a key in VLC's settings; comments count."""
    value = default
    for line in bytes_of(path).decode().split("\n"):
        if key in line:
            value = line.split("=")[-1].strip()
    return value


def _checker(key: str, default: str, expected: str) -> Callable[..., bool]:
    def check(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
        return _setting(result, f"{key}=", default) == str(rules[expected])

    check.__doc__ = f"Return whether VLC's setting `{key}` is what the rule calls `{expected}`."
    return check


check_qt_bgcone = _checker("qt-bgcone", "1", "expected_qt_bgcone")
check_qt_max_volume = _checker("qt-max-volume", "125", "expected_qt_max_volume")
check_qt_minimal_view = _checker("qt-minimal-view", "0", "expected_qt_minimal_view")
check_play_and_exit = _checker("play-and-exit", "0", "expected_play_and_exit")
check_one_instance_when_started_from_file = _checker(
    "one-instance-when-started-from-file", "1", "expected_one_instance_when_started_from_file"
)


def check_global_key_play_pause(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a global key for play and pause is set (1) or not (0), as expected."""
    found = "1" if _setting(result, "global-key-play-pause=", "") else "0"
    return found == str(rules["expected_global_key_play_pause"])


def is_vlc_recordings_folder(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether VLC records into the expected folder; only the first line that is not a comment counts."""
    for line in bytes_of(result).decode().split("\n"):
        if "input-record-path" in line and not line.startswith("#"):
            return bool(line.split("=")[-1].strip() == rules["recording_file_path"])
    return False


def check_qt_slider_colours(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the volume slider has the expected colours, or only blackish ones."""
    found = _setting(result, "qt-slider-colours", _SLIDER)
    if rules["type"] == "match":
        return bool(found == rules["expected_qt_slider_colours"])
    parts = [int(part) for part in found.split(";")]
    return rules["type"] == "blackish" and all(part < _BLACKISH for part in parts[: len(parts) // 3 * 3])


_PREFERENCE = re.compile(r'user_pref\("((?:\\"|[^"])+)", (.+)\);')
_CONDITION = re.compile(r"\b(?:AND|OR) \([\w ]+,[\w ']+,(?:\"(?s:.)+\"|[^)]+)\)|\bALL\b")
"""A condition of a filter. As in OSWorld, a quoted one extends to the last quote of the line."""
_FILTER_FIELDS = ("name", "enabled", "type", "action", "actionValue", "condition")
_DELETED = re.compile(r"X-Mozilla-Status: 000[89]")
_MESSAGE = "FROM - "


@checked(
    rules=lambda rules: check_methods([*rules.get("expect", {}).values(), *rules.get("unexpect", {}).values()]),
)
def check_thunderbird_prefs(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the preferences match the rules of `expect`, and those that are set do not match the rules of `unexpect`.

    Raises:
        ValueError: any preference is not valid JSON.
    """
    if result is None:
        return False
    expected, unexpected = rules.get("expect", {}), rules.get("unexpect", {})
    met = dict.fromkeys(expected, False)
    for line in io.StringIO(text_of(result)):
        found = _PREFERENCE.fullmatch(line.strip())
        if found is None:
            continue
        key, value = found[1], json.loads(found[2])
        if key in expected:
            met[key] = matches(value, expected[key])
        elif key in unexpected and matches(value, unexpected[key]):
            return False
    return all(met.values())


def check_thunderbird_filter(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether each filter of `expect` exists, and none of `unexpect`."""
    return result is not None and meets_rules(_filters(text_of(result)), rules)


def _filters(text: str) -> list[dict[str, Any]]:
    """Return the filters of a rules file. A filter begins with its name and ends with its condition.

    Values are quoted. If the last line has no end, its last character is taken for the quote.

    Raises:
        ValueError: something precedes the first name.
    """
    filters: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    for line in io.StringIO(text):
        key, separator, _ = line.partition("=")
        if not separator or key not in _FILTER_FIELDS:
            continue
        value = line[len(key) + 2 : -2].replace('\\"', '"').replace("\\\\", "\\")
        if key == "name":
            current = {}
        if current is None:
            raise ValueError(f"the filter file begins with {key!r}, not with a name")
        current[key] = value
        if key == "condition":
            current[key] = _CONDITION.findall(value)
            filters.append(current)
    return filters


def check_thunderbird_folder(
    result: str | list[str | None] | None,
    expected: str | list[str],
    *,
    remove_duplicate: bool = True,
    strict_evaluators: bool = False,
    **options: Any,
) -> bool:
    """Return whether mail folders have the expected messages, in any order.

    Deleted messages do not count unless `remove_deleted` is off; `ignore_status` and `ignore_keys` ignore Thunderbird's own
    headers. OSWorld drops every message that is not empty; with `strict_evaluators` they are compared.
    """
    if isinstance(expected, list) and not isinstance(result, list):
        return False
    pairs: list[tuple[Any, Any]] = (
        list(zip(result or (), expected, strict=False)) if isinstance(expected, list) else [(result, expected)]
    )

    def messages(path: str) -> list[str]:
        read = _messages(text_of(path), **options) if strict_evaluators else _blanks(text_of(path))
        return sorted(set(read) if remove_duplicate else read)

    return all(one is not None and messages(one) == messages(other) for one, other in pairs)


def _blanks(text: str) -> list[str]:
    """Return the empty parts of a folder between the beginnings of messages, written as OSWorld expects them."""
    return [part.strip() for part in text.strip().split(_MESSAGE) if not part.strip()]


def _messages(
    text: str, *, remove_deleted: bool = True, ignore_status: bool = False, ignore_keys: bool = False, **_: Any
) -> list[str]:
    kept = []
    for message in re.split("(?m)^From - |FROM - ", text.strip()):
        if not message.strip() or (remove_deleted and _DELETED.search(message)):
            continue
        plain = re.sub(r"X-Mozilla-Status\d?:[\s\d]+", "", message) if ignore_status else message
        plain = re.sub(r"X-Mozilla-Keys:[^\n]*\n(?=MIME-Version)", "", plain) if ignore_keys else plain
        kept.append(plain.strip())
    return kept


_OOR = "{http://openoffice.org/2001/registry}"
_ZONE_LINE = 3
"""The line of `timedatectl` with the time zone."""


def check_gnome_favorite_apps(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a list that GNOME printed has exactly the expected applications, in any order."""
    apps = ast.literal_eval(result.strip())
    return len(apps) == len(rules["expected"]) and set(apps) == set(rules["expected"])


def is_utc_0(result: str, **_: Any) -> bool:
    """Return whether `timedatectl` reports a time zone without offset."""
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
        IndexError: an earlier line has only spaces, or is too short.
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
    """Return the values of a property in LibreOffice's registry, in the order of the file."""
    items = ET.fromstring(bytes_of(path)).findall(".//item")
    chosen = [item for item in items if item.get(f"{_OOR}path") == item_path]
    return [prop for item in chosen for prop in item.findall(".//prop") if prop.get(f"{_OOR}name") == name]


def check_presenter_console_disable(result: str, **_: Any) -> bool:
    """Return whether LibreOffice's presenter console is off."""
    found = _registry_properties(result, "/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen")
    return bool(found) and str(found[0].find("value").text).lower() == "false"


def check_auto_saving_time(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether LibreOffice's autosave interval is the expected number of minutes."""
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
    """Return whether the accessibility tree has the slide panel."""
    tree = ET.fromstring(result)
    return any(frame.get("name") == "Slides View" for frame in tree.iter("document-frame"))
