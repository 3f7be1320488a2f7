"""What applications tell about their windows, menus, buttons and texts, by AT-SPI.

Most of it comes in one answer of each application, its cache: names, roles, states, and who is inside whom. What the cache
leaves out, as the cells of tables, and where things are, is asked for in bursts.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.guest.desktop.dbus import Bus, BusFailed, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["NoAccessibility", "Node", "Observer", "Watcher"]


_ATSPI = "org.a11y.atspi."
_PROPERTIES = "org.freedesktop.DBus.Properties"
_REGISTRY = (f"{_ATSPI}Registry", "/org/a11y/atspi/accessible/root")
_CACHE = "/org/a11y/atspi/cache"
_NOBODY = "/org/a11y/atspi/null"
_BUS_SECONDS = 25.0
"""For the bus and its registry to start when they are asked for the first time, under emulation."""
_RARE = "window:shade"
"""An event that hardly happens. Applications have caches only while somebody is registered for some event."""
_FILLING = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each question to a cache that may be empty because its program has only just been asked to fill it."""
_ON_SCREEN = 0
_LASTING = {"actions", "attributes"}
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
    """Where an object is: its program's name on the bus, and its path there."""

    program: str
    path: str


class Node:
    """One thing on the screen, or one that could be there."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.name, self.role = "", "unknown"
        self.states: list[str] = []
        self.interfaces: set[str] = set()
        self.count = 0
        """How many are inside it, as far as it tells."""
        self.children: list[Node] = []
        self.attributes: dict[str, str] = {}
        self.place: tuple[int, int, int, int] | None = None
        self.text = ""
        self.values: dict[str, Any] = {}
        self.actions: list[tuple[str, str, str]] = []

    @property
    def showing(self) -> bool:
        """Whether it is on the screen."""
        return "showing" in self.states and "visible" in self.states

    def can(self, interface: str) -> bool:
        """Return whether it has an interface, as `Text`."""
        return f"{_ATSPI}{interface}" in self.interfaces

    def call(self, interface: str, member: str, signature: str = "", *arguments: Any) -> Call:
        """Return a question to it."""
        name = interface if "." in interface else f"{_ATSPI}{interface}"
        return Call(*self.reference, name, member, signature, arguments)


class Watcher:
    """Asks applications, within limits for one look at all of them. One thread at a time may use it.

    It stays connected: an application fills its cache when somebody is there who may ask, and drops it when nobody is.
    """

    def __init__(self, width: int, depth: int, nodes: int) -> None:
        self._width, self._depth, self._nodes = width, depth, nodes
        self._left, self._deadline = 0, 0.0
        self._bus: Bus | None = None
        self._known: set[str] = set()
        self._lasting: dict[Reference, dict[str, Any]] = {}
        """What objects told once and do not change: their attributes, and what can be done with them."""

    def desktop(self, seconds: float, among: str = "") -> Node:
        """Return the root with all applications and what they have: names, roles, states.

        With `among`, only applications whose names are part of that text, as the class of a window.

        Raises:
            NoAccessibility: there is no accessibility bus.
        """
        self._deadline, self._left = time.monotonic() + seconds, self._nodes
        root = Node(Reference(*_REGISTRY))
        root.name, root.role = "main", "desktop frame"
        (listed,) = self._ask([root.call("Accessible", "GetChildren")])
        programs = [Node(Reference(*each)) for each in (listed[0] if listed else ())]
        self._describe(programs)
        if among:
            programs = [node for node in programs if node.name and node.name.lower() in among.lower()]
        unordered: list[Node] = []
        for node, cache in zip(programs, self._caches(programs), strict=True):
            unordered += _arrange(node, cache)
        self._order(unordered)
        root.children = programs
        self._complete(programs)
        return root

    def _connect(self) -> Bus:
        where = Call("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress")
        listen = Call(_REGISTRY[0], "/org/a11y/atspi/registry", _REGISTRY[0], "RegisterEvent", "s", (_RARE,))
        try:
            session = Bus(os.environ.get("DBUS_SESSION_BUS_ADDRESS", ""), _BUS_SECONDS)
            (found,) = session.ask([where], _BUS_SECONDS)
            session.close()
            if found is None:
                raise NoAccessibility("nobody offers an accessibility bus")
            bus = Bus(found[0], _BUS_SECONDS)
            bus.ask([listen], _BUS_SECONDS)
        except BusFailed as error:
            raise NoAccessibility(str(error)) from None
        return bus

    def _ask(self, calls: Sequence[Call]) -> list[tuple[Any, ...] | None]:
        if self._bus is None:
            self._bus, self._known = self._connect(), set()
        try:
            return self._bus.ask(calls, max(self._deadline - time.monotonic(), 0.0))
        except BusFailed as error:
            self._bus = None
            raise NoAccessibility(str(error)) from None

    def _caches(self, programs: Sequence[Node]) -> list[Sequence[Any]]:
        """Return what each program's cache has. One that has just begun to fill it is asked again."""
        found: list[Sequence[Any]] = [()] * len(programs)
        open_ones = list(range(len(programs)))
        for pause in _FILLING:
            time.sleep(pause)
            calls = [Call(programs[i].reference.program, _CACHE, f"{_ATSPI}Cache", "GetItems") for i in open_ones]
            for index, answer in zip(open_ones, self._ask(calls), strict=True):
                found[index] = answer[0] if answer else ()
            open_ones = [i for i in open_ones if not found[i] and programs[i].reference.program not in self._known]
            if not open_ones:
                break
        self._known |= {program.reference.program for program in programs}
        return found

    def _describe(self, nodes: Sequence[Node]) -> None:
        """Ask objects that no cache told of for what caches tell."""
        questions = ("GetRole", "GetState", "GetInterfaces")
        count = len(questions) + 2
        calls = []
        for node in nodes:
            calls += [node.call("Accessible", question) for question in questions]
            calls += [
                node.call(_PROPERTIES, "Get", "ss", f"{_ATSPI}Accessible", name) for name in ("Name", "ChildCount")
            ]
        answers = self._ask(calls)
        for index, node in enumerate(nodes):
            role, states, interfaces, name, children = answers[index * count : (index + 1) * count]
            node.role, node.states = _role(role[0] if role else 67), _states(states[0] if states else ())
            node.interfaces = set(interfaces[0] if interfaces else ())
            node.name, node.count = str(name[0]) if name else "", int(children[0]) if children else 0

    def _order(self, nodes: Sequence[Node]) -> None:
        """Put what is inside of nodes into the order that they tell; caches know it of few toolkits."""
        for node, answer in zip(
            nodes, self._ask([node.call("Accessible", "GetChildren") for node in nodes]), strict=True
        ):
            places = {Reference(*each): place for place, each in enumerate(answer[0] if answer else ())}
            node.children.sort(key=lambda child: places.get(child.reference, len(places)))

    def _complete(self, level: Sequence[Node]) -> None:
        """Go down the tree and ask for what the caches left out, a level at a time."""
        for _ in range(self._depth):
            unknown = [node for node in level if node.count and not node.children and self._left > 0]
            answers = self._ask([node.call("Accessible", "GetChildren") for node in unknown])
            fresh = []
            for node, answer in zip(unknown, answers, strict=True):
                found = (answer[0] if answer else [])[: min(self._width, max(self._left, 0))]
                node.children = [Node(Reference(*each)) for each in found if each[1] != _NOBODY]
                self._left -= len(node.children)
                fresh += node.children
            self._describe(fresh)
            level = [child for node in level for child in node.children]
            if not level or time.monotonic() > self._deadline:
                return

    def look(self, nodes: Iterable[Node]) -> None:
        """Ask for what changes, as places, texts and numbers, and of objects that are new for what does not."""
        seen = list(nodes)
        self._lasting = {node.reference: self._lasting.get(node.reference, {}) for node in seen}
        asked = [(node, what, call) for node in seen for what, call in self._questions(node)]
        for (node, what, _), answer in zip(asked, self._ask([call for *_, call in asked]), strict=True):
            if answer is not None:
                value = dict(answer[0]) if what in {"values", "attributes"} else answer[0]
                if what in _LASTING:
                    self._lasting[node.reference][what] = value
                else:
                    setattr(node, what, value)
        self._name_actions([node for node, what, _ in asked if what == "actions"])
        for node in seen:
            for what, value in self._lasting[node.reference].items():
                setattr(node, what, value)

    def _name_actions(self, nodes: Sequence[Node]) -> None:
        """Ask for the names of actions as programs spell them; with all else about them come translated ones."""
        told = [(self._lasting[node.reference].get("actions", ()), node) for node in nodes]
        calls = [node.call("Action", "GetName", "i", index) for actions, node in told for index in range(len(actions))]
        names = iter(self._ask(calls))
        for actions, node in told:
            named = [(str(name[0]) if (name := next(names)) else shown, *more) for shown, *more in actions]
            self._lasting[node.reference]["actions"] = named

    def _questions(self, node: Node) -> Iterable[tuple[str, Call]]:
        lasting = self._lasting[node.reference]
        if node.can("Text"):
            yield "text", node.call("Text", "GetText", "ii", 0, -1)
        if node.can("Component") and node.showing:
            yield "place", node.call("Component", "GetExtents", "u", _ON_SCREEN)
        if node.can("Value"):
            yield "values", node.call(_PROPERTIES, "GetAll", "s", f"{_ATSPI}Value")
        if node.can("Action") and "actions" not in lasting:
            yield "actions", node.call("Action", "GetActions")
        if "attributes" not in lasting:
            yield "attributes", node.call("Accessible", "GetAttributes")


def _role(number: int) -> str:
    return ROLES[number] if number < len(ROLES) else _EXTENDED


def _states(words: Sequence[int]) -> list[str]:
    bits = sum(word << 32 * index for index, word in enumerate(words))
    return [name for number, name in enumerate(STATES) if number and bits >> number & 1]


def _arrange(program: Node, items: Sequence[Any]) -> list[Node]:
    """Make a tree of what a program's cache has; return the nodes of which it does not tell how children are ordered."""
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
