"""AT-SPI by ctypes: what applications tell about their windows, menus, buttons and texts.

One thread of one process may use it. Applications are asked over D-Bus; one that does not answer is given up.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["STATES", "Accessible", "NoAccessibility", "desktop"]

_ANSWER_MS = 1000
"""For an application to answer one question."""
_START_MS = 2000
"""For an application that has just started, which libatspi treats differently."""
_ON_SCREEN = 0
_EVERYTHING = 0x3FFFFFFF
"""ATSPI_CACHE_ALL: an application is asked once for names, roles, states and children of all that it has."""
STATES = [
    "invalid",
    "active",
    "armed",
    "busy",
    "checked",
    "collapsed",
    "defunct",
    "editable",
    "enabled",
    "expandable",
    "expanded",
    "focusable",
    "focused",
    "has_tooltip",
    "horizontal",
    "iconified",
    "modal",
    "multi_line",
    "multiselectable",
    "opaque",
    "pressed",
    "resizable",
    "selectable",
    "selected",
    "sensitive",
    "showing",
    "single_line",
    "stale",
    "transient",
    "vertical",
    "visible",
    "manages_descendants",
    "indeterminate",
    "required",
    "truncated",
    "animated",
    "invalid_entry",
    "supports_autocompletion",
    "selectable_text",
    "is_default",
    "visited",
    "checkable",
    "has_popup",
    "read_only",
]
"""The states of AT-SPI in the order of their numbers."""


class NoAccessibility(Exception):
    """There is no accessibility bus, or its library is missing."""


class _Array(Structure):
    """GArray."""

    _fields_ = (("data", c_void_p), ("length", c_uint))


class _Rectangle(Structure):
    _fields_ = (("x", c_int), ("y", c_int), ("width", c_int), ("height", c_int))


class _Libraries:
    """The functions that are used, with their types."""

    def __init__(self) -> None:
        try:
            self.atspi, self.glib = ctypes.CDLL("libatspi.so.0"), ctypes.CDLL("libglib-2.0.so.0")
            self.gobject = ctypes.CDLL("libgobject-2.0.so.0")
        except OSError as error:
            raise NoAccessibility(str(error)) from None
        self.glib.g_free.argtypes = [c_void_p]
        self.gobject.g_object_unref.argtypes = [c_void_p]

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call `atspi_<name>`."""
        function = getattr(self.atspi, f"atspi_{name}")
        function.restype = result
        return function(*arguments)

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns a text, which is freed."""
        address = self.call(name, c_void_p, *arguments)
        if not address:
            return ""
        found = ctypes.string_at(address).decode(errors="replace")
        self.glib.g_free(address)
        return found


_loaded: list[_Libraries] = []


def desktop() -> Accessible:
    """Return the root: its children are the applications.

    Raises:
        NoAccessibility: there is no accessibility bus.
    """
    if not _loaded:
        libraries = _Libraries()
        if libraries.call("init", c_int) not in {0, 1}:
            raise NoAccessibility("the accessibility bus cannot be reached")
        libraries.call("set_timeout", None, _ANSWER_MS, _START_MS)
        _loaded.append(libraries)
    address = _loaded[0].call("get_desktop", c_void_p, 0)
    if not address:
        raise NoAccessibility("the accessibility bus has no desktop")
    _loaded[0].call("accessible_set_cache_mask", None, c_void_p(address), _EVERYTHING)
    return Accessible(_loaded[0], address)


class Accessible:
    """One thing on the screen, or one that could be there."""

    def __init__(self, libraries: _Libraries, address: int) -> None:
        self._lib, self._self = libraries, c_void_p(address)

    def __del__(self) -> None:
        self._lib.gobject.g_object_unref(self._self)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._lib.text("accessible_get_name", self._self, None)

    @property
    def role(self) -> str:
        """What it is: `push button`, `menu item`."""
        return self._lib.text("accessible_get_role_name", self._self, None)

    @property
    def toolkit(self) -> str:
        """What an application is written with: `gtk`."""
        return self._lib.text("accessible_get_toolkit_name", self._self, None)

    @property
    def states(self) -> list[str]:
        """What it is like now."""
        owned = self._lib.call("accessible_get_state_set", c_void_p, self._self)
        if not owned:
            return []
        array = self._lib.call("state_set_get_states", POINTER(_Array), c_void_p(owned))
        numbers = (c_int * array.contents.length).from_address(array.contents.data) if array.contents.length else ()
        found = [STATES[number] for number in numbers if 0 < number < len(STATES)]
        self._lib.glib.g_array_free(array, 1)
        self._lib.gobject.g_object_unref(owned)
        return found

    @property
    def attributes(self) -> dict[str, str]:
        """What else the application tells, as the toolkit."""
        array = self._lib.call("accessible_get_attributes_as_array", POINTER(_Array), self._self, None)
        if not array:
            return {}
        found = {}
        length = array.contents.length
        for address in (c_void_p * length).from_address(array.contents.data) if length else ():
            name, _, value = ctypes.string_at(address).decode(errors="replace").partition(":")
            found[name] = value
            self._lib.glib.g_free(address)
        self._lib.glib.g_array_free(array, 1)
        return found

    def children(self, most: int) -> Iterator[Accessible]:
        """Give what is inside it."""
        count = self._lib.call("accessible_get_child_count", c_int, self._self, None)
        for index in range(min(count, most)):
            address = self._lib.call("accessible_get_child_at_index", c_void_p, self._self, index, None)
            if address:
                yield Accessible(self._lib, address)

    def _interface(self, name: str) -> Any:
        """Return the object as one that can do something, or None if it cannot; the caller lets it go."""
        address = self._lib.call(f"accessible_get_{name}_iface", c_void_p, self._self)
        return c_void_p(address) if address else None

    def can(self, name: str) -> bool:
        """Return whether it has an interface."""
        found = self._interface(name)
        if found is not None:
            self._lib.gobject.g_object_unref(found)
        return found is not None

    @property
    def place(self) -> tuple[int, int, int, int] | None:
        """Where it is on the screen: x, y, width, height."""
        component = self._interface("component")
        if component is None:
            return None
        rectangle = self._lib.call("component_get_extents", POINTER(_Rectangle), component, _ON_SCREEN, None)
        self._lib.gobject.g_object_unref(component)
        if not rectangle:
            return None
        found = rectangle.contents
        place = (found.x, found.y, found.width, found.height)
        self._lib.glib.g_free(ctypes.cast(rectangle, c_void_p))
        return place

    def text(self, most: int) -> str:
        """Return the text that it shows."""
        text = self._interface("text")
        if text is None:
            return ""
        count = self._lib.call("text_get_character_count", c_int, text, None)
        found = self._lib.text("text_get_text", text, 0, min(max(count, 0), most), None)
        self._lib.gobject.g_object_unref(text)
        return found

    @property
    def value(self) -> dict[str, float]:
        """The number that it shows, its limits and its step."""
        value = self._interface("value")
        if value is None:
            return {}
        names = {
            "value": "current_value",
            "min": "minimum_value",
            "max": "maximum_value",
            "step": "minimum_increment",
        }
        found = {key: self._lib.call(f"value_get_{name}", c_double, value, None) for key, name in names.items()}
        self._lib.gobject.g_object_unref(value)
        return found

    @property
    def actions(self) -> list[tuple[str, str, str]]:
        """What can be done with it: name, description, keys."""
        action = self._interface("action")
        if action is None:
            return []
        count = self._lib.call("action_get_n_actions", c_int, action, None)
        found = []
        for index in range(max(count, 0)):
            asked = ("action_get_action_name", "action_get_action_description", "action_get_key_binding")
            name, description, keys = (self._lib.text(function, action, index, None) for function in asked)
            found.append((name, description, keys))
        self._lib.gobject.g_object_unref(action)
        return found
