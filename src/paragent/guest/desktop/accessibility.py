"""The accessibility tree: windows, menus, buttons and texts of applications, read through AT-SPI.

Each application returns most of it in one answer, its cache: names, roles, states and parents. What the cache does not contain,
such as the cells of tables and positions, is requested with pipelined calls.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.guest.desktop.dbus import Bus, BusFailed, MethodCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["AccessibilityClient", "AccessibilityTree", "NoAccessibility", "Node"]


_ATSPI = "org.a11y.atspi."
_PROPERTIES = "org.freedesktop.DBus.Properties"
_REGISTRY = (f"{_ATSPI}Registry", "/org/a11y/atspi/accessible/root")
_CACHE = "/org/a11y/atspi/cache"
_NULL_PATH = "/org/a11y/atspi/null"
_BUS_SECONDS = 25.0
"""For the bus and its registry to start at the first call, under emulation."""
_RARE_EVENT = "window:shade"
"""An event that hardly ever occurs. Applications keep caches only while a client is registered for some event."""
_CACHE_PAUSES = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each attempt to read a cache, which is empty while a new application fills it."""
_ON_SCREEN = 0
_CONSTANT = {"actions", "attributes"}
_EXTENDED = "extended"
STATES = [
    "invalid", "active", "armed", "busy", "checked", "collapsed", "defunct", "editable", "enabled", "expandable", "expanded",
    "focusable", "focused", "has_tooltip", "horizontal", "iconified", "modal", "multi_line", "multiselectable", "opaque",
    "pressed", "resizable", "selectable", "selected", "sensitive", "showing", "single_line", "stale", "transient",
    "vertical", "visible", "manages_descendants", "indeterminate", "required", "truncated", "animated", "invalid_entry",
    "supports_autocompletion", "selectable_text", "is_default", "visited", "checkable", "has_popup", "read_only",
]  # fmt: skip
"""The states of AT-SPI in the order of their numbers."""
ROLES = [
    "invalid", "accelerator label", "alert", "animation", "arrow", "calendar", "canvas", "check box", "check menu item",
    "color chooser", "column header", "combo box", "date editor", "desktop icon", "desktop frame", "dial", "dialog",
    "directory pane", "drawing area", "file chooser", "filler", "focus traversable", "font chooser", "frame", "glass pane",
    "html container", "icon", "image", "internal frame", "label", "layered pane", "list", "list item", "menu", "menu bar",
    "menu item", "option pane", "page tab", "page tab list", "panel", "password text", "popup menu", "progress bar",
    "push button", "radio button", "radio menu item", "root pane", "row header", "scroll bar", "scroll pane", "separator",
    "slider", "spin button", "split pane", "status bar", "table", "table cell", "table column header", "table row header",
    "tearoff menu item", "terminal", "text", "toggle button", "tool bar", "tool tip", "tree", "tree table", "unknown",
    "viewport", "window", _EXTENDED, "header", "footer", "paragraph", "ruler", "application", "autocomplete", "editbar",
    "embedded", "entry", "chart", "caption", "document frame", "heading", "page", "section", "redundant object", "form",
    "link", "input method window", "table row", "tree item", "document spreadsheet", "document presentation",
    "document text", "document web", "document email", "comment", "list box", "grouping", "image map", "notification",
    "info bar", "level bar", "title bar", "block quote", "audio", "video", "definition", "article", "landmark", "log",
    "marquee", "math", "rating", "timer", "static", "math fraction", "math root", "subscript", "superscript",
    "description list", "description term", "description value", "footnote", "content deletion", "content insertion",
    "mark", "suggestion", "push button menu",
]  # fmt: skip
"""The roles of AT-SPI in the order of their numbers."""


class NoAccessibility(Exception):
    """There is no accessibility bus."""


class Reference(NamedTuple):
    """The address of an object: the name of its program on the bus, and its path."""

    program: str
    path: str


