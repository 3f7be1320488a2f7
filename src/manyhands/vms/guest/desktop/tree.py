"""The accessibility tree as XML, in the form of OSWorld's guest on Ubuntu.

An element's tag is the role with hyphens, its text what it shows. Attributes: `name`; `st:<state>="true"`; `attr:<name>`;
`cp:screencoord="(x, y)"` and `cp:size="(w, h)"` of what is on the screen; `val:value`, `min`, `max`, `step`;
`act:<action>_desc` and `_kb`; `image` and `selection`.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.vms.guest.desktop.atspi import Accessible

__all__ = ["main", "terminal_text", "to_xml"]

_DEPTH, _WIDTH, _NODES = 50, 1024, 5000
"""Limits of OSWorld's own guest."""
_TEXT = 100_000
"""Characters of one text; a terminal's history may have millions."""
_SECONDS = 20.0
"""After this the tree ends where it is: an application that hangs must not keep the others from being seen."""
_SPACE = "https://accessibility.ubuntu.example.org/ns/"
_SPACES = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
}
_DECLARED = "".join(f' xmlns:{prefix}="{_SPACE}{name}"' for prefix, name in _SPACES.items())
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\ufffc\ufffd]")
"""What XML cannot carry, and the stand-ins for objects inside texts."""
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;"})


class _Budget:
    """What is left of the limits."""

    def __init__(self, seconds: float) -> None:
        self.nodes, self.deadline = _NODES, time.monotonic() + seconds

    def spend(self) -> bool:
        """Take one node; return whether there was one."""
        self.nodes -= 1
        return self.nodes >= 0 and time.monotonic() < self.deadline


def to_xml(root: Accessible, seconds: float = _SECONDS) -> str:
    """Return the tree below `root`."""
    return "".join(_element(root, 0, _Budget(seconds), ""))


def _element(node: Accessible, depth: int, budget: _Budget, toolkit: str) -> Iterator[str]:
    tag = _name(node.role) or "unknown"
    if tag == "application":
        toolkit = node.toolkit
    attributes = "".join(f' {name}="{_clean(value)}"' for name, value in _attributes(node, toolkit).items())
    yield f"<{tag}{_DECLARED if depth == 0 else ''}{attributes}>"
    yield _FORBIDDEN.sub("", node.text(_TEXT)).translate(_ESCAPES).replace("&#10;", "\n").replace("&#9;", "\t")
    if depth < _DEPTH:
        for child in node.children(_WIDTH):
            if not budget.spend():
                break
            yield from _element(child, depth + 1, budget, toolkit)
    yield f"</{tag}>"


def _attributes(node: Accessible, toolkit: str) -> dict[str, str]:
    """Applications are asked only about what is on the screen; the rest they told at once, when the tree was begun."""
    states = node.states
    found = {"name": node.name, **{f"st:{state}": "true" for state in states}}
    # Every part of a GTK program has this attribute and no other: no need to ask a thousand times.
    told = {"toolkit": toolkit} if toolkit == "gtk" else node.attributes
    found |= {f"attr:{key}": value for name, value in told.items() if (key := _name(name))}
    for interface in ("image", "selection"):
        if node.can(interface):
            found[interface] = "true"
    if "visible" not in states or "showing" not in states:
        return found
    if (place := node.place) is not None:
        found["cp:screencoord"], found["cp:size"] = f"({place[0]}, {place[1]})", f"({place[2]}, {place[3]})"
    found |= {f"val:{name}": str(number) for name, number in node.value.items()}
    for name, description, keys in node.actions:
        if key := _name(name):
            found[f"act:{key}_desc"], found[f"act:{key}_kb"] = description, keys
    return found


def _name(text: str) -> str:
    """Return a text as a name that XML allows."""
    name = _NOT_IN_NAMES.sub("-", text.strip())
    return f"_{name}" if name and not (name[0].isalpha() or name[0] == "_") else name


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("", text).translate(_ESCAPES)


def terminal_text(root: Accessible) -> str | None:
    """Return what the terminal shows that has the keyboard, or None if none has it."""
    for application in root.children(_WIDTH):
        for window in application.children(_WIDTH):
            if "active" in window.states and (found := _terminal_in(window, 0)) is not None:
                return found.text(_TEXT).rstrip()
    return None


def _terminal_in(node: Accessible, depth: int) -> Accessible | None:
    if node.role == "terminal":
        return node if "focused" in node.states else None
    for child in node.children(_WIDTH) if depth < _DEPTH else ():
        if (found := _terminal_in(child, depth + 1)) is not None:
            return found
    return None


def main(what: str) -> None:
    """Write the tree (`tree`) or the terminal's text (`terminal`) to standard output."""
    from manyhands.vms.guest.desktop.atspi import desktop

    root = desktop()
    sys.stdout.write(to_xml(root) if what == "tree" else terminal_text(root) or "")
