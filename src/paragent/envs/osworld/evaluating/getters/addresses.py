"""The address of the tab in front, which only the accessibility tree knows, and parts of it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlparse
from xml.etree import ElementTree as ET

from paragent.envs.osworld.evaluating.getters.guest import accessibility_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.envs.osworld.evaluating.place import Place

__all__ = ["active_tab_url_parse", "active_url_from_accessTree", "address_bar", "url_dashPart", "url_path_parse"]

_BROWSERS = {"Google Chrome", "Chromium"}
_BAR = "Address and search bar"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+\-.]*:")
_HALF_OFF, _NOT_HALF_OFF = "50_PERCENT_ off & more", ("30_PERCENT_ off & more", "20_PERCENT_ off & more")


def address_bar(tree: str) -> str | None:
    """Return what the browser's address bar shows: of several, the focused one, else the last; runs in a helper.

    Raises:
        ElementTree.ParseError: the tree is no XML.
    """
    root = ET.fromstring(tree)
    browsers = [one for one in root.iter("application") if one.get("name") in _BROWSERS]
    bars = [bar for one in browsers for bar in one.iter("entry") if bar.get("name") == _BAR and bar.text]
    focused = [bar for bar in bars if any(name.endswith("focused") and bar.get(name) == "true" for name in bar.keys())]  # noqa: SIM118 - an element is no dictionary
    return (focused or bars)[-1].text if bars else None


async def active_url_from_accessTree(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return the address of the tab in front, None if no browser shows one.

    The bar does not show how an address begins; the task says what to put there.
    """
    tree = await accessibility_tree(place, {})
    shown = None if tree is None else await place.parse(f"{__name__}:address_bar", tree)
    if not shown:
        return None
    text = str(shown).strip()
    if _SCHEME.match(text):
        return text
    prefix = str(config.get("goto_prefix", "https://") or "")
    if prefix.endswith("www.") and text.lower().startswith("www."):
        text = text[len("www.") :]
    return f"{prefix}{text}"


async def active_tab_url_parse(place: Place, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first values of parts of the address's query, empty texts for those that are not there.

    `replace` gives them other names; with `split_list` each is a list, parted at commas.
    """
    address = await active_url_from_accessTree(place, config)
    if address is None:
        return None
    query = parse_qs(urlparse(address).query)
    renamed = config.get("replace", {})
    found = {renamed.get(key, key): query.get(key, [""])[0] for key in config["parse_keys"]}
    return {key: value.split(",") for key, value in found.items()} if config.get("split_list", False) else found


async def url_dashPart(place: Place, config: Mapping[str, Any]) -> Any:
    """Return one of the parts of the address between slashes, alone or as an object with a key."""
    address = await active_url_from_accessTree(place, config)
    if address is None:
        return None
    try:
        part = address.split("/")[int(config["partIndex"])]
    except IndexError:
        return None
    part = part.split("?")[0] if config.get("needDeleteId", False) else part
    return {config["key"]: part} if config["returnType"] == "json" else part


async def url_path_parse(place: Place, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the path of an address at one shop says: a row of keys, and after the next slash a row of values."""
    address = await active_url_from_accessTree(place, config)
    return None if address is None else filters_of(unquote(urlparse(address).path), config["parse_keys"])


def filters_of(path: str, wanted: list[str]) -> dict[str, Any]:
    """Return which filters the path of a shop's address names."""
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