class Node:
    """One element of the tree."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.name, self.role = "", "unknown"
        self.states: list[str] = []
        self.interfaces: set[str] = set()
        self.count = 0
        """Number of children, as reported by the application."""
        self.children: list[Node] = []
        self.attributes: dict[str, str] = {}
        self.extents: tuple[int, int, int, int] | None = None
        self.text = ""
        self.values: dict[str, Any] = {}
        self.actions: list[tuple[str, str, str]] = []

    @property
    def showing(self) -> bool:
        """Whether it is on the screen."""
        return "showing" in self.states and "visible" in self.states

    def can(self, interface: str) -> bool:
        """Return whether it has an interface, such as `Text`."""
        return f"{_ATSPI}{interface}" in self.interfaces

    def call(self, interface: str, member: str, signature: str = "", *arguments: Any) -> MethodCall:
        """Return a call of one of its methods."""
        name = interface if "." in interface else f"{_ATSPI}{interface}"
        return MethodCall(*self.reference, name, member, signature, arguments)


class AccessibilityClient:
    """Reads the trees of applications within limits. It may be used by one thread at a time.

    It stays connected, because applications drop their caches when no client is connected.

    Args:
        width: maximum number of children of a node.
        depth: maximum depth of the tree.
        nodes: maximum number of nodes that are requested beyond the caches.
    """

    def __init__(self, width: int, depth: int, nodes: int) -> None:
        self._width, self._depth, self._nodes = width, depth, nodes
        self._left, self._deadline = 0, 0.0
        self._bus: Bus | None = None
        self._known: set[str] = set()
        self._constant: dict[Reference, dict[str, Any]] = {}
        """Attributes and actions of objects, which do not change."""

    def desktop(self, seconds: float, among: str = "") -> Node:
        """Return the root of the tree with all applications: names, roles and states.

        With `among`, only applications whose names are contained in that text, such as the class of a window.

        Raises:
            NoAccessibility: there is no accessibility bus.
        """
        self._deadline, self._left = time.monotonic() + seconds, self._nodes
        root = Node(Reference(*_REGISTRY))
        root.name, root.role = "main", "desktop frame"
        (listed,) = self._call([root.call("Accessible", "GetChildren")])
        programs = [Node(Reference(*each)) for each in (listed[0] if listed else ())]
        self._describe(programs)
        if among:
            programs = [node for node in programs if node.name and node.name.lower() in among.lower()]
        unordered: list[Node] = []
        for node, cache in zip(programs, self._caches(programs), strict=True):
            unordered += _build_tree(node, cache)
        self._order(unordered)
        root.children = programs
        self._complete(programs)
        return root

    def _connect(self) -> Bus:
        get_address = MethodCall("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress")
        register = MethodCall(
            _REGISTRY[0], "/org/a11y/atspi/registry", _REGISTRY[0], "RegisterEvent", "s", (_RARE_EVENT,)
        )
        try:
            session = Bus(os.environ.get("DBUS_SESSION_BUS_ADDRESS", ""), _BUS_SECONDS)
            (found,) = session.call_all([get_address], _BUS_SECONDS)
            session.close()
            if found is None:
                raise NoAccessibility("there is no accessibility bus")
            bus = Bus(found[0], _BUS_SECONDS)
            bus.call_all([register], _BUS_SECONDS)
        except BusFailed as error:
            raise NoAccessibility(str(error)) from None
        return bus

    def _call(self, calls: Sequence[MethodCall]) -> list[tuple[Any, ...] | None]:
        if self._bus is None:
            self._bus, self._known = self._connect(), set()
        try:
            return self._bus.call_all(calls, max(self._deadline - time.monotonic(), 0.0))
        except BusFailed as error:
            self._bus = None
            raise NoAccessibility(str(error)) from None

    def _caches(self, programs: Sequence[Node]) -> list[Sequence[Any]]:
        """Return the contents of each program's cache; an empty cache of a new program is read again."""
        found: list[Sequence[Any]] = [()] * len(programs)
        empty = list(range(len(programs)))
        for pause in _CACHE_PAUSES:
            time.sleep(pause)
            calls = [MethodCall(programs[i].reference.program, _CACHE, f"{_ATSPI}Cache", "GetItems") for i in empty]
            for index, answer in zip(empty, self._call(calls), strict=True):
                found[index] = answer[0] if answer else ()
            empty = [i for i in empty if not found[i] and programs[i].reference.program not in self._known]
            if not empty:
                break
        self._known |= {program.reference.program for program in programs}
        return found

    def _describe(self, nodes: Sequence[Node]) -> None:
        """Request name, role, states and interfaces of objects that are not in a cache."""
        methods = ("GetRole", "GetState", "GetInterfaces")
        count = len(methods) + 2
        calls = []
        for node in nodes:
            calls += [node.call("Accessible", method) for method in methods]
            calls += [
                node.call(_PROPERTIES, "Get", "ss", f"{_ATSPI}Accessible", name) for name in ("Name", "ChildCount")
            ]
        answers = self._call(calls)
        for index, node in enumerate(nodes):
            role, states, interfaces, name, children = answers[index * count : (index + 1) * count]
            node.role, node.states = _role(role[0] if role else 67), _states(states[0] if states else ())
            node.interfaces = set(interfaces[0] if interfaces else ())
            node.name, node.count = str(name[0]) if name else "", int(children[0]) if children else 0

    def _order(self, nodes: Sequence[Node]) -> None:
        """Sort the children of nodes in the order that the applications report; the caches of most toolkits do not have it."""
        for node, answer in zip(
            nodes, self._call([node.call("Accessible", "GetChildren") for node in nodes]), strict=True
        ):
            places = {Reference(*each): place for place, each in enumerate(answer[0] if answer else ())}
            node.children.sort(key=lambda child: places.get(child.reference, len(places)))

    def _complete(self, level: Sequence[Node]) -> None:
        """Request children that are not in the caches, level by level."""
        for _ in range(self._depth):
            unknown = [node for node in level if node.count and not node.children and self._left > 0]
            answers = self._call([node.call("Accessible", "GetChildren") for node in unknown])
            fresh = []
            for node, answer in zip(unknown, answers, strict=True):
                found = (answer[0] if answer else [])[: min(self._width, max(self._left, 0))]
                node.children = [Node(Reference(*each)) for each in found if each[1] != _NULL_PATH]
                self._left -= len(node.children)
                fresh += node.children
            self._describe(fresh)
            level = [child for node in level for child in node.children]
            if not level or time.monotonic() > self._deadline:
                return

    def read_details(self, nodes: Iterable[Node]) -> None:
        """Request extents, texts and values, and the constant properties of new objects."""
        seen = list(nodes)
        self._constant = {node.reference: self._constant.get(node.reference, {}) for node in seen}
        asked = [(node, what, call) for node in seen for what, call in self._detail_calls(node)]
        for (node, what, _), answer in zip(asked, self._call([call for *_, call in asked]), strict=True):
            if answer is not None:
                value = dict(answer[0]) if what in {"values", "attributes"} else answer[0]
                if what in _CONSTANT:
                    self._constant[node.reference][what] = value
                else:
                    setattr(node, what, value)
        self._name_actions([node for node, what, _ in asked if what == "actions"])
        for node in seen:
            for what, value in self._constant[node.reference].items():
                setattr(node, what, value)

    def _name_actions(self, nodes: Sequence[Node]) -> None:
        """Request the original names of actions; the other properties of actions come with translated names."""
        with_actions = [(self._constant[node.reference].get("actions", ()), node) for node in nodes]
        calls = [
            node.call("Action", "GetName", "i", index)
            for actions, node in with_actions
            for index in range(len(actions))
        ]
        names = iter(self._call(calls))
        for actions, node in with_actions:
            named = [(str(name[0]) if (name := next(names)) else shown, *more) for shown, *more in actions]
            self._constant[node.reference]["actions"] = named

    def _detail_calls(self, node: Node) -> Iterable[tuple[str, MethodCall]]:
        constant = self._constant[node.reference]
        if node.can("Text"):
            yield "text", node.call("Text", "GetText", "ii", 0, -1)
        if node.can("Component") and node.showing:
            yield "extents", node.call("Component", "GetExtents", "u", _ON_SCREEN)
        if node.can("Value"):
            yield "values", node.call(_PROPERTIES, "GetAll", "s", f"{_ATSPI}Value")
        if node.can("Action") and "actions" not in constant:
            yield "actions", node.call("Action", "GetActions")
        if "attributes" not in constant:
            yield "attributes", node.call("Accessible", "GetAttributes")


