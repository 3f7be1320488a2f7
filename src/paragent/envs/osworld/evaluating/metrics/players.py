"""VLC: what it plays and how it is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from xml.etree import ElementTree as ET

from paragent.envs.osworld.evaluating.metrics.reading import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "check_global_key_play_pause",
    "check_one_instance_when_started_from_file",
    "check_play_and_exit",
    "check_qt_bgcone",
    "check_qt_max_volume",
    "check_qt_minimal_view",
    "check_qt_slider_colours",
    "is_vlc_playing",
    "is_vlc_recordings_folder",
]

_NAMES = ("filename", "title", "uri", "location", "name")
_ADDRESSES = ("url", "URI", "location", "title", "filename")
_SLIDER = "153;210;153;20;210;20;255;199;15;245;39;29"
"""VLC's own colours of the volume slider."""
_BLACKISH = 100
"""Below which each part of a colour must be."""


def is_vlc_playing(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether VLC's status says that it plays the expected file or address."""
    status = ET.fromstring(bytes_of(result).decode())
    if status.findtext("state") != "playing":
        return False
    if rules["type"] == "file_name":
        return _meta(status, _NAMES).endswith(rules["file_name"])
    return rules["type"] == "url" and _is_address(_meta(status, _ADDRESSES), rules["url"])


def _meta(status: ET.Element, names: tuple[str, ...]) -> str:
    """Return the first thing that the status says under one of these names."""
    for name in names:
        found = status.findtext(f"information/category[@name='meta']/info[@name='{name}']")
        if found:
            return found
    return ""


def _is_address(found: str, expected: str) -> bool:
    """Return whether VLC's word for a stream means an address; often it is only the last part of it."""
    if not found:
        return False
    wanted, shown = urlparse(expected), urlparse(found)
    if expected in found or found == wanted.path.rpartition("/")[2]:
        return True
    return "://" in found and wanted.netloc == shown.netloc and wanted.path in shown.path


def _setting(path: str, key: str, default: str) -> str:
    """Return what follows the last equals sign of the last line of VLC's settings with a key; comments count."""
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
    """Return whether VLC records into the expected folder; only a line that is no comment counts, and the first."""
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
