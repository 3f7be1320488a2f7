"""Actions on screenshots: reads where an agent clicked, dragged or typed from its tool calls. No code of an agent is executed.

It reads the action spaces of `osworld` (`computer_13` and code with pyautogui), the tools of `web`, and tools whose arguments
name an action and coordinates, such as `{"action": "left_click", "coordinate": [10, 20]}`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import TYPE_CHECKING, Any

from paragent.view.api import Pointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PointerReader"]

_LONGEST_CODE = 20_000
_LONGEST_NESTING = 2_000
"""Characters of code outside of strings and comments. Each can add a level of nesting, and when a program has more than about
3,000 levels, `ast` of Python 3.11 fails for the whole process, also in later calls."""
_STRINGS = re.compile(
    r"#[^\n]*"
    r"|\"\"\"(?:\\.|[^\\]|\\\Z)*?(?:\"\"\"|\Z)|\'\'\'(?:\\.|[^\\]|\\\Z)*?(?:\'\'\'|\Z)"
    r"|\"(?:\\.|[^\"\\\n])*+\"?|\'(?:\\.|[^\'\\\n])*+\'?",
    re.DOTALL,
)
"""Comments and strings. One without an end ends with the line or the code; else each quote would be read to the end again."""
_MOST = 100
"""Pointers of one tool call; code with more is a loop that was written out."""
_TEXT = 500
"""Characters of typed text that are shown."""
_BUTTONS = {"right": "right click", "left": "click", "middle": "click"}
_ACTIONS = {
    "click": "click", "left_click": "click", "middle_click": "click", "tap": "click", "right_click": "right click",
    "double_click": "double click", "triple_click": "double click", "left_double": "double click", "move_to": "move",
    "mouse_move": "move", "move": "move", "hover": "move", "drag_to": "drag", "drag": "drag", "left_click_drag": "drag",
    "scroll": "scroll", "typing": "type", "type": "type", "input_text": "type", "write": "type", "press": "key", "key": "key",
    "hotkey": "key", "keypress": "key", "key_down": "key", "mouse_down": "mouse down", "left_mouse_down": "mouse down",
    "mouse_up": "mouse up", "left_mouse_up": "mouse up",
}  # fmt: skip
"""What the names of actions mean, in lower case."""
_FUNCTIONS = {
    "click": "click", "leftClick": "click", "middleClick": "click", "rightClick": "right click",
    "doubleClick": "double click", "tripleClick": "double click", "moveTo": "move", "dragTo": "drag",
    "mouseDown": "mouse down", "mouseUp": "mouse up",
}  # fmt: skip
"""Functions of pyautogui whose first two parameters are x and y."""


class PointerReader:
    """Reads the tool calls of one execution, in their order: a drag begins where the pointer was before."""

    def __init__(self) -> None:
        self._at: tuple[float | None, float | None] = (None, None)
        self._pressed: tuple[float | None, float | None] | None = None

    def read(self, arguments: Any, performed: Any = None, name: str = "") -> list[Pointer]:
        """Return the actions of a tool call; empty if there are none to draw.

        Args:
            arguments: the arguments of the call: JSON text or an object.
            performed: the action as the environment performed it, with the coordinates of marks, if that is known.
            name: the name of the tool, used if the arguments do not name an action.
        """
        said = performed if isinstance(performed, dict | str) and performed else arguments
        if isinstance(said, str):
            try:
                said = json.loads(said)
            except (ValueError, RecursionError):
                return self._read_code(said)
        if isinstance(said, str):
            return self._read_code(said)
        if not isinstance(said, dict):
            return []
        for key in ("command", "code"):
            if isinstance(said.get(key), str) and "pyautogui" in said[key]:
                return self._read_code(said[key])
        return self._read_action(said, name)

    # --- actions as objects -------------------------------------------------------------------------------------------

    def _read_action(self, said: Mapping[str, Any], name: str) -> list[Pointer]:
        nested = said.get("parameters")
        given = {**said, **nested} if isinstance(nested, dict) else dict(said)
        words = [given.get(key) for key in ("action_type", "action", "type")] + [name]
        word = next((one for one in words if isinstance(one, str) and one.lower() in _ACTIONS), "")
        kind = _ACTIONS.get(word.lower(), "")
        if kind == "click":
            kind = "double click" if given.get("num_clicks") in (2, 3) else _BUTTONS.get(str(given.get("button")), kind)
        if not kind:
            return []
        x, y = _place(given)
        if kind == "type":
            return [Pointer("type", *self._at, text=_shown(given.get("text")))]
        if kind == "key":
            keys = given.get("keys", given.get("key", given.get("text")))
            return [
                Pointer("key", *self._at, text=_shown("+".join(map(str, keys)) if isinstance(keys, list) else keys))
            ]
        if kind == "scroll":
            self._move(x, y)
            return [Pointer("scroll", *self._at, text=_scrolled(given))]
        start = given.get("start_coordinate")
        if kind == "drag" and isinstance(start, list | tuple) and len(start) == 2:
            self._move(_number(start[0]), _number(start[1]))
        return self._mouse(kind, x, y)

    def _mouse(self, kind: str, x: float | None, y: float | None) -> list[Pointer]:
        before = self._at
        self._move(x, y)
        if kind == "drag":
            return [Pointer("drag", *before, *self._at)]
        if kind == "mouse down":
            self._pressed = self._at
            return []
        if kind == "mouse up":
            pressed, self._pressed = self._pressed, None
            if pressed is not None and pressed != self._at:
                return [Pointer("drag", *pressed, *self._at)]
            return [Pointer("click", *self._at)]
        return [Pointer(kind, *self._at)]

    def _move(self, x: float | None, y: float | None) -> None:
        if x is not None and y is not None:
            self._at = (x, y)

    # --- code with pyautogui ------------------------------------------------------------------------------------------

    def _read_code(self, code: str) -> list[Pointer]:
        if "pyautogui" not in code or len(code) > _LONGEST_CODE:
            return []
        if len(_STRINGS.sub("", code)) > _LONGEST_NESTING:
            return []
        try:
            tree = ast.parse(code.strip().removeprefix("```python").strip("`").strip())
            found: list[Pointer] = []
            names: dict[str, Any] = {}
            for node in _in_order(tree):
                if isinstance(node, ast.Assign):
                    _assign(node, names)
                elif isinstance(node, ast.Call) and len(found) < _MOST:
                    found += self._read_call(node, names)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        return found

    def _read_call(self, node: ast.Call, names: Mapping[str, Any]) -> list[Pointer]:
        match node.func:
            case ast.Attribute(value=ast.Name(id="pyautogui"), attr=function):
                pass
            case _:
                return []
        positional = [_value(one, names) for one in node.args]
        named = {one.arg: _value(one.value, names) for one in node.keywords if one.arg}
        if positional and isinstance(positional[0], list | tuple) and function not in {"press", "hotkey"}:
            positional = [*positional[0], *positional[1:]]
        match function:
            case "move" | "moveRel" | "drag" | "dragRel":
                return self._read_relative("move" if function.startswith("move") else "drag", positional, named)
            case "scroll" | "vscroll" | "hscroll":
                return self._read_scroll(positional, named)
            case "typewrite" | "write":
                return [Pointer("type", *self._at, text=_shown(positional[0] if positional else named.get("message")))]
            case "press" | "hotkey" | "keyDown":
                return self._read_keys(positional, named)
        return self._read_mouse(function, positional, named)

    def _read_mouse(self, function: str, positional: list[Any], named: Mapping[str, Any]) -> list[Pointer]:
        kind = _FUNCTIONS.get(function)
        if kind is None:
            return []
        x, y = (_number(positional[n] if len(positional) > n else named.get(key)) for n, key in enumerate("xy"))
        if kind == "click":
            clicks = positional[2] if len(positional) > 2 else named.get("clicks")
            kind = "double click" if clicks in (2, 3) else _BUTTONS.get(str(named.get("button")), kind)
        return self._mouse(kind, x, y)

    def _read_relative(self, kind: str, positional: list[Any], named: Mapping[str, Any]) -> list[Pointer]:
        offsets = [
            _number(positional[n] if len(positional) > n else named.get(key)) or 0.0
            for n, key in enumerate(("xOffset", "yOffset"))
        ]
        x, y = self._at
        return (
            self._mouse(kind, None, None)
            if x is None or y is None
            else self._mouse(kind, x + offsets[0], y + offsets[1])
        )

    def _read_scroll(self, positional: list[Any], named: Mapping[str, Any]) -> list[Pointer]:
        amount = _number(positional[0] if positional else named.get("clicks"))
        x, y = (_number(positional[n] if len(positional) > n else named.get(key)) for n, key in ((1, "x"), (2, "y")))
        self._move(x, y)
        return [Pointer("scroll", *self._at, text=_scrolled({"dy": amount}))]

    def _read_keys(self, positional: list[Any], named: Mapping[str, Any]) -> list[Pointer]:
        keys = positional or [named.get("keys", named.get("key"))]
        flat = [
            key for one in keys for key in (one if isinstance(one, list | tuple) else [one]) if isinstance(key, str)
        ]
        return [Pointer("key", *self._at, text=_shown("+".join(flat)))] if flat else []


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a program in the order of its text."""
    for child in ast.iter_child_nodes(tree):
        yield child
        yield from _in_order(child)


