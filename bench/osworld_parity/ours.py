"""Run cases with paragent's metrics, in this process."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from paragent.osworld.evaluators.registry import score

if TYPE_CHECKING:
    from bench.osworld_parity.cases.case import Case


def score_of(case: Case) -> float | str:
    """Return the score of paragent's metric, as an evaluation counts it, or the name of its exception."""
    try:
        found = score(case.metric, copy.deepcopy(case.arguments), case.options)
    except Exception as error:  # noqa: BLE001 - the evaluator has such a boundary around every metric
        return type(error).__name__
    return 0.0 if math.isnan(found) else min(max(found, 0.0), 1.0)
