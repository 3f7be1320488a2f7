"""The likeness of texts: by hand, by the table that everybody knows, and by the library that published scores used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz

from paragent.osworld.evaluators.metrics.matching import common_length, ratio

words = st.text(alphabet="abé ", max_size=24)


def by_table(first: str, second: str) -> int:
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@settings(deadline=None)
@given(words, words)
def test_the_longest_common_subsequence_is_found(first: str, second: str) -> None:
    assert common_length(first, second) == by_table(first, second)


@settings(deadline=None)
@given(words, words)
def test_the_ratio_equals_published_scores(first: str, second: str) -> None:
    own = 1.0 if not first and not second else 2 * common_length(first, second) / (len(first) + len(second))
    assert own == pytest.approx(fuzz.ratio(first, second) / 100)
    assert ratio(first, second) == pytest.approx(own)


def test_none_has_similarity_0_and_empty_texts_have_1() -> None:
    assert ratio(None, "a") == ratio("a", None) == 0.0
    assert ratio("", "") == 1.0
    assert ratio("", "a") == 0.0
    assert ratio("kitten sitting", "sitting kitten") == pytest.approx(0.6428571428571428)
