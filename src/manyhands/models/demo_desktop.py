"""The hand-written policy at a desktop: it knows the kinds of the sample tasks, finds what to click, and types.

It finds things in the table of the accessibility tree or, where it is only shown a screenshot, by their colour in the picture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.models.demo_sight import largest_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["act_at_desktop"]

_UNKNOWN = "I am a hand-written policy and do not know this kind of task."
_PATIENCE = 8
"""How often it waits for something that is not on the screen before it gives up."""
_WINDOWS = {"frame", "dialog", "file-chooser", "alert"}
Action = dict[str, Any]
_WAIT: Action = {"action_type": "WAIT"}
_DONE: Action = {"action_type": "DONE"}
_FAIL: Action = {"action_type": "FAIL"}


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the table."""

    role: str
    name: str
    text: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class _View:
    """What it sees now."""

    rows: list[_Row]
    picture: str
    """The last screenshot as a data URL; empty if it is shown none."""

    def inside(self, title: str) -> list[_Row]:
        """Return what is in the window with this in its title."""
        inside: list[_Row] = []
        within = False
        for row in self.rows:
            if row.role in _WINDOWS:
                within = title in row.name
            if within:
                inside.append(row)
        return inside

    def find(self, role: str, name: str = "", window: str = "", *, exact: bool = False) -> Action | None:
        """Return a click on the first such thing; None if it is not on the screen."""
        for row in self.inside(window) if window else self.rows:
            if row.role == role and (row.name == name if exact else name in row.name):
                return _click(row.x, row.y)
        return None


def act_at_desktop(question: str, messages: Sequence[dict[str, Any]], tools: set[str]) -> str | dict[str, Any]:
    """Return the next tool call, or what it has to say if it does not know what to do."""
    view = _View(_table(messages), _picture(messages))
    done = [call for call in _calls(messages) if not _is_wait(call)]
    waits = len(_calls(messages)) - len(done)
    for pattern, plan in _PLANS:
        if found := re.search(pattern, question):
            steps = [*plan(*found.groups()), _DONE]
            step = steps[min(len(done), len(steps) - 1)]
            action = step(view) if callable(step) else step
            if action is None:
                action = _WAIT if waits < _PATIENCE else _FAIL
            return _as_call(action, tools)
    if any(word in question for word in _NOT_HERE):
        return _as_call(_FAIL, tools)
    return _UNKNOWN


# --- what it does ---------------------------------------------------------------------------------------------------------


def _click(x: int, y: int) -> Action:
    return {"action_type": "CLICK", "x": x, "y": y}


def _type(text: str) -> Action:
    return {"action_type": "TYPING", "text": text}


def _press(*keys: str) -> Action:
    if len(keys) == 1:
        return {"action_type": "PRESS", "key": keys[0]}
    return {"action_type": "HOTKEY", "keys": list(keys)}


def _page(view: _View) -> Action | None:
    """Click into the text of the editor: in a picture, the largest white patch."""
    if view.rows:
        return view.find("text", window="Mousepad")
    patch = largest_patch(view.picture, lambda red, green, blue: min(red, green, blue) > 250)
    return None if patch is None else _click(*patch)


def _prompt(view: _View) -> Action | None:
    """Click into the terminal: in a picture, the largest black patch."""
    if view.rows:
        return view.find("terminal")
    patch = largest_patch(view.picture, lambda red, green, blue: max(red, green, blue) < 8)
    return None if patch is None else _click(*patch)


def _key(sign: str) -> Any:
    return lambda view: view.find("toggle-button", sign, window="galculator", exact=True)


def _sum(a: str, sign: str, b: str) -> list[Any]:
    return [_key(character) for character in f"{a}{sign}{b}="]


def _name_box(view: _View) -> Action | None:
    """Click into the name in the dialog that saves; in a picture, only look once more, for it has the keyboard by itself."""
    return view.find("text", window="File Chooser") if view.rows else {"action_type": "MOVE_TO", "x": 5, "y": 5}


