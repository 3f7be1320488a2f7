"""OSWorld's two action spaces: parses actions of agents and translates them into Python code for the machine.

An action of `computer_13` is `{"action_type": "CLICK", "parameters": {"x": 10, "y": 20}}`, or the same with the parameters
beside the type. An action of `pyautogui` is a string of Python code or `{"command": code}`. Both spaces have the actions WAIT,
FAIL and DONE, as a string or as `{"action_type": "DONE"}`.
"""

from __future__ import annotations

import ast
import json
import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Action",
    "BadAction",
    "actions_in",
    "command_of",
    "read_action",
    "special_in",
    "typing",
]

_NAMED = """
accept add alt altleft altright apps backspace browserback browserfavorites browserforward browserhome browserrefresh
browsersearch browserstop capslock clear command convert ctrl ctrlleft ctrlright decimal del delete divide down end enter esc
escape execute final fn hanguel hangul hanja help home insert junja kana kanji launchapp1 launchapp2 launchmail
launchmediaselect left modechange multiply nexttrack nonconvert numlock option optionleft optionright pagedown pageup pause
pgdn pgup playpause prevtrack print printscreen prntscrn prtsc prtscr return right scrolllock select separator shift shiftleft
shiftright sleep space stop subtract tab up volumedown volumemute volumeup win winleft winright yen
"""
_KEYS = frozenset(
    [*_NAMED.split(), "\t", "\n", "\r", " ", *string.ascii_lowercase, *string.digits, *string.punctuation]
    + [f"num{digit}" for digit in range(10)]
    + [f"f{number}" for number in range(1, 25)]
)


def _is_key(name: str) -> bool:
    """Return whether pyautogui knows a key of this name; case does not matter."""
    return name.lower() in _KEYS


def typing(text: str) -> list[str]:
    """Return the statements that type a text.

    With the keyboard layouts of OSWorld's images pyautogui types ">" for "<", so "<" is typed as the shifted comma.
    """
    statements: list[str] = []
    for number, piece in enumerate(text.split("<")):
        if number:
            statements.append("pyautogui.hotkey('shift', ',')")
        if piece:
            statements.append(f"pyautogui.typewrite({piece!r})")
    return statements or ["pyautogui.typewrite('')"]


_SPECIAL = ("WAIT", "FAIL", "DONE")
_PRELUDE = "import pyautogui; import time; pyautogui.FAILSAFE = False"
_BLOCK = re.compile(r"```(?:\w*[ \t]*\n)?(.*?)```", re.DOTALL)
_BUTTONS = ("left", "right", "middle")
_DRAG_SECONDS = 1.0
"""As in OSWorld; some programs take faster drags for clicks."""
Said = str | dict[str, Any]


class BadAction(ValueError):
    """An action is invalid; the message tells the agent why."""


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed action."""

    said: Said
    """The action as the agent wrote it, in OSWorld's form."""
    code: str = ""
    """Python code for the machine; empty for a special action."""
    special: str = ""
    """WAIT, FAIL, DONE, or empty."""


def command_of(code: str) -> list[str]:
    """Return the command that runs `code` on the machine, as OSWorld's client writes it.

    As in OSWorld, code that begins with a compound statement such as `for` is a syntax error, because it follows a semicolon.
    """
    return ["python", "-c", f"{_PRELUDE}; {code}"]


def read_action(said: Any, space: str, screen: tuple[int, int], marks: Sequence[tuple[int, int]] = ()) -> Action:
    """Parse an action.

    Args:
        said: what the agent wrote, in any of the forms above.
        space: `computer_13` or `pyautogui`.
        screen: width and height.
        marks: the centres of the marks that the agent was shown, beginning with number 1.

    Raises:
        BadAction: it is not an action of this space, or impossible on this screen.
    """
    if special := special_in(said):
        return Action(said if isinstance(said, str) else dict(said), special=special)
    if space == "pyautogui":
        return _read_python(said, marks)
    return _read_computer_13(said, screen, marks)