def _role(number: int) -> str:
    return ROLES[number] if number < len(ROLES) else _EXTENDED


def _states(words: Sequence[int]) -> list[str]:
    bits = sum(word << 32 * index for index, word in enumerate(words))
    return [name for number, name in enumerate(STATES) if number and bits >> number & 1]


def _build_tree(program: Node, items: Sequence[Any]) -> list[Node]:
    """Build the tree of a program from its cache; return the nodes whose children have no order in the cache."""
    nodes = {program.reference: program}
    inside: dict[Reference, list[tuple[int, Node]]] = {}
    for position, item in enumerate(items):
        reference = Reference(*item[0])
        node = nodes.setdefault(reference, Node(reference))
        *_, interfaces, node.name, role, _, states = item
        node.interfaces, node.role, node.states = set(interfaces), _role(role), _states(states)
        index = position
        if isinstance(item[3], int):
            index, node.count = item[3], item[4]
        else:
            node.count = len(item[3])
        if node is not program:
            inside.setdefault(Reference(*item[2]), []).append((index, node))
    unordered = []
    for reference, children in inside.items():
        if reference in nodes:
            nodes[reference].children = [node for _, node in sorted(children, key=lambda pair: pair[0])]
            if sorted(index for index, _ in children) != list(range(len(children))):
                unordered.append(nodes[reference])
    return unordered