def _note(text: str, name: str) -> list[Any]:
    return [_page, _type(text), *_saved(name)]


def _saved(name: str) -> list[Any]:
    return [_press("ctrl", "s"), _name_box, _press("ctrl", "a"), _type(f"~/Documents/{name}"), _press("enter")]


def _append(name: str, line: str) -> list[Any]:
    text = lambda view: view.find("text", window=name)  # noqa: E731 - a step, as the others
    return [text, _press("ctrl", "end"), _type(f"\n{line}"), _press("ctrl", "s")]


def _replace(name: str, old: str, new: str) -> list[Any]:
    def better(view: _View) -> Action | None:
        shown = next((row.text for row in view.inside(name) if row.role == "text"), None)
        return None if shown is None else _type(_without_states(shown).replace(old, new))

    return [
        lambda view: view.find("text", window=name),
        _press("ctrl", "a"),
        better,
        _press("ctrl", "s"),
    ]


def _in_folder(folder: str) -> list[Any]:
    """Have the file manager show a folder as a list, which the accessibility tree describes line by line."""
    return [
        lambda view: view.find("directory-pane", window="Thunar"),
        _press("ctrl", "2"),
        _press("ctrl", "l"),
        _type(f"~/{folder}"),
        _press("enter"),
    ]


def _cell(folder: str, name: str) -> Any:
    return lambda view: view.find("table-cell", name, window=f"{folder} - Thunar", exact=True)


def _rename(old: str, new: str) -> list[Any]:
    box = lambda view: view.find("text", window="Rename")  # noqa: E731 - a step, as the others
    return [
        *_in_folder("Documents"),
        _cell("Documents", old),
        _press("f2"),
        box,
        _press("ctrl", "a"),
        _type(new),
        _press("enter"),
    ]


def _folder(name: str) -> list[Any]:
    box = lambda view: view.find("text", window="Create New Folder")  # noqa: E731 - a step, as the others
    return [
        *_in_folder("Documents"),
        _press("ctrl", "shift", "n"),
        box,
        _press("ctrl", "a"),
        _type(name),
        _press("enter"),
    ]


def _delete(name: str) -> list[Any]:
    sure = lambda view: view.find("push-button", "Delete")  # noqa: E731 - a step, as the others
    return [*_in_folder("Documents"), _cell("Documents", name), _press("shift", "delete"), sure]


def _copy(name: str, folder: str) -> list[Any]:
    there = lambda view: view.find("frame", f"{folder} - Thunar") and _press("ctrl", "v")  # noqa: E731 - as above
    copied = [*_in_folder("Documents"), _cell("Documents", name), _press("ctrl", "c")]
    return [*copied, _press("ctrl", "l"), _type(f"~/{folder}"), _press("enter"), there]


_SETTINGS = {
    "show line numbers": ("View", "Line Numbers"),
    "wrap long lines": ("Document", "Word Wrap"),
    "show its toolbar": ("View", "Toolbar"),
    "show its status bar": ("View", "Statusbar"),
}


def _setting(what: str) -> list[Any]:
    menu, entry = _SETTINGS[what]
    return [
        lambda view: view.find("menu", menu, window="Mousepad"),
        lambda view: view.find("menu-item", entry) or view.find("check-menu-item", entry),
    ]


def _command(command: str) -> list[Any]:
    return [_prompt, _type(command), _press("enter")]