def special_in(said: Any) -> str:
    """Return the special action that this is, in either of its forms; empty if it is not special."""
    if isinstance(said, dict):
        said = said.get("action_type") or said.get("command")
    if not isinstance(said, str):
        return ""
    word = re.sub(r"^```(?:\w*\s*\n)?|```$", "", said.strip()).strip()
    if word.startswith("{"):
        try:
            parsed = json.loads(word)
        except ValueError:
            return ""
        word = str(parsed.get("action_type", "")) if isinstance(parsed, dict) else ""
    return word if word in _SPECIAL else ""


def actions_in(text: str, space: str) -> list[dict[str, Any]]:
    """Return the actions in the text of a message: a special word alone, or code blocks, as OSWorld's prompts request."""
    if word := special_in(text):
        return [{"action_type": word}]
    found: list[dict[str, Any]] = []
    for block in _BLOCK.findall(text) or [text]:
        if word := special_in(block):
            found.append({"action_type": word})
        elif space == "pyautogui" and block is not text and "pyautogui" in block:
            found.append({"command": block.strip()})
        elif space == "computer_13":
            try:
                said = json.loads(block)
            except ValueError:
                continue
            found += [said] if isinstance(said, dict) and "action_type" in said else []
    return found


# --- computer_13 ----------------------------------------------------------------------------------------------------------


