"""How alike two texts are, by their longest common subsequence; what OSWorld calls a fuzzy ratio.

It is computed here, for the core has no dependency for it, and by rapidfuzz where that is installed: a book of a million
letters against another takes ten seconds there and minutes here. Both give the same number.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["common_length", "ratio"]


def ratio(first: str | None, second: str | None) -> float:
    """Return twice the length of the longest common subsequence over the lengths of both, from 0 to 1.

    It is the normalised indel similarity, which published scores use. Two empty texts are alike, and None is like nothing.
    """
    if first is None or second is None:
        return 0.0
    if not first and not second:
        return 1.0
    return 2 * _common_length()(first, second) / (len(first) + len(second))


@cache
def _common_length() -> Callable[[str, str], int]:
    """Return the function that tells the length of the longest common subsequence of two texts."""
    try:
        from rapidfuzz.distance import LCSseq
    except ModuleNotFoundError:
        return common_length
    return LCSseq.similarity


def common_length(first: str, second: str) -> int:
    """Return the length of the longest common subsequence."""
    ends = _common_prefix(first, second)
    first, second = first[ends:], second[ends:]
    tail = _common_prefix(first[::-1], second[::-1])
    first, second = first[: len(first) - tail], second[: len(second) - tail]
    return ends + tail + _common_bits(first, second)


def _common_prefix(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _common_bits(first: str, second: str) -> int:
    """Return the same, a row of the usual table at a time: each row is the bits of one large number (Hyyrö 2004)."""
    if not first or not second:
        return 0
    places: dict[str, int] = {}
    for place, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << place
    full = (1 << len(first)) - 1
    row = full
    for letter in second:
        matches = row & places.get(letter, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(first) - row.bit_count()