def _assign(node: ast.Assign, names: dict[str, Any]) -> None:
    """Note the value of `x = 10` and `x, y = 10, 20`."""
    value = _value(node.value, names)
    for target in node.targets:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, list | tuple) and len(target.elts) == len(value):
            names.update(
                {one.id: part for one, part in zip(target.elts, value, strict=True) if isinstance(one, ast.Name)}
            )


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return the value of a literal, a known name, or sums and products of them; None for anything else."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(one, names) for one in elements]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _number(_value(operand, names))
            return None if number is None else -number
        case ast.BinOp(left=left, op=operator, right=right):
            return _computed(_number(_value(left, names)), operator, _number(_value(right, names)))
    return None


def _computed(left: float | None, operator: ast.operator, right: float | None) -> float | None:
    if left is None or right is None:
        return None
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv() if right:
            return left / right
    return None


def _place(given: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the coordinates among the parameters of an action."""
    for key in ("coordinate", "coordinates", "position", "point"):
        pair = given.get(key)
        if isinstance(pair, list | tuple) and len(pair) == 2:
            return _number(pair[0]), _number(pair[1])
    return _number(given.get("x")), _number(given.get("y"))


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _shown(text: Any) -> str:
    return text[:_TEXT] if isinstance(text, str) else ""


def _scrolled(given: Mapping[str, Any]) -> str:
    """Return a scroll as words: positive amounts are up and right."""
    words = []
    for key, forward, backward in (("dy", "up", "down"), ("dx", "right", "left")):
        amount = _number(given.get(key))
        if amount:
            words.append(f"{abs(amount):g} {forward if amount > 0 else backward}")
    direction = given.get("direction", given.get("scroll_direction"))
    return ", ".join(words) or (direction[:20] if isinstance(direction, str) else "")
