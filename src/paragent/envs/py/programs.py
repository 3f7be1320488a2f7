"""Programs within answers: found in the text, put together with what a benchmark gives."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paragent.tasks import Item

__all__ = ["hidden_tests", "program_in", "readings"]

_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "python", "py", "python3"}


def program_in(answer: str, entry_point: str = "") -> str | None:
    """Return the program in a message's fences: the last one that defines `entry_point`, else the last; None without any."""
    blocks = [match[2] for match in _FENCED.finditer(answer) if match[1].lower() in _PYTHON]
    defining = [block for block in blocks if _defines(block, entry_point)]
    return (defining or blocks or [None])[-1]


def _defines(code: str, name: str) -> bool:
    return (
        bool(name)
        and re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", code, re.MULTILINE)
        is not None
    )


def readings(item: Item, answer: str) -> list[str]:
    """Return the programs that an answer may mean, the likeliest first; the first that is valid Python is meant.

    HumanEval's questions end within a function. An answer may be the whole function or its body, and a body may have lost
    its indentation on the way.
    """
    entry_point = str(item.metadata.get("entry_point") or "")
    code = program_in(answer, entry_point)
    code = answer if code is None else code
    if not _defines(item.question, entry_point):
        return [code]
    if _defines(code, entry_point):
        return [f"{item.question}\n{code}", code]
    body = textwrap.indent(textwrap.dedent(code), "    ")
    return [item.question + code, f"{item.question}\n{body}", f"{item.question}\n    {code.lstrip()}"]


def hidden_tests(item: Item) -> str | None:
    """Return the code that fails if an answer is wrong; None if the item has none.

    Read are HumanEval's `test` (with `entry_point`) and MBPP's `test_list` (with `test_setup_code`).
    """
    test, listed = item.metadata.get("test"), item.metadata.get("test_list")
    if isinstance(test, str) and test.strip():
        entry_point = item.metadata.get("entry_point")
        return f"{test}\n\ncheck({entry_point})\n" if entry_point and _defines(test, "check") else test
    if isinstance(listed, list) and listed:
        return "\n".join([str(item.metadata.get("test_setup_code") or ""), *map(str, listed)])
    return None