_PLANS: tuple[tuple[str, Callable[..., list[Any]]], ...] = (
    (r"write the text “(.+)” into a new file (\S+) in the folder Documents", _note),
    (r"The file (\S+) is open in the text editor. Add the line “(.+)” at its end", _append),
    (r"The file (\S+) is open in the text editor. Replace “(.+)” with “(.+)” in it", _replace),
    (r"rename the folder “(.+)” in the folder Documents to “(.+)”", _rename),
    (r"make a new folder “(.+)” in the folder Documents", _folder),
    (r"delete the file “(.+)” in the folder Documents", _delete),
    (r"copy the file “(.+)” from the folder Documents to the folder (\w+)", _copy),
    (r"Compute (\d+) (\S) (\d+) with the calculator and leave", _sum),
    (
        r"Compute (\d+) (\S) (\d+) with the calculator, and write the result into a new file (\S+)",
        lambda a, sign, b, name: [*_sum(a, sign, b), _page, _display, *_saved(name)],
    ),
    (r"Change the settings of the text editor: (.+)\.", _setting),
    (
        r"write the names of the files in the folder (\w+) into the file (\S+) in",
        lambda folder, name: _command(f"ls ~/{folder} > ~/Documents/{name}"),
    ),
    (r"make the file (\S+) in the folder Documents executable", lambda name: _command(f"chmod 755 ~/Documents/{name}")),
    (
        r"count the lines of the file (\S+) in the folder Documents and write the number into (\S+) beside",
        lambda name, target: _command(f"wc -l < ~/Documents/{name} > ~/Documents/{target}"),
    ),
    (
        r"pack the folder (\w+) in the folder Documents into the archive (\S+) beside",
        lambda folder, target: _command(f"tar czf ~/Documents/{target} -C ~/Documents {folder}"),
    ),
)
"""How tasks read, and the steps that do them."""
_NOT_HERE = ("Spotify", "Bluetooth", "GIMP", "webcam")
"""What its desktop does not have."""


def _display(view: _View) -> Action | None:
    """Type what the calculator shows."""
    shown = next((row.text for row in view.inside("galculator") if row.role == "text"), None)
    return None if shown is None else _type(_without_states(shown))


# --- what it is shown -------------------------------------------------------------------------------------------------------


def _table(messages: Sequence[dict[str, Any]]) -> list[_Row]:
    """Read the last table of the conversation."""
    for message in reversed(messages):
        lines = _text(message).split("\n")
        head = next((number for number, line in enumerate(lines) if "role\tname\ttext\tmiddle" in line), None)
        if head is not None:
            numbered = lines[head].startswith("mark\t")
            return [row for line in lines[head + 1 :] if (row := _row(line.split("\t")[numbered:])) is not None]
    return []


def _row(cells: list[str]) -> _Row | None:
    place = re.fullmatch(r"(\d+), (\d+)", cells[3]) if len(cells) == 5 else None
    return None if place is None else _Row(cells[0], cells[1], cells[2], int(place[1]), int(place[2]))


def _without_states(text: str) -> str:
    return re.sub(r" ?\((?:checked|selected|focused|expanded|disabled|, )+\)$", "", text)


def _picture(messages: Sequence[dict[str, Any]]) -> str:
    for message in reversed(messages):
        content = message.get("content")
        for part in reversed(content) if isinstance(content, list) else ():
            if part.get("type") == "image_url":
                return str(part["image_url"]["url"])
    return ""


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _calls(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [
        str(call["function"]["arguments"])
        for message in messages
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
    ]


def _is_wait(arguments: str) -> bool:
    return '"WAIT"' in arguments


# --- how it says it -----------------------------------------------------------------------------------------------------------


def _as_call(action: Action, tools: set[str]) -> dict[str, Any]:
    if "computer" in tools:
        return {"tool": "computer", **action}
    return {"tool": "pyautogui", "command": _as_code(action)}


def _as_code(action: Action) -> str:
    kind = action["action_type"]
    if kind == "CLICK":
        return f"pyautogui.click({action['x']}, {action['y']})"
    if kind == "MOVE_TO":
        return f"pyautogui.moveTo({action['x']}, {action['y']})"
    if kind == "TYPING":
        return f"pyautogui.typewrite({action['text']!r})"
    if kind == "PRESS":
        return f"pyautogui.press({action['key']!r})"
    if kind == "HOTKEY":
        return f"pyautogui.hotkey({', '.join(map(repr, action['keys']))})"
    return str(kind)
