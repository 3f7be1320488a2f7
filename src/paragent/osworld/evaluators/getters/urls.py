"""The address of the tab in front, which only the accessibility tree knows, and parts of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlparse
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.getters.machine import accessibility_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.osworld.evaluators.context import Place

__all__ = ["active_tab_url_parse", "active_url_from_accessTree", "address_bar", "url_dashPart", "url_path_parse"]

_BROWSERS = {"Google Chrome", "Chromium"}
_BAR = "Address and search bar"
_HALF_OFF, _NOT_HALF_OFF = "50_PERCENT_ off & more", ("30_PERCENT_ off & more", "20_PERCENT_ off & more")


def address_bar(tree: str) -> str | None:
    """Return the text of the browser's first address bar, None if its last one is empty; runs in a helper.

    OSWorld looks at the last bar to see whether an address is shown and then takes the first, whichever has the keyboard.

    Raises:
        ElementTree.ParseError: the tree is no XML.
    """
    root = ET.fromstring(tree)
    browsers = [one for one in root.iter("application") if one.get("name") in _BROWSERS]
    bars = [bar for one in browsers for bar in one.iter("entry") if bar.get("name") == _BAR]
    return str(bars[0].text) if bars and bars[-1].text else None


async def active_url_from_accessTree(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return the prefix that the task gives, followed by what the address bar shows; None if no browser shows an address.

    The text is taken as it is, as in OSWorld: a shown scheme or `www.` comes after the prefix.
    """
    tree = await accessibility_tree(place, {})
    shown = None if tree is None else await place.parse(f"{__name__}:address_bar", tree)
    return None if shown is None else f"{config.get('goto_prefix', 'https://')}{shown}"


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
    kind = config["returnType"]
    return {config["key"]: part} if kind == "json" else part if kind == "string" else None


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
