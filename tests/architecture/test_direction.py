"""Imports go down the list of rooms, never up and never sideways."""

from __future__ import annotations

import ast
from pathlib import Path

import paragent

HOUSE = Path(paragent.__file__).parent

# From the top of the house to its foundation. Rooms on one level are strangers to each other.
LEVELS: list[set[str]] = [
    {"cli"},
    {"testing"},
    {"rollout"},
    {"runners", "osworld", "demo"},
    {"agents", "envs"},
    {"engines", "remote", "machines", "models", "scorers", "store"},
    {"worker"},
    {"transport", "subprocesses", "guest"},
    {"serialization"},
    {"tasks", "config"},
    {"messages"},
    {"_internal"},
    {"errors"},
]
LEVEL = {room: depth for depth, rooms in enumerate(LEVELS) for room in rooms}
# `agents` knows `remote`, and records know each other.
SIDEWAYS: set[tuple[str, str]] = set()


def room_of(path: Path) -> str:
    relative = path.relative_to(HOUSE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} uses a relative import"
            names = [f"paragent.{a.name}" for a in node.names] if node.module == "paragent" else [node.module]
        rooms |= {name.split(".")[1] for name in names if name.startswith("paragent.")}
    return rooms


def test_every_room_has_a_level() -> None:
    rooms = {room_of(path) for path in HOUSE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= set(LEVEL), f"give these rooms a level: {sorted(rooms - set(LEVEL))}"


def test_imports_go_down() -> None:
    wrong = []
    for path in sorted(HOUSE.rglob("*.py")):
        here = room_of(path)
        if here in {"__init__", "__main__"}:
            continue
        for there in imported_rooms(path) - {here}:
            if LEVEL[there] <= LEVEL[here] and (here, there) not in SIDEWAYS:
                wrong.append(f"{path.relative_to(HOUSE)} imports {there}")
    assert not wrong, wrong


def test_only_the_command_line_prints() -> None:
    printing = []
    for path in sorted(HOUSE.rglob("*.py")):
        if room_of(path) in {"cli", "testing"}:  # agents of the contract suites print as users' agents do
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.append(f"{path.relative_to(HOUSE)}:{node.lineno}")
    assert not printing, printing