_DEPTH, _WIDTH, _NODES = 50, 1024, 5000
"""The limits of OSWorld's own guest."""
_TEXT = 100_000
"""Maximum number of characters of one text; the history of a terminal may have millions."""
_SECONDS = 20.0
"""Time limit of a tree. What was not read in time is missing, so that an application that hangs does not hide the others."""
_NAMESPACE = "https://accessibility.ubuntu.example.org/ns/"
_NAMESPACES = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
}
_NAMESPACE_DECLARATIONS = "".join(f' xmlns:{prefix}="{_NAMESPACE}{name}"' for prefix, name in _NAMESPACES.items())
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\ufffc\ufffd]")
"""Characters that XML does not allow, and placeholders of objects inside texts."""
_INVALID_IN_NAMES = re.compile(r"[^\w.-]+")
_TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;"})


_VALUES = {"CurrentValue": "value", "MinimumValue": "min", "MaximumValue": "max", "MinimumIncrement": "step"}


class AccessibilityTree:
    """The accessibility tree of the desktop; it is read by one thread at a time.

    Raises:
        NoAccessibility: (both methods) there is no accessibility bus.
    """

    def __init__(self) -> None:
        self._client = AccessibilityClient(_WIDTH, _DEPTH, _NODES)
        self._lock = threading.Lock()  # protects the client

    def xml(self, seconds: float = _SECONDS) -> str:
        """Return the tree as XML."""
        with self._lock:
            root = self._client.desktop(seconds)
            self._client.read_details(_walk(root, 0, [_NODES]))
        return "".join(_element(root, 0, [_NODES]))

    def terminal(self, window_class: str, seconds: float = _SECONDS) -> str | None:
        """Return the text of the focused terminal in a window of this class; None if there is none."""
        with self._lock:
            for application in self._client.desktop(seconds, window_class).children:
                for window in application.children:
                    if "active" not in window.states:
                        continue
                    for node in _walk(window, 2, [_NODES]):
                        if node.role == "terminal" and "focused" in node.states:
                            self._client.read_details([node])
                            return node.text[-_TEXT:].rstrip()
        return None


def _walk(node: Node, depth: int, left: list[int]) -> Iterator[Node]:
    """Yield a node and its descendants within the limits; `left` counts down."""
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
    yield f"<{tag}{_NAMESPACE_DECLARATIONS if depth == 0 else ''}{states}{attributes}>"
    if node.text:
        yield _FORBIDDEN.sub("", node.text[:_TEXT]).translate(_TEXT_ESCAPES)
    for child in node.children[:_WIDTH] if depth < _DEPTH else ():
        if left[0] <= 0:
            break
        yield from _element(child, depth + 1, left)
    yield f"</{tag}>"


def _attributes(node: Node) -> dict[str, str]:
    found = {"name": node.name}
    found |= {f"attr:{key}": value for name, value in node.attributes.items() if (key := _name(name))}
    if node.extents is not None:
        x, y, width, height = node.extents
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
    """Return a text as a valid XML name."""
    name = _INVALID_IN_NAMES.sub("-", text.strip())
    return f"_{name}" if name and not (name[0].isalpha() or name[0] == "_") else name


def _clean(text: str) -> str:
    if text.isalnum():
        return text
    return _FORBIDDEN.sub("", text).translate(_ESCAPES)