def _read_computer_13(said: Any, screen: tuple[int, int], marks: Sequence[tuple[int, int]]) -> Action:
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            raise BadAction(f"{said[:80]!r} is neither one of {', '.join(_SPECIAL)} nor a JSON object") from None
    if not isinstance(said, dict) or not isinstance(said.get("action_type"), str):
        raise BadAction("an action must be an object with an `action_type`")
    kind = said["action_type"]
    if kind not in _KINDS:
        raise BadAction(f"there is no action_type {kind!r}; there are: {', '.join([*_KINDS, *_SPECIAL])}")
    nested = said.get("parameters") or {}
    if not isinstance(nested, dict):
        raise BadAction("`parameters` must be an object")
    beside = {name: value for name, value in said.items() if name not in {"action_type", "parameters"}}
    given = {name: _whole(value) for name, value in {**beside, **nested}.items() if value is not None}
    given = _placed(given, marks)
    needed, allowed, write = _KINDS[kind]
    if missing := [name for name in needed if name not in given]:
        raise BadAction(f"{kind} needs {' and '.join(missing)}")
    if unknown := [name for name in given if name not in {*needed, *allowed}]:
        raise BadAction(f"{kind} has no parameter {unknown[0]!r}; it has: {', '.join([*needed, *allowed]) or 'none'}")
    for name, value in given.items():
        _check(kind, name, value, screen)
    if ("x" in given) != ("y" in given):
        raise BadAction(f"{kind} needs both x and y, or neither")
    return Action({"action_type": kind, **({"parameters": given} if given else {})}, write(given))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _placed(given: dict[str, Any], marks: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the parameters with the number of a mark replaced by its coordinates."""
    if "mark" not in given:
        return given
    number = given.pop("mark")
    if not isinstance(number, int) or not 1 <= number <= len(marks):
        raise BadAction(f"there is no mark {number!r} on the screen; there are 1 to {len(marks)}")
    x, y = marks[number - 1]
    return {**given, "x": x, "y": y}


def _check(kind: str, name: str, value: Any, screen: tuple[int, int]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in {"x", "y"}:
        most = screen[0] if name == "x" else screen[1]
        if not number or not 0 <= value <= most:
            raise BadAction(f"{name} of {kind} must be a number from 0 to {most}, not {value!r}")
    elif name in {"dx", "dy"} and (not number or value != int(value)):
        raise BadAction(f"{name} of {kind} must be an integer, not {value!r}")
    elif name == "button" and value not in _BUTTONS:
        raise BadAction(f"the button of {kind} must be one of {', '.join(_BUTTONS)}, not {value!r}")
    elif name == "num_clicks" and value not in (1, 2, 3):
        raise BadAction(f"num_clicks must be 1, 2 or 3, not {value!r}")
    elif name == "text" and not isinstance(value, str):
        raise BadAction(f"the text of {kind} must be a string, not {value!r}")
    elif name in {"key", "keys"}:
        keys = [value] if name == "key" else value
        if not isinstance(keys, list) or not keys:
            raise BadAction(f"the keys of {kind} must be a list of key names, not {value!r}")
        for key in keys:
            if not isinstance(key, str) or not _is_key(key):
                raise BadAction(f"there is no key {key!r}; use pyautogui's names, such as enter, ctrl, f5, a")


def _call(function: str, given: Mapping[str, Any], **renamed: str) -> str:
    arguments = ", ".join(f"{renamed.get(name, name)}={value!r}" for name, value in given.items())
    return f"pyautogui.{function}({arguments})"


def _scroll(given: Mapping[str, Any]) -> str:
    parts = [
        f"pyautogui.{function}({int(given[name])})"
        for name, function in (("dx", "hscroll"), ("dy", "vscroll"))
        if given.get(name)
    ]
    return "; ".join(parts) or "pass"


def _keys(function: str) -> Callable[[Mapping[str, Any]], str]:
    def write(given: Mapping[str, Any]) -> str:
        names = given.get("keys") or [given["key"]]
        return f"pyautogui.{function}({', '.join(map(repr, names))})"

    return write


def _drag(given: Mapping[str, Any]) -> str:
    return f"pyautogui.dragTo(x={given['x']!r}, y={given['y']!r}, duration={_DRAG_SECONDS}, button='left')"


_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Mapping[str, Any]], str]]] = {
    "MOVE_TO": (("x", "y"), (), lambda given: _call("moveTo", given)),
    "CLICK": ((), ("button", "x", "y", "num_clicks"), lambda given: _call("click", given, num_clicks="clicks")),
    "MOUSE_DOWN": ((), ("button",), lambda given: _call("mouseDown", given)),
    "MOUSE_UP": ((), ("button",), lambda given: _call("mouseUp", given)),
    "RIGHT_CLICK": ((), ("x", "y"), lambda given: _call("rightClick", given)),
    "DOUBLE_CLICK": ((), ("x", "y"), lambda given: _call("doubleClick", given)),
    "DRAG_TO": (("x", "y"), (), _drag),
    "SCROLL": ((), ("dx", "dy"), _scroll),
    "TYPING": (("text",), (), lambda given: f"pyautogui.typewrite({given['text']!r})"),
    "PRESS": (("key",), (), _keys("press")),
    "KEY_DOWN": (("key",), (), _keys("keyDown")),
    "KEY_UP": (("key",), (), _keys("keyUp")),
    "HOTKEY": (("keys",), (), _keys("hotkey")),
}
"""For each action: its required parameters, its optional parameters, and the function that writes its code."""


# --- pyautogui ------------------------------------------------------------------------------------------------------------


def _read_python(said: Any, marks: Sequence[tuple[int, int]]) -> Action:
    command = said.get("command") if isinstance(said, dict) else said
    if not isinstance(command, str) or not command.strip():
        raise BadAction(f"an action must be Python code with pyautogui, or one of {', '.join(_SPECIAL)}")
    code = re.sub(r"^```\w*\s*\n|\n?```$", "", command.strip())
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise BadAction(f"invalid Python: {error}") from None
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    tags = [f"tag_{number} = {centre!r}" for number, centre in enumerate(marks, 1) if f"tag_{number}" in used]
    return Action(said, "\n".join([*tags, _with_less_than(tree, code)]))


def _with_less_than(tree: ast.Module, code: str) -> str:
    """Return the code with each "<" in a plain `typewrite` or `press` typed by its key; see `typing`."""
    rewriter = _LessThan()
    changed = ast.fix_missing_locations(rewriter.visit(tree))
    return ast.unparse(changed) if rewriter.found else code


class _LessThan(ast.NodeTransformer):
    """Rewrites the statements that OSWorld rewrites: `pyautogui.typewrite` and `pyautogui.press` with one literal."""

    found = False

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        match node.value:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="pyautogui"), attr=function),
                args=[ast.Constant(value=str() as text)],
                keywords=[],
            ) if (function == "typewrite" and "<" in text) or (function == "press" and text == "<"):
                self.found = True
                return ast.parse("\n".join(typing(text))).body
        return node
