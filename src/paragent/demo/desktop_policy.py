"""The scripted policy for desktops: knows the kinds of sample tasks, finds its targets in the screenshot, clicks and types."""

from __future__ import annotations

import base64
import importlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["act_on_desktop", "focused_field", "largest_area"]

_GRID = 8
"""Pixels between two samples: larger than letters, so that text does not split an area."""
_FRAME = ((33, 73), (112, 152), (208, 248))
"""Ranges of red, green and blue of the frame around a focused field, about #3584e4 in GTK's default theme."""
_SHORTEST = 60
"""Minimum width of such a frame in pixels; no field is narrower than six letters."""
_HEIGHTS = range(20, 60)
"""Heights of the frame in pixels: one line of text with padding."""
_INSIDE = 4
"""Pixels below the upper line where there is neither frame nor text."""


def largest_area(url: str, matches: Callable[[int, int, int], bool]) -> tuple[int, int] | None:
    """Return a point inside the largest connected area of matching pixels; None if there is no image or no such area.

    Args:
        url: the image as a data URL; empty: none.
        matches: takes red, green and blue.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    if not url:
        return None
    image = _decoded(url)
    width, height = image.size
    pixels = image.load()
    open_cells = {(x, y) for x in range(0, width, _GRID) for y in range(0, height, _GRID) if matches(*pixels[x, y][:3])}
    largest: list[tuple[int, int]] = []
    while open_cells:
        area = _flood(open_cells)
        if len(area) > len(largest):
            largest = area
    if not largest:
        return None
    middle = (sum(x for x, _ in largest) / len(largest), sum(y for _, y in largest) / len(largest))
    return min(largest, key=lambda cell: (cell[0] - middle[0]) ** 2 + (cell[1] - middle[1]) ** 2)


def focused_field(url: str) -> tuple[int, int] | None:
    """Return the centre of the focused text field; None if there is no image or no such field.

    Args:
        url: the image as a data URL; empty: none.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    if not url:
        return None
    image = _decoded(url)
    matches = [255 * (low <= value <= high) for low, high in _FRAME for value in range(256)]
    width, pixels = image.width * 3, image.point(matches).tobytes()
    lines = [
        (found.start() // 3, found.end() // 3, y)
        for y in range(image.height)
        for found in re.finditer(rb"\xff{%d,}" % (_SHORTEST * 3), pixels[y * width : (y + 1) * width])
    ]
    for left, right, top in lines:
        middle = (left + right) // 2
        empty = pixels[(top + _INSIDE) * width + middle * 3 :][:3] != b"\xff\xff\xff"
        for left_below, right_below, bottom in lines if empty else ():
            if bottom - top in _HEIGHTS and max(abs(left - left_below), abs(right - right_below)) <= 2:
                return middle, (top + bottom) // 2
    return None


def _flood(cells: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Remove one connected area from the cells and return it."""
    waiting = [cells.pop()]
    area = []
    while waiting:
        x, y = waiting.pop()
        area.append((x, y))
        for beside in ((x + _GRID, y), (x - _GRID, y), (x, y + _GRID), (x, y - _GRID)):
            if beside in cells:
                cells.remove(beside)
                waiting.append(beside)
    return area


def _decoded(url: str) -> Any:
    try:
        image = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingExtra("the model `demo` with screenshots", "osworld", "pillow") from error
    return image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


_UNKNOWN = "I am a scripted policy and do not know this kind of task."
_MAX_WAITS = 8
"""How often it waits for an element before it gives up."""
_DIALOGS = {"dialog", "file-chooser", "alert"}
_WINDOWS = {"frame", *_DIALOGS}
Action = dict[str, Any]
_WAIT: Action = {"action_type": "WAIT"}
_FAIL: Action = {"action_type": "FAIL"}


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the accessibility table."""

    role: str
    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class _View:
    """The current observation."""

    rows: list[_Row]
    """The accessibility tree; empty if it is not part of the observation."""
    screenshots: list[str]
    """The last screenshots as data URLs, oldest first; empty if they are not part of the observation."""

    @property
    def screenshot(self) -> str:
        """The latest screenshot."""
        return self.screenshots[-1] if self.screenshots else ""

    @property
    def changed(self) -> bool:
        """Whether the screen has changed since the last screenshot; nothing on it moves by itself."""
        return self.screenshots[-1:] != self.screenshots[-2:-1]

    def inside(self, title: str) -> list[_Row]:
        """Return the rows of the window whose title contains `title`."""
        inside: list[_Row] = []
        within = False
        for row in self.rows:
            if row.role in _WINDOWS:
                within = title in row.name
            if within:
                inside.append(row)
        return inside

    def find(self, role: str, name: str = "", window: str = "", *, exact: bool = False) -> Action | None:
        """Return a click on the first matching element; None if there is none."""
        for row in self.inside(window) if window else self.rows:
            if row.role == role and (row.name == name if exact else name in row.name):
                return _click(row.x, row.y)
        return None


Step = Action | Callable[[_View], Action | None]
"""An action, or a function that returns the action for an observation; None means wait."""


def act_on_desktop(question: str, messages: Sequence[dict[str, Any]], tools: set[str]) -> str | dict[str, Any]:
    """Return the next tool call, or a final message if the task is unknown."""
    view = _View(_table(messages), _screenshots(messages))
    done = [call for call in _calls(messages) if not _is_wait(call)]
    waits = len(_calls(messages)) - len(done)
    for pattern, plan in _PLANS:
        if found := re.search(pattern, question):
            steps = [*plan(*found.groups()), _without_dialog({"action_type": "DONE"})]
            step = steps[min(len(done), len(steps) - 1)]
            action = step(view) if callable(step) else step
            if action is None:
                action = _WAIT if waits < _MAX_WAITS else _FAIL
            return _as_call(action, tools)
    if any(word in question for word in _NOT_INSTALLED):
        return _as_call(_FAIL, tools)
    return _UNKNOWN


# --- steps ----------------------------------------------------------------------------------------------------------------


def _click(x: int, y: int) -> Action:
    return {"action_type": "CLICK", "x": x, "y": y}


def _type(text: str) -> Action:
    return {"action_type": "TYPING", "text": text}


def _press(*keys: str) -> Action:
    if len(keys) == 1:
        return {"action_type": "PRESS", "key": keys[0]}
    return {"action_type": "HOTKEY", "keys": list(keys)}


def _without_dialog(action: Action) -> Step:
    """Perform the action once no dialog is open; with screenshots, once no text field is focused."""

    def step(view: _View) -> Action | None:
        if view.rows:
            return None if any(row.role in _DIALOGS for row in view.rows) else action
        return action if focused_field(view.screenshot) is None else None

    return step


def _at(role: str, window: str, colour: Callable[[int, int, int], bool]) -> Step:
    """Click on the first element of that role in a window; with screenshots, on the largest area of its colour."""

    def step(view: _View) -> Action | None:
        if view.rows:
            return view.find(role, window=window)
        area = largest_area(view.screenshot, colour)
        return None if area is None else _click(*area)

    return step


def _terminal() -> Step:
    return _at("terminal", "", lambda red, green, blue: max(red, green, blue) < 8)


def _editor(title: str = "Mousepad") -> Step:
    return _at("text", title, lambda red, green, blue: min(red, green, blue) > 250)


def _calculator() -> Step:
    """Click on the calculator's display; with screenshots, on the centre of the largest grey area, which may be a key."""
    return _at(
        "text", "galculator", lambda red, green, blue: min(red, green, blue) > 190 and max(red, green, blue) < 250
    )


def _files() -> Step:
    """Click on the file pane; with screenshots, on the selected entry of the side bar."""
    return _at("directory-pane", "Thunar", lambda red, green, blue: red < 80 and 110 < green < 160 and blue > 200)


def _field(window: str) -> Step:
    """Click into the text field of a dialog; with screenshots, into the focused one."""

    def step(view: _View) -> Action | None:
        if view.rows:
            return view.find("text", window=window)
        field = focused_field(view.screenshot)
        return None if field is None else _click(*field)

    return step


def _or_key(find: Callable[[_View], Action | None], key: str) -> Step:
    """Click on the element found in the tree; with screenshots, press its key once the previous action has taken effect."""
    return lambda view: find(view) if view.rows else _press(key) if view.changed else None


def _key(sign: str) -> Step:
    """Click on a key of the calculator; with screenshots, press it on the keyboard."""

    def step(view: _View) -> Action | None:
        return view.find("toggle-button", sign, window="galculator", exact=True) if view.rows else _press(sign)

    return step


def _sum(a: str, sign: str, b: str) -> list[Step]:
    return [_calculator(), _press("escape"), *map(_key, f"{a}{sign}{b}=")]


def _write_sum(a: str, sign: str, b: str, name: str) -> list[Step]:
    return [*_sum(a, sign, b), _press("ctrl", "c"), _editor(), _press("ctrl", "v"), *_saved(name)]


def _note(text: str, name: str) -> list[Step]:
    return [_editor(), _type(text), *_saved(name)]


def _saved(name: str) -> list[Step]:
    """Save the document once its title begins with a star, which marks unsaved changes; pasting takes a moment."""

    def save(view: _View) -> Action | None:
        return _press("ctrl", "s") if (view.find("frame", "*") if view.rows else view.changed) else None

    return [save, *_named("File Chooser", f"~/Documents/{name}")]


def _append(name: str, line: str) -> list[Step]:
    return [_editor(name), _press("ctrl", "end"), _type(f"\n{line}"), _press("ctrl", "s")]


def _menu(menu: str, entry: str, letter: str) -> list[Step]:
    """Choose an entry of a menu of the focused editor; on the keyboard, a menu has its first letter."""

    def opened(view: _View) -> Action | None:
        return view.find("menu", menu, window="Mousepad") if view.rows else _press("alt", menu[0].lower())

    def found(view: _View) -> Action | None:
        return view.find("menu-item", entry) or view.find("check-menu-item", entry)

    return [opened, _or_key(found, letter)]


def _replace(name: str, old: str, new: str) -> list[Step]:
    dialog = [*_menu("Search", "Find and Replace", "l"), _field("Find and Replace")]
    filled = [_press("ctrl", "a"), _type(old), _press("alt", "w"), _type(new)]
    everywhere = [_press("alt", "a"), _press("alt", "r")]
    # Alt+W is the key of "Replace with" and of "Wrap around", so it takes two presses to focus a field again. The frame of the
    # focused field shows in screenshots whether the dialog is still open.
    focus = _press("alt", "w")
    closed = [focus, focus, _field("Find and Replace"), _press("escape")]
    return [_editor(name), *dialog, *filled, *everywhere, *closed, _without_dialog(_press("ctrl", "s"))]


def _in_folder(folder: str, then: Action) -> list[Step]:
    """Open a folder in the file manager, then act; with screenshots, once the address field is not focused any more."""

    def there(view: _View) -> Action | None:
        shown = view.find("frame", f"{folder} - Thunar") if view.rows else focused_field(view.screenshot) is None
        return then if shown else None

    return [_press("ctrl", "l"), _type(f"~/{folder}"), _press("enter"), there]


def _chosen(name: str) -> list[Step]:
    """Select a file by name. Its last letter becomes a wildcard: without one, files that contain the name match, too."""
    ask = _in_folder("Documents", _press("ctrl", "s"))
    return [_files(), *ask, _field("Select by Pattern"), _type(f"{name[:-1]}?"), _press("enter")]


def _named(window: str, name: str) -> list[Step]:
    return [_field(window), _press("ctrl", "a"), _type(name), _press("enter")]


def _rename(old: str, new: str) -> list[Step]:
    return [*_chosen(old), _press("f2"), *_named("Rename", new)]


def _folder(name: str) -> list[Step]:
    return [_files(), *_in_folder("Documents", _press("ctrl", "shift", "n")), *_named("Create New Folder", name)]


def _delete(name: str) -> list[Step]:
    return [
        *_chosen(name),
        _press("shift", "delete"),
        _or_key(lambda view: view.find("push-button", "Delete"), "enter"),
    ]


def _copy(name: str, folder: str) -> list[Step]:
    return [*_chosen(name), _press("ctrl", "c"), *_in_folder(folder, _press("ctrl", "v"))]


_SETTINGS = {
    "show line numbers": ("View", "Line Numbers", "u"),
    "wrap long lines": ("Document", "Word Wrap", "w"),
    "show its toolbar": ("View", "Toolbar", "t"),
    "show its status bar": ("View", "Statusbar", "a"),
}
"""The menu, its entry, and the underlined letter of the entry."""


def _setting(what: str) -> list[Step]:
    return [_editor(), *_menu(*_SETTINGS[what])]


def _command(command: str) -> list[Step]:
    return [_terminal(), _type(command), _press("enter")]


_PLANS: tuple[tuple[str, Callable[..., list[Step]]], ...] = (
    (r"write the text “(.+)” into a new file (\S+) in the folder Documents", _note),
    (r"The file (\S+) is open in the text editor. Add the line “(.+)” at its end", _append),
    (r"The file (\S+) is open in the text editor. Replace “(.+)” with “(.+)” in it", _replace),
    (r"rename the folder “(.+)” in the folder Documents to “(.+)”", _rename),
    (r"make a new folder “(.+)” in the folder Documents", _folder),
    (r"delete the file “(.+)” in the folder Documents", _delete),
    (r"copy the file “(.+)” from the folder Documents to the folder (\w+)", _copy),
    (r"Compute (\d+) (\S) (\d+) with the calculator and leave", _sum),
    (r"Compute (\d+) (\S) (\d+) with the calculator, and write the result into a new file (\S+)", _write_sum),
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
"""Patterns of instructions, and the plan for each."""
_NOT_INSTALLED = ("Spotify", "Bluetooth", "GIMP", "webcam")
"""What the desktop does not have; such tasks are infeasible."""


# --- observations -----------------------------------------------------------------------------------------------------------


def _table(messages: Sequence[dict[str, Any]]) -> list[_Row]:
    """Return the last accessibility table of the conversation."""
    for message in reversed(messages):
        lines = _text(message).split("\n")
        head = next((number for number, line in enumerate(lines) if "role\tname\ttext\tmiddle" in line), None)
        if head is not None:
            numbered = lines[head].startswith("mark\t")
            return [row for line in lines[head + 1 :] if (row := _row(line.split("\t")[numbered:])) is not None]
    return []


def _row(cells: list[str]) -> _Row | None:
    centre = re.fullmatch(r"(\d+), (\d+)", cells[3]) if len(cells) == 5 else None
    return None if centre is None else _Row(cells[0], cells[1], int(centre[1]), int(centre[2]))


def _screenshots(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [
        str(part["image_url"]["url"])
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
        if part.get("type") == "image_url"
    ]


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


# --- tool calls ---------------------------------------------------------------------------------------------------------------


def _as_call(action: Action, tools: set[str]) -> dict[str, Any]:
    if "computer" in tools:
        return {"tool": "computer", **action}
    return {"tool": "pyautogui", "command": _as_code(action)}


def _as_code(action: Action) -> str:
    kind = action["action_type"]
    if kind == "CLICK":
        return f"pyautogui.click({action['x']}, {action['y']})"
    if kind == "TYPING":
        return f"pyautogui.typewrite({action['text']!r})"
    if kind == "PRESS":
        return f"pyautogui.press({action['key']!r})"
    if kind == "HOTKEY":
        return f"pyautogui.hotkey({', '.join(map(repr, action['keys']))})"
    return str(kind)
