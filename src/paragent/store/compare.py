"""Two runs over the same tasks, paired: how much better is the second, and how sure is that. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Comparison", "Z", "compare"]

Z = 1.959964
"""Standard errors on either side of the mean for 95 %."""
_CHANGE = 1e-9


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two runs, task by task."""

    pairs: int
    mean_a: float
    mean_b: float
    difference: float
    """Of the means over the common tasks: B minus A."""
    interval: tuple[float, float] | None
    """95 %, from the paired differences; None with fewer than two tasks."""
    better: list[tuple[str, float, float]]
    worse: list[tuple[str, float, float]]
    only_a: int
    only_b: int


def compare(a: Mapping[str, float], b: Mapping[str, float]) -> Comparison | None:
    """Compare the mean score of each task in two runs; None if they have no task in common."""
    common = sorted(a.keys() & b.keys())
    if not common:
        return None
    count = len(common)
    differences = [b[task] - a[task] for task in common]
    mean = sum(differences) / count
    interval = None
    if count > 1:
        error = math.sqrt(sum((one - mean) ** 2 for one in differences) / (count - 1) / count)
        interval = (mean - Z * error, mean + Z * error)
    changed = [(task, a[task], b[task]) for task in common if abs(a[task] - b[task]) > _CHANGE]
    return Comparison(
        pairs=count,
        mean_a=sum(a[task] for task in common) / count,
        mean_b=sum(b[task] for task in common) / count,
        difference=mean,
        interval=interval,
        better=[one for one in changed if one[2] > one[1]],
        worse=[one for one in changed if one[2] < one[1]],
        only_a=len(a) - count,
        only_b=len(b) - count,
    )
