"""The Python code of README, docs and examples as modules that type checkers can read together."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, Page, read_page


def write_modules(folder: Path) -> None:
    """Write a copy of each example, and the code of the pages.

    There is a module for each page, with all its blocks in order, and one for each Python file that a page shows.

    A module is named after its page, so that two pages can show files of the same name.
    """
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, folder / f"example_{example.name}")
    for path in PAGES:
        page = read_page(path)
        prefix = _identifier(str(path.with_suffix(""))).removeprefix("docs_")
        modules = {block.file.removesuffix(".py"): block for block in page.steps if block.file.endswith(".py")}
        names = {name: f"{prefix}__{_identifier(name)}" for name in modules}
        blocks = _notebook(page)
        sources = {prefix: blocks} | {names[name]: [(block.line, block.body)] for name, block in modules.items()}
        for name, parts in sources.items():
            if parts:
                (folder / f"{name}.py").write_text(_renamed(_at_their_lines(parts), names))


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


_OF_TRAINERS = ("needs TRL", "needs SkyRL")
"""Reasons for which blocks are not executed: they need packages that only the environment of the trainers has."""


def _notebook(page: Page) -> list[tuple[int, str]]:
    """Return the blocks that are executed as in a notebook, hidden set-up code included, with their lines in the page."""
    return [
        (block.line, block.body if "raises" not in block.instructions else _expected_to_fail(block.body))
        for block in page.steps
        if block.language in {"python", "setup"}
        and not block.file
        and not block.instructions.get("parse", "").startswith(_OF_TRAINERS)
    ]


def _expected_to_fail(body: str) -> str:
    """Return the code of a block that shows a mistake, which type checkers may report."""
    return re.sub(r"(?<=\S)$", "  # type: ignore[unused-ignore, call-arg]", body, flags=re.MULTILINE)


def _at_their_lines(parts: list[tuple[int, str]]) -> str:
    """Return one text in which each part begins at its line in the page, so that messages name lines of the page."""
    text = ""
    for line, body in parts:
        text += "\n" * (line - text.count("\n")) + body.rstrip("\n") + "\n"
    return text


def _renamed(source: str, names: dict[str, str]) -> str:
    for name, new in names.items():
        module = re.escape(name.replace("/", "."))
        source = re.sub(rf"^(\s*)from {module} import", rf"\1from {new} import", source, flags=re.MULTILINE)
        source = re.sub(rf"^(\s*)import {module}$", rf"\1import {new} as {name}", source, flags=re.MULTILINE)
    return source
