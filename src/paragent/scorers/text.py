"""Scorers that compare text or the final number: exact match, F1, containment, numeric equality."""

from __future__ import annotations

import itertools
import math
import re
import string
from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

from paragent.scorers.base import Score, Scorer

if TYPE_CHECKING:
    from paragent.tasks import BenchmarkTask

__all__ = [
    "F1",
    "Contains",
    "ExactMatch",
    "Numeric",
    "contains",
    "exact_match",
    "f1",
    "final_answer",
    "final_number",
    "normalised",
    "same_number",
    "words",
]

_MARKED = re.compile(
    r"(?:^|\n)[ \t>*_#-]*(?:the[ ]+)?(?:final[ ]+)?answer[ \t*_]*(?:is|:)[ \t*_:]*+(?=[^\n]*\S)(?P<answer>[^\n]*+)",
    re.IGNORECASE,
)
_AFTER_HASHES = re.compile(r"(?:^|\n)[ \t]*####[ \t]*(?P<answer>\S[^\n]*+)\s*+\Z")
"""GSM8K's convention: the last line is `#### 72`. In other lines, four hashes are a Markdown heading."""
_ARTICLE_WORDS = frozenset({"a", "an", "the"})
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SIGN = r"-(?=[€£]?\.?\d)"
_NUMBER_BEGINS = re.compile(rf"(?<!\w){_SIGN}|(?<![\w.-])\.(?=\d)")
"""The sign of a number, or the decimal point of one without a digit before it."""
_PUNCTUATION = re.compile(
    rf"(?!(?<!\S){_SIGN}|(?:(?<!\S)|(?<=\d)|(?<=\s-)|(?<=^-))\.(?=\d))[{re.escape(string.punctuation)}]"
)
"""Punctuation without signs and decimal points of numbers."""


def final_answer(message: str) -> str:
    r"""Return the final answer in a message.

    The first of these that exists: the text after `####` in the last line, the content of the last `\boxed{...}`, the last line
    `Answer: ...`, the whole message.
    """
    if found := _AFTER_HASHES.search(message):
        return _boxed_or_all(found["answer"])
    if (boxed := _last_boxed(message)) is not None:
        return boxed
    marked = [found["answer"] for found in _MARKED.finditer(message)]
    return _boxed_or_all(marked[-1]) if marked else message.strip()


def _boxed_or_all(text: str) -> str:
    boxed = _last_boxed(text)
    return text.strip().strip("*_").strip() if boxed is None else boxed


def _last_boxed(message: str) -> str | None:
    start = message.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for at in range(begin - 1, len(message)):
        depth += {"{": 1, "}": -1}.get(message[at], 0)
        if depth == 0:
            return message[begin:at].strip()
    return None


def normalised(text: str) -> str:
    """Return a text in lower case without punctuation, articles and extra spaces, as SQuAD's evaluation script does.

    Different from there, numbers keep sign and decimal point, and a text of articles only, such as the option "A", keeps them.
    """
    plain = _without_punctuation(text.lower())
    return " ".join(_ARTICLES.sub(" ", plain).split()) or " ".join(plain.split())


def _without_punctuation(text: str) -> str:
    plain = text.replace("\N{MINUS SIGN}", "-").replace("$", "")  # so that "-$5" has a sign
    return _PUNCTUATION.sub("", _NUMBER_BEGINS.sub(r" \g<0>", plain))


def words(text: str) -> list[str]:
    """Return the words of a normalised text."""
    return normalised(text).split()


def _compared_words(answer: str, reference: str) -> tuple[list[str], list[str]]:
    """Return the words of both texts.

    If the reference is an article, such as the option "A", the answer keeps that word where it is written like that: "The
    answer is A" has the option, "a cat" has not.
    """
    theirs = words(reference)
    if not set(theirs) <= _ARTICLE_WORDS:
        return words(answer), theirs
    options = _without_punctuation(reference).split()
    kept = [word for word in _without_punctuation(answer).split() if word in options or not _is_article(word)]
    return [word.lower() for word in kept] or words(answer), theirs


def _is_article(word: str) -> bool:
    return word.lower() in _ARTICLE_WORDS


def exact_match(answer: str, reference: str) -> float:
    """Return 1.0 if both texts are equal after normalisation, otherwise 0.0.

    If both are empty after normalisation ("?!"), the original texts are compared.
    """
    ours, theirs = _compared_words(answer, reference)
    if not ours and not theirs:
        return float(answer.strip() == reference.strip())
    return float(ours == theirs)


