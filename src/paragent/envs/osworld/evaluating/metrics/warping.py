"""One sequence stretched to fit another: FastDTW (Salvador and Chan 2007) with a radius of one.

A coarse pair of sequences, half as long, is fitted first; the fine ones are fitted only near that path, so that time and
memory grow with the length and not with its square.
"""

from __future__ import annotations

from typing import Any

from paragent._plugins import require

__all__ = ["warp"]

require("numpy")
_RADIUS = 1
Path = list[tuple[int, int]]


def warp(first: Any, second: Any) -> tuple[float, int]:
    """Return the sum of the cosine distances along the best path through two sequences of vectors, and its length."""
    distance, path = _fit(first, second)
    return distance, len(path)


def _fit(first: Any, second: Any) -> tuple[float, Path]:
    if min(len(first), len(second)) < _RADIUS + 2:
        whole = [(0, len(second) - 1)] * len(first)
        return _best(first, second, whole)
    _, coarse = _fit(_halved(first), _halved(second))
    return _best(first, second, _near(coarse, len(first), len(second)))


def _halved(vectors: Any) -> Any:
    even = len(vectors) // 2 * 2
    return (vectors[0:even:2] + vectors[1:even:2]) / 2


def _near(path: Path, rows: int, columns: int) -> list[tuple[int, int]]:
    """Return which columns of each row are near the path of the halved sequences."""
    low, high = [columns] * (rows + 4), [-1] * (rows + 4)
    for row, column in path:
        left, right = 2 * (column - _RADIUS), 2 * (column + _RADIUS) + 1
        for near in range(max(2 * (row - _RADIUS), 0), min(2 * (row + _RADIUS) + 2, rows)):
            low[near], high[near] = min(low[near], left), max(high[near], right)
    return [(max(low[row], 0), min(high[row], columns - 1)) for row in range(rows)]


def _best(first: Any, second: Any, near: list[tuple[int, int]]) -> tuple[float, Path]:
    """Return the cheapest path that stays within the columns of each row, and what it costs."""
    import numpy as np

    first, second = _units(first), _units(second)
    infinite = float("inf")
    before: list[float] = []
    before_low = 0
    steps: list[list[int]] = []
    for row, (low, high) in enumerate(near):
        costs = np.clip(1 - second[low : high + 1] @ first[row], 0, 2).tolist()
        line: list[float] = []
        step: list[int] = []
        for place, cost in enumerate(costs):
            at = low + place - before_low
            up = before[at] if 0 <= at < len(before) else infinite
            left = line[-1] if line else infinite
            corner = before[at - 1] if 0 < at <= len(before) else infinite
            if row == 0 and low + place == 0:
                corner = 0.0
            best = min(up, left, corner)
            step.append(0 if best == up else 1 if best == left else 2)
            line.append(best + cost)
        before, before_low = line, low
        steps.append(step)
    return before[-1], _walked(steps, near)


def _units(vectors: Any) -> Any:
    """Return vectors of length one; what has no length stays as it is, and is far from everything."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def _walked(steps: list[list[int]], near: list[tuple[int, int]]) -> Path:
    """Return the path from the beginning to the end, by the step that led to each place."""
    row, column = len(steps) - 1, near[-1][1]
    path = []
    while row >= 0 and column >= 0:
        path.append((row, column))
        step = steps[row][column - near[row][0]]
        row, column = row - (step != 1), column - (step != 0)
    return path[::-1]
