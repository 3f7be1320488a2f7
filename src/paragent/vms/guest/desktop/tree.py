"""The accessibility tree as XML, in the form of OSWorld's guest on Ubuntu.

An element's tag is the role with hyphens, its text what it shows. Attributes: `name`; `st:<state>="true"`; `attr:<name>`;
`cp:screencoord="(x, y)"` and `cp:size="(w, h)"` of what is on the screen; `val:value`, `min`, `max`, `step`;
`act:<action>_desc` and `_kb`; `image` and `selection`.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import TYPE_CHECKING

from paragent.vms.guest.desktop.accessible import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.vms.guest.desktop.accessible import Node

__all__ = ["Observer"]

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
_IN_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;"})


_VALUES = {"CurrentValue": "value", "MinimumValue": "min", "MaximumValue": "max", "MinimumIncrement": "step"}


class Observer:
    """Looks at the desktop for whoever asks; one look at a time.

    Raises:
        NoAccessibility: (both methods) there is no accessibility bus.
    """

    def __init__(self) -> None:
        self._watcher = Watcher(_WIDTH, _DEPTH, _NODES)
        self._lock = threading.Lock()  # protects the watcher

    def tree(self, seconds: float = _SECONDS) -> str:
        """Return what is on the screen and what could be, as XML."""
        with self._lock:
            root = self._watcher.desktop(seconds)
            self._watcher.look(_walk(root, 0, [_NODES]))
        return "".join(_element(root, 0, [_NODES]))

    def terminal(self, kind: str, seconds: float = _SECONDS) -> str | None:
        """Return what the terminal shows that has the keyboard, in a window of that class; None if none has it."""
        with self._lock:
            for application in self._watcher.desktop(seconds, kind).children:
                for window in application.children:
                    if "active" not in window.states:
                        continue
                    for node in _walk(window, 2, [_NODES]):
                        if node.role == "terminal" and "focused" in node.states:
                            self._watcher.look([node])
                            return node.text[-_TEXT:].rstrip()
        return None


def _walk(node: Node, depth: int, left: list[int]) -> Iterator[Node]:
    """Give a node and those below it, within the limits; `left` counts down."""
    left[0] -= 1
    yield node
    for child in node.children[:_WIDTH] if depth < _DEPTH else ():
        if left[0] <= 0:
            return
        yield from _walk(child, depth + 1, left)


def _element(node: Node, depth: int, left: list[int]) -> Iterator[str]:
    left[0] -= 1
    tag = _name(node.role) or "unknown"
    attributes = "".join(f' {name}="{_clean(value)}"' for name, value in _attributes(node).items())
    states = "".join(f' st:{state}="true"' for state in node.states)
    yield f"<{tag}{_DECLARED if depth == 0 else ''}{states}{attributes}>"
    if node.text:
        yield _FORBIDDEN.sub("", node.text[:_TEXT]).translate(_IN_TEXT)
    for child in node.children[:_WIDTH] if depth < _DEPTH else ():
        if left[0] <= 0:
            break
        yield from _element(child, depth + 1, left)
    yield f"</{tag}>"


def _attributes(node: Node) -> dict[str, str]:
    found = {"name": node.name}
    found |= {f"attr:{key}": value for name, value in node.attributes.items() if (key := _name(name))}
    if node.place is not None:
        x, y, width, height = node.place
        found["cp:screencoord"], found["cp:size"] = f"({x}, {y})", f"({width}, {height})"
    for interface in ("Image", "Selection"):
        if node.can(interface):
            found[interface.lower()] = "true"
    found |= {f"val:{key}": str(node.values[name]) for name, key in _VALUES.items() if name in node.values}
    for name, description, keys in node.actions:
        if key := _name(name):
            found[f"act:{key}_desc"], found[f"act:{key}_kb"] = description, keys
    return found


@functools.lru_cache(maxsize=1024)
def _name(text: str) -> str:
    """Return a text as a name that XML allows."""
    name = _NOT_IN_NAMES.sub("-", text.strip())
    return f"_{name}" if name and not (name[0].isalpha() or name[0] == "_") else name


def _clean(text: str) -> str:
    if text.isalnum():
        return text
    return _FORBIDDEN.sub("", text).translate(_ESCAPES)
