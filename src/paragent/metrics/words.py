"""Metrics that compare words: exact match, F1, containment."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

from paragent.metrics.base import Metric, Score
from paragent.metrics.text import final_answer, normalised, words

if TYPE_CHECKING:
    from paragent.tasks import Item

__all__ = ["F1", "Contains", "ExactMatch", "contains", "exact_match", "f1"]


def exact_match(answer: str, reference: str) -> float:
    """Return 1.0 if both texts are the same after normalisation.

    Texts that normalise to nothing ("the", "?!") are compared as they are.
    """
    ours, theirs = normalised(answer), normalised(reference)
    if not ours and not theirs:
        return float(answer.strip() == reference.strip())
    return float(ours == theirs)


def f1(answer: str, reference: str) -> float:
    """Return the F1 of the words that both have, counted as often as they stand there.

    "yes", "no" and "noanswer" are right or wrong as a whole: an essay that has a "no" in it does not half say no.
    """
    if {normalised(answer), normalised(reference)} & {"yes", "no", "noanswer"}:
        return exact_match(answer, reference)
    ours, theirs = words(answer), words(reference)
    if not ours or not theirs:
        return exact_match(answer, reference)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def contains(answer: str, reference: str) -> float:
    """Return 1.0 if the words of the reference stand in the answer, whole and side by side."""
    ours, theirs = words(answer), words(reference)
    if not theirs:
        return exact_match(answer, reference)
    spans = (ours[at : at + len(theirs)] for at in range(len(ours) - len(theirs) + 1))
    return float(theirs in spans)


class _Compared(Metric):
    """The best score over all references, of what the message calls its answer."""

    async def score(self, item: Item, answer: str) -> Score:
        if not item.references:
            return Score(None, "the item has no reference answer")
        final = final_answer(answer)
        return Score(max(self.compare(final, final_answer(reference)) for reference in item.references))

    @abstractmethod
    def compare(self, answer: str, reference: str) -> float:
        """Compare two texts."""


class ExactMatch(_Compared):
    """Equal after normalisation."""

    name = "exact_match"

    def compare(self, answer: str, reference: str) -> float:
        return exact_match(answer, reference)


class F1(_Compared):
    """The overlap of words."""

    name = "f1"

    def compare(self, answer: str, reference: str) -> float:
        return f1(answer, reference)


class Contains(_Compared):
    """The reference stands in the answer, in whole words."""

    name = "contains"

    def compare(self, answer: str, reference: str) -> float:
        return contains(answer, reference)
