"""The accessibility tree as a short table: what can be seen, what it is called, and where its middle is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Widget", "as_table", "widgets"]

_SHOWN_TEXT = 300
"""Characters of one name or text; a document's whole text would crowd out everything else."""
_SHOWN_ROWS = 400
"""Rows of a table: some 10,000 tokens."""
_FRAMES = {"filler", "panel", "redundant-object", "root-pane", "scroll-pane", "split-pane", "viewport"}
"""Roles that only hold others, unless they say something themselves."""
_VALUED = {"level-bar", "progress-bar", "slider", "spin-button"}
"""Roles whose value is what they show."""
_COORDINATES = re.compile(r"-?\d+")
_ENABLING = ("enabled", "sensitive")


@dataclass(frozen=True, slots=True)
class Widget:
    """Something on the screen."""

    role: str
    name: str
    text: str
    x: int
    """Of its left edge."""
    y: int
    """Of its upper edge."""
    width: int
    height: int
    states: frozenset[str]

    @property
    def middle(self) -> tuple[int, int]:
        """Where to click."""
        return self.x + self.width // 2, self.y + self.height // 2


def widgets(xml: str, screen: tuple[int, int]) -> list[Widget]:
    """Return what a person would see of a tree, in the tree's order.

    Raises:
        ValueError: this is no XML.
    """
    try:
        root = ET.fromstring(xml)  # noqa: S314 - expat refuses entity bombs, and the guest is the agent's own machine
    except ET.ParseError as error:
        raise ValueError(f"the guest's accessibility tree is no XML: {error}") from error
    return [widget for node in root.iter() if (widget := _widget(node)) is not None and _visible(widget, screen)]


def as_table(seen: Sequence[Widget], *, numbered: bool = False) -> str:
    """Return one line for each: role, name, text, middle and size, separated by tabs; numbered like marks if asked for."""
    head = "role\tname\ttext\tmiddle\tsize"
    lines = [f"mark\t{head}" if numbered else head]
    for number, widget in enumerate(seen[:_SHOWN_ROWS], 1):
        x, y = widget.middle
        text = f"{_short(widget.text)}{_notable(widget)}"
        row = f"{widget.role}\t{_short(widget.name)}\t{text}\t{x}, {y}\t{widget.width}x{widget.height}"
        lines.append(f"{number}\t{row}" if numbered else row)
    if len(seen) > _SHOWN_ROWS:
        lines.append(f"... and {len(seen) - _SHOWN_ROWS} more")
    return "\n".join(lines)


def _widget(node: ET.Element) -> Widget | None:
    facts = dict(_facts(node))
    corner, size = _pair(facts.get("component:screencoord")), _pair(facts.get("component:size"))
    if corner is None or size is None:
        return None
    states = frozenset(
        name.removeprefix("state:") for name, value in facts.items() if value == "true" and name.startswith("state:")
    )
    role, name, text = _local(node.tag), node.get("name", "").strip(), (node.text or "").strip()
    if role in _VALUED:
        text = text or facts.get("value:value", "")
    return Widget(role, name, "" if text == name else text, *corner, *size, states)


def _facts(node: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield the attributes by the last word of their namespace, so that every system's trees are read alike."""
    for name, value in node.attrib.items():
        if name.startswith("{"):
            space, _, local = name[1:].partition("}")
            yield f"{space.rstrip('/').rsplit('/', 1)[-1]}:{local}", value


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _pair(text: str | None) -> tuple[int, int] | None:
    numbers = _COORDINATES.findall(text or "")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None


def _visible(widget: Widget, screen: tuple[int, int]) -> bool:
    x, y = widget.middle
    if widget.width <= 0 or widget.height <= 0 or not (0 <= x < screen[0] and 0 <= y < screen[1]):
        return False
    if not {"showing", "visible"} <= widget.states:
        return False
    if widget.role in {"application", "desktop-frame"}:
        return False
    return bool(widget.name or widget.text) or (widget.role not in _FRAMES and "editable" in widget.states)


def _notable(widget: Widget) -> str:
    """Return the states that decide what to do next."""
    told: list[str] = [state for state in ("checked", "selected", "focused", "expanded") if state in widget.states]
    if not widget.states.intersection(_ENABLING) and widget.role != "label":
        told.append("disabled")
    return f" ({', '.join(told)})" if told else ""


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN_TEXT else f"{flat[: _SHOWN_TEXT - 1]}…"
