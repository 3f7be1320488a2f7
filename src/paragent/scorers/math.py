"""Mathematical equality by math-verify, in helper processes.

math-verify limits itself with signals, which work only in the main thread of a process; and its limits do not hold against
everything that a model writes. So it runs in the main thread of a helper that is killed when it takes too long.
"""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import math_verify

from paragent._internal.registry import require
from paragent.scorers.base import Score, Scorer
from paragent.scorers.text import final_answer
from paragent.subprocesses import CallFailed, SubprocessPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paragent.scorers.base import Ask
    from paragent.tasks import BenchmarkTask

__all__ = ["Mathematics", "equal"]


require("math_verify")

_LIMIT = 20.0
"""Seconds for one comparison; math-verify's own limits are 5 s for each of two texts and 5 s for comparing them."""
_LONGEST = 20_000
"""Characters of an answer that are looked at, from its end, where the final answer stands."""


class Mathematics(Scorer):
    """Whether the final answer equals a reference as mathematics: 1/2, 0.5 and \\frac{1}{2} are the same."""

    name = "math"

    def __init__(self, ask: Ask | None = None) -> None:
        super().__init__(ask)
        self._helpers = SubprocessPool("paragent.scorers.math")

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Mathematics]:
        """Open the metric for the length of a `with`."""
        metric = cls()
        try:
            yield metric
        finally:
            await metric.close()

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        if not task.references:
            return Score(None, "the task has no reference answer")
        try:
            equal = await self._helpers.call("equal", list(task.references), answer[-_LONGEST:], limit=_LIMIT)
        except CallFailed as error:
            return Score(0.0, f"the answer cannot be compared: {error}")
        return Score(float(equal))

    async def close(self) -> None:
        await self._helpers.close()


logging.getLogger("math_verify").setLevel(logging.CRITICAL)
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{3,}\b.*\s|\n")
"""Words that are no commands of LaTeX, with something after them."""


def equal(references: list[str], answer: str) -> bool:
    """Return whether the final answer in a message equals one of the references."""
    final = final_answer(answer)
    if final in references:
        return True
    ours = _parsed(final, answer)
    return any(math_verify.verify(_parsed(final_answer(one), one), ours) for one in references)


def _parsed(final: str, message: str) -> Any:
    """Return what stands there as mathematics: the final answer if it is a formula, else the last formula of the message."""
    formula = "$" + final.strip("$") + "$"
    return math_verify.parse(message if _PROSE.search(final) else formula) or math_verify.parse(formula)
