"""Names: no access to private names of other objects, and no public class name that is used twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.trees import tree_of

ROOT = Path(__file__).parents[2]

ALLOWED = {
    "_replace": "a public method of named tuples",
    "os._exit": "ends a process without running exit handlers of a parent",
    "copyreg._slotnames": "the slots of a class, as pickle finds them",
    "argparse._SubParsersAction": "the only name of this type, for annotations",
    "SparkContext._": "the gateway to the JVM has no public name",
    "_jrdd": "an RDD in the JVM has no public name",
    "_jsc": "the context in the JVM has no public name",
    "_element": "python-pptx does not offer these XML attributes",
    "_p": "as `_element`",
    "_from": "openpyxl's name for an anchor's first cell, because `from` is a keyword",
    "_and": "openpyxl's name, because `and` is a keyword",
    "sys._current_frames": "the only way to see where another thread is",
    "_run_once": "an event loop that is broken on purpose",
    "_selector": "as `_run_once`",
}
"""Private names of Python and other packages, as the ends or parts of an expression, and why they are used."""


def sources(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "lib" not in path.relative_to(ROOT).parts:  # the environments of peers in `bench/peers`
                yield path, tree_of(path)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each use of a private name of something other than `self` and `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("paragent."):
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names if is_private(a.name))
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if not isinstance(owner, ast.Name) or owner.id not in {"self", "cls", "super"}:
                yield node.lineno, ast.unparse(node)


def test_private_names_are_used_only_by_their_owner() -> None:
    used: set[str] = set()
    wrong = []
    for path, tree in sources("src", "tests", "bench", "examples"):
        for line, text in private_uses(tree):
            if reasons := [name for name in ALLOWED if text.endswith(name) or (name.endswith("._") and name in text)]:
                used.update(reasons)
            else:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {text}")
    assert not wrong, "\n".join(wrong)
    assert used == set(ALLOWED), f"nothing uses these any more, remove them: {set(ALLOWED) - used}"


def test_no_two_public_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources("src", "tests"):
        if path.is_relative_to(ROOT / "src"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT / "src")))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice, twice
