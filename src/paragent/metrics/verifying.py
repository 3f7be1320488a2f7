"""The far side of the metric `math`: runs in the main thread of a helper process, nowhere else."""

from __future__ import annotations

import logging
import re
from typing import Any

import math_verify

from paragent.metrics.text import final_answer

__all__ = ["equal"]

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
