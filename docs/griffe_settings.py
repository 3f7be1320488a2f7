"""Extension of griffe: the help text of a setting of rollouts is the docstring of its attribute."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class SettingDocstrings(griffe.Extension):
    """Takes the docstring of `name = _setting(default, help, ...)` from the call."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Set the docstring of an attribute that is a setting."""
        value = getattr(node, "value", None)
        if attr.docstring or not isinstance(value, ast.Call) or getattr(value.func, "id", "") != "_setting":
            return
        text = ast.literal_eval(value.args[1])
        attr.docstring = griffe.Docstring(f"{text[0].upper()}{text[1:]}.", parent=attr)