def f1(answer: str, reference: str) -> float:
    """Return the F1 score of the words that both texts share, counting repetitions.

    "yes", "no" and "noanswer" must match exactly: a long answer that contains a "no" gets no partial score.
    """
    if {normalised(answer), normalised(reference)} & {"yes", "no", "noanswer"}:
        return exact_match(answer, reference)
    ours, theirs = _compared_words(answer, reference)
    if not ours or not theirs:
        return exact_match(answer, reference)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def contains(answer: str, reference: str) -> float:
    """Return 1.0 if the answer contains the words of the reference as a consecutive sequence, otherwise 0.0."""
    ours, theirs = _compared_words(answer, reference)
    if not theirs:
        return exact_match(answer, reference)
    spans = (ours[at : at + len(theirs)] for at in range(len(ours) - len(theirs) + 1))
    return float(theirs in spans)


class _TextScorer(Scorer):
    """Compares the final answer with each reference; the best score counts."""

    needs_reference = True

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        if not task.references:
            return Score(None, "the task has no reference answer")
        final = final_answer(answer)
        return Score(max(self.compare(final, final_answer(reference)) for reference in task.references))

    @abstractmethod
    def compare(self, answer: str, reference: str) -> float:
        """Return the score of an answer for one reference."""


class ExactMatch(_TextScorer):
    """Scores 1 if the final answer equals a reference after normalisation."""

    name = "exact_match"

    def compare(self, answer: str, reference: str) -> float:
        return exact_match(answer, reference)


class F1(_TextScorer):
    """Scores the overlap of words between the final answer and a reference."""

    name = "f1"

    def compare(self, answer: str, reference: str) -> float:
        return f1(answer, reference)


class Contains(_TextScorer):
    """Scores 1 if the final answer contains a reference, in whole words."""

    name = "contains"

    def compare(self, answer: str, reference: str) -> float:
        return contains(answer, reference)


# --- numbers ----------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?(?:\.\d+|(?<=\d)\.?)(?:e[-+]?\d+)?(?![\d])", re.IGNORECASE
)
_LATEX_FRACTION = re.compile(r"([-+]?)\\[cdt]?frac *(?:\{([^{}]*)\}|(\d)) *(?:\{([^{}]*)\}|(\d))")
"""TeX reads `\frac13` as 1/3: an argument without braces is one digit."""
_LONGEST = 2_000
"""Characters of a final answer in which the last number is searched; the time grows with the square of this."""
_TOLERANCE = 1e-6
"""Relative, and absolute near 0: the precision of a number that was printed with seven digits."""


def final_number(text: str) -> float | None:
    r"""Return the last number in the final answer of a text, or None; each of `7/15`, `-\frac{7}{15}` and `2 7/15` is one."""
    answer = _LATEX_FRACTION.sub(r" \1\2\3/\4\5 ", final_answer(text)[-_LONGEST:])
    found = [match for match in _NUMBER.finditer(answer) if any(map(str.isdigit, match[0]))]
    numbers = [_float(match[0]) for match in found]
    gaps = [answer[one.end() : other.start()].strip(" ") for one, other in itertools.pairwise(found)]
    if gaps[-1:] != ["/"] or gaps[-2:-1] == ["/"] or not numbers[-1]:  # dates have two slashes
        return numbers[-1] if numbers else None
    fraction = numbers[-2] / numbers[-1]
    if gaps[-2:-1] == [""] and numbers[-3].is_integer() and 0 < fraction < 1:
        return numbers[-3] + math.copysign(fraction, numbers[-3])
    return fraction


def _float(digits: str) -> float:
    return float(digits.replace(",", ""))


def same_number(answer: str, reference: str) -> bool:
    """Return whether both texts are a single number each, equal within the tolerance."""
    try:
        ours, theirs = (float(text.strip().replace(",", "")) for text in (answer, reference))
    except ValueError:
        return False
    return _nearly_equal(ours, theirs)


def _nearly_equal(ours: float, theirs: float) -> bool:
    return math.isclose(ours, theirs, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


class Numeric(Scorer):
    """Scores 1 if the last number of the final answer equals that of a reference, within 1e-6."""

    name = "numeric"
    needs_reference = True

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        expected = [number for one in task.references if (number := final_number(one)) is not None]
        if not expected:
            return Score(None, "the reference has no number")
        ours = final_number(answer)
        if ours is None:
            return Score(0.0, "the answer has no number")
        return Score(float(any(_nearly_equal(ours, theirs) for theirs in expected)), f"the final number is {ours:g}")
