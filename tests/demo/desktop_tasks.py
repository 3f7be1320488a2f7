"""Generator of the sample tasks of `osworld`: four of each kind, in OSWorld's format, for the desktop that paragent builds.

`python -m tests.demo.desktop_tasks` writes the sample file; a test checks that the file is up to date.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from paragent.demo.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["desktop_tasks"]

Task = dict[str, Any]
_NOTES = (
    ("shopping.txt", "bread, milk and two apples"),
    ("meeting.txt", "The meeting is at 14:30 in room 7."),
    ("recipe.txt", "Boil the potatoes for 20 minutes."),
    ("password.txt", "a < b && c > d"),
)
_LINES = (
    ("todo.txt", ("water the plants", "call the bank"), "book the train"),
    ("guests.txt", ("Ada", "Grace"), "Edsger"),
    ("colours.txt", ("red", "green"), "blue"),
    ("songs.txt", ("one", "two", "three"), "four"),
)
_WORDS = (
    ("report.txt", "The draft is late.", "draft", "final version"),
    ("letter.txt", "Dear Mr Smith, thank you.", "Smith", "Jones"),
    ("sign.txt", "Closed on Monday.", "Monday", "Friday"),
    ("price.txt", "It costs 10 euros.", "10", "12"),
)
_RENAMED = (
    ("Holiday", "Holiday 2026"),
    ("tmp", "archive"),
    ("Invoices", "Paid invoices"),
    ("photos", "Pictures of Rome"),
)
_FOLDERS = ("Receipts", "Project X", "Letters", "backup")
_DELETED = ("old.txt", "draft.txt", "copy.txt", "trash.log")
_COPIED = (("map.txt", "Pictures"), ("song.txt", "Music"), ("film.txt", "Videos"), ("form.txt", "Downloads"))
_SUMS = ((12, "*", 34, "408"), (517, "+", 284, "801"), (1000, "-", 37, "963"), (144, "/", 12, "12"))
_WRITTEN_SUMS = ((23, "*", 19, "437"), (640, "+", 72, "712"), (905, "-", 6, "899"), (81, "/", 9, "9"))
_SETTINGS = (
    ("show line numbers", "view", "show-line-numbers", "true"),
    ("wrap long lines", "view", "word-wrap", "true"),
    ("show its toolbar", "window", "toolbar-visible", "true"),
    ("show its status bar", "window", "statusbar-visible", "true"),
)
_LISTS = ("Pictures", "Music", "Videos", "Downloads")
_SCRIPTS = ("run.sh", "backup.sh", "start.sh", "clean.sh")
_LOGS = (("access.log", 12), ("errors.log", 7), ("build.log", 31), ("mail.log", 4))
_PACKED = ("papers", "notes", "scans", "sources")
_IMPOSSIBLE = (
    "Play the playlist “Focus” in Spotify.",
    "Pair this computer with the Bluetooth headset “Aurora”.",
    "Crop the picture rome.png to a square in GIMP.",
    "Turn on the reading light of the webcam.",
)


def desktop_tasks() -> list[Task]:
    """Return the tasks, with the kinds interleaved."""
    kinds: list[list[Task]] = [[make(*_row(row)) for row in rows] for make, rows in _KINDS]
    tasks = [task for turn in zip_longest(*kinds) for task in turn if task is not None]
    for number, task in enumerate(tasks, 1):
        task["id"] = f"{number:02d}-{task['id']}"
    return tasks


def _row(row: Any) -> tuple[Any, ...]:
    return row if isinstance(row, tuple) else (row,)


# --- the parts of a task ------------------------------------------------------------------------------------------------------


def _task(kind: str, app: str, instruction: str, evaluator: Task, *config: Task) -> Task:
    return {
        "id": kind,
        "domain": app,
        "snapshot": "desktop",
        "instruction": instruction,
        "config": list(config),
        "related_apps": [app],
        "evaluator": evaluator,
    }


def _shell(command: str) -> Task:
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def _file(name: str, text: str) -> Task:
    quoted = text.replace("'", "'\\''")
    return _shell(f"printf %s '{quoted}' > ~/Documents/{name}")


def _open(name: str) -> Task:
    return {"type": "open", "parameters": {"path": f"~/Documents/{name}"}}


def _says(command: str, expected: str) -> Task:
    """Return an evaluator that compares the output of a shell command on the machine."""
    result = {"type": "vm_command_line", "command": command, "shell": True}
    return {"func": "exact_match", "result": result, "expected": {"type": "rule", "rules": {"expected": expected}}}


def _has(name: str, text: str) -> Task:
    return _says(f'printf %s "$(cat ~/Documents/{name})"', text)


# --- the kinds ------------------------------------------------------------------------------------------------------------------


def _note(name: str, text: str) -> Task:
    goal = f"With the text editor, write the text “{text}” into a new file {name} in the folder Documents."
    return _task("note", "editor", goal, _has(name, text))


def _append(name: str, lines: tuple[str, ...], line: str) -> Task:
    goal = f"The file {name} is open in the text editor. Add the line “{line}” at its end and save it."
    before = "\n".join(lines)
    return _task("append", "editor", goal, _has(name, f"{before}\n{line}"), _file(name, before), _open(name))


def _replace(name: str, text: str, old: str, new: str) -> Task:
    goal = f"The file {name} is open in the text editor. Replace “{old}” with “{new}” in it and save it."
    return _task("replace", "editor", goal, _has(name, text.replace(old, new)), _file(name, text), _open(name))


def _rename(old: str, new: str) -> Task:
    goal = f"With the file manager, rename the folder “{old}” in the folder Documents to “{new}”."
    return _task("rename", "files", goal, _says("ls ~/Documents", f"{new}\n"), _shell(f"mkdir -p ~/Documents/'{old}'"))


def _folder(name: str) -> Task:
    goal = f"With the file manager, make a new folder “{name}” in the folder Documents."
    return _task("folder", "files", goal, _says(f"test -d ~/Documents/'{name}' && echo yes", "yes\n"))


def _delete(name: str) -> Task:
    goal = f"With the file manager, delete the file “{name}” in the folder Documents for good."
    config = (_file("keep.txt", "keep me"), _file(name, "delete me"))
    return _task("delete", "files", goal, _says("ls ~/Documents", "keep.txt\n"), *config)


def _copy(name: str, folder: str) -> Task:
    goal = f"With the file manager, copy the file “{name}” from the folder Documents to the folder {folder}."
    found = _says(f"cat ~/{folder}/{name} ~/Documents/{name}", "contentcontent")
    return _task("copy", "files", goal, found, _file(name, "content"))


def _compute(a: int, sign: str, b: int, result: str) -> Task:
    goal = f"Compute {a} {sign} {b} with the calculator and leave the result on its display."
    rule = {"xpath": f"//application[@name='galculator']//text[normalize-space()='{result}']"}
    evaluator = {
        "func": "check_accessibility_tree",
        "result": {"type": "accessibility_tree"},
        "expected": {"type": "rule", "rules": [rule]},
    }
    return _task("compute", "calculator", goal, evaluator)


def _write_sum(a: int, sign: str, b: int, result: str) -> Task:
    goal = f"Compute {a} {sign} {b} with the calculator, and write the result into a new file result.txt in the folder Documents."
    return _task("written", "multi_apps", goal, _has("result.txt", result))


def _setting(what: str, group: str, key: str, value: str) -> Task:
    goal = f"Change the settings of the text editor: {what}."
    found = _says(f"gsettings get org.xfce.mousepad.preferences.{group} {key}", f"{value}\n")
    return _task("setting", "editor", goal, found)


def _list(folder: str) -> Task:
    goal = f"In the terminal, write the names of the files in the folder {folder} into the file list.txt in the folder Documents."
    config = _shell(f"touch ~/{folder}/first ~/{folder}/second")
    return _task("list", "terminal", goal, _has("list.txt", "first\nsecond"), config)


def _executable(name: str) -> Task:
    goal = f"In the terminal, make the file {name} in the folder Documents executable."
    found = _says(f"stat -c %a ~/Documents/{name}", "755\n")
    return _task(
        "executable", "terminal", goal, found, _file(name, "#!/bin/sh"), _shell(f"chmod 644 ~/Documents/{name}")
    )


def _count(name: str, lines: int) -> Task:
    goal = f"In the terminal, count the lines of the file {name} in the folder Documents "
    goal += "and write the number into count.txt beside it."
    return _task("count", "terminal", goal, _has("count.txt", str(lines)), _shell(f"seq {lines} > ~/Documents/{name}"))


def _pack(folder: str) -> Task:
    goal = (
        f"In the terminal, pack the folder {folder} in the folder Documents into the archive {folder}.tar.gz beside it."
    )
    found = _says(f"tar tzf ~/Documents/{folder}.tar.gz | sort", f"{folder}/\n{folder}/a\n{folder}/b\n")
    config = _shell(f"mkdir -p ~/Documents/{folder} && touch ~/Documents/{folder}/a ~/Documents/{folder}/b")
    return _task("pack", "terminal", goal, found, config)


def _impossible(goal: str) -> Task:
    return _task("impossible", "os", goal, {"func": "infeasible"})


_KINDS: tuple[tuple[Callable[..., Task], tuple[Any, ...]], ...] = (
    (_note, _NOTES),
    (_list, _LISTS),
    (_compute, _SUMS),
    (_rename, _RENAMED),
    (_impossible, _IMPOSSIBLE),
    (_append, _LINES),
    (_setting, _SETTINGS),
    (_folder, _FOLDERS),
    (_executable, _SCRIPTS),
    (_delete, _DELETED),
    (_replace, _WORDS),
    (_copy, _COPIED),
    (_write_sum, _WRITTEN_SUMS),
    (_count, _LOGS),
    (_pack, _PACKED),
)


def _lines() -> Iterator[str]:
    for task in desktop_tasks():
        yield json.dumps(task, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sample_path("osworld").write_text("".join(_lines()), encoding="utf-8")
