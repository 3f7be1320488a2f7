"""The scorer `math`: mathematical equality by math-verify, in child processes.

math-verify limits its own time with signals, which only work in the main thread of a process, and some answers of models get
around its limits. So it runs in the main thread of a child process that is killed when it takes too long.
"""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require
from paragent.scorers.base import Score, Scorer
from paragent.scorers.text import final_answer
from paragent.subprocesses import CallFailed, SubprocessPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paragent.scorers.base import Ask
    from paragent.tasks import BenchmarkTask

__all__ = ["Mathematics", "compare", "load"]

require("math_verify")

_LIMIT = 20.0
"""Seconds for one comparison; math-verify's own limits are 5 s to parse each of two texts and 5 s to compare them."""
_LONGEST = 20_000
"""Characters of an answer that are compared, from its end, where the final answer is."""


class Mathematics(Scorer):
    """Scores 1 if the final answer is mathematically equal to a reference: 1/2, 0.5 and \\frac{1}{2} are equal."""

    name = "math"
    needs_reference = True

    def __init__(self, ask: Ask | None = None) -> None:
        super().__init__(ask)
        self._children = SubprocessPool("paragent.scorers.math", start="load")

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Mathematics]:
        """Run the scorer as a context manager."""
        scorer = cls()
        try:
            yield scorer
        finally:
            await scorer.close()

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        if not task.references:
            return Score(None, "the task has no reference answer")
        try:
            value, note = await self._children.call("compare", list(task.references), answer[-_LONGEST:], limit=_LIMIT)
        except CallFailed as error:
            return Score(0.0, f"the answer cannot be compared: {error}")
        return Score(value, note)

    async def close(self) -> None:
        await self._children.close()


# --- in the child process -------------------------------------------------------------------------------------------------

_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{3,}\b.*\s|\n")
"""Words other than LaTeX commands, with something after them."""
_NOTED = 200
"""Characters of an answer in the note of its score."""


def load() -> None:
    """Import math-verify when the child starts. It loads sympy, which takes a second and no other process needs.

    It loads more with the first formula. Its own limit of 5 s to parse a formula must not include that, which takes longer if
    Python has to compile the files.
    """
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    half = math_verify.parse(r"$\frac{1}{2}$", parsing_timeout=None)
    math_verify.verify(half, half, timeout_seconds=None)


def compare(references: list[str], answer: str) -> tuple[float, str]:
    """Return 1 if the final answer in a message equals one of the references, otherwise 0 and what was read as the answer."""
    import math_verify

    final = final_answer(answer)
    if final in references:
        return 1.0, ""
    ours = _parse(final, answer)
    if any(math_verify.verify(_parse(final_answer(one), one), ours) for one in references):
        return 1.0, ""
    if all(isinstance(one, str) for one in ours):  # math-verify returns a text that is no formula as it is
        return 0.0, "no number or formula was found in the answer"
    return 0.0, f"the answer was read as {str(ours[-1])[:_NOTED]}"


def _parse(final: str, message: str) -> Any:
    """Parse the final answer if it is a formula, otherwise the last formula of the message."""
    import math_verify

    formula = "$" + final.strip("$") + "$"
    return math_verify.parse(message if _PROSE.search(final) else formula) or math_verify.parse(formula)
