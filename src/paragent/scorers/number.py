"""Metrics that compare numbers: the final one, not any that happens to stand there."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from paragent.scorers.base import Score, Scorer
from paragent.scorers.text import final_answer

if TYPE_CHECKING:
    from paragent.tasks import BenchmarkTask

__all__ = ["Numeric", "final_number", "same_number"]

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?(?:\.\d+|(?<=\d)\.?)(?:e[-+]?\d+)?(?![\d])", re.IGNORECASE
)
TOLERANCE = 1e-6
"""Relative, and absolute near 0: what is left of a number that was printed with seven digits."""


def final_number(text: str) -> float | None:
    """Return the last number of a text's final answer; None if it has none."""
    found = [match[0] for match in _NUMBER.finditer(final_answer(text)) if any(map(str.isdigit, match[0]))]
    return float(found[-1].replace(",", "")) if found else None


def same_number(answer: str, reference: str) -> bool:
    """Return whether both are one number each, nothing else, and the same within the tolerance."""
    try:
        ours, theirs = (float(text.strip().replace(",", "")) for text in (answer, reference))
    except ValueError:
        return False
    return close(ours, theirs)


def close(ours: float, theirs: float) -> bool:
    """Return whether two numbers are the same within the tolerance."""
    return math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


class Numeric(Scorer):
    """Whether the final number of the answer is that of a reference, within 1e-6."""

    name = "numeric"

    async def score(self, item: BenchmarkTask, answer: str) -> Score:
        expected = [number for one in item.references if (number := final_number(one)) is not None]
        if not expected:
            return Score(None, "the reference has no number")
        ours = final_number(answer)
        if ours is None:
            return Score(0.0, "the answer has no number")
        return Score(float(any(close(ours, theirs) for theirs in expected)), f"the final number is {ours:g}")
