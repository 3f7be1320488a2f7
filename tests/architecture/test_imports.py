"""Imports between packages go down the list of levels."""

from __future__ import annotations

import ast
from pathlib import Path

import paragent
from tests.architecture.trees import tree_of

PACKAGE = Path(paragent.__file__).parent
TEMPLATE = PACKAGE / "cli" / "project"
"""The files of `paragent init`: they import paragent as users do, and are not part of it."""
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if TEMPLATE not in path.parents)

LEVELS: list[set[str]] = [
    {"cli"},
    {"training", "view"},
    {"testing"},
    {"rollout"},
    {"runners", "osworld", "demo", "mcp"},
    {"agents", "envs", "gateway"},
    {"engines", "remote", "machines", "models", "scorers", "store"},
    {"worker"},
    {"transport", "subprocesses", "guest"},
    {"serialization"},
    {"execution"},
    {"tasks", "config"},
    {"messages"},
    {"_internal"},
    {"errors"},
    {"_installation"},
]
"""Packages and top-level modules, from the highest level to the lowest. Those of one level do not import each other."""
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def package_of(path: Path) -> str:
    """Return the package, or the top-level module, that a file belongs to."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_packages(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(tree_of(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} uses a relative import"
            names = [f"paragent.{a.name}" for a in node.names] if node.module == "paragent" else [node.module]
        packages |= {name.split(".")[1] for name in names if name.startswith("paragent.")}
    return packages


def test_every_package_has_a_level_and_every_level_has_packages() -> None:
    packages = {package_of(path) for path in SOURCES} - {"__init__", "__main__"}
    assert packages == set(LEVEL)


def test_imports_go_down() -> None:
    wrong = []
    for path in SOURCES:
        importer = package_of(path)
        if importer in {"__init__", "__main__"}:
            continue
        for imported in imported_packages(path) - {importer}:
            if LEVEL[imported] <= LEVEL[importer]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {imported}")
    assert not wrong, wrong


def test_only_the_command_line_prints() -> None:
    printing = []
    for path in SOURCES:
        if package_of(path) in {"cli", "testing"}:  # agents of the contract suites print, as agents of users do
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not printing, printing
