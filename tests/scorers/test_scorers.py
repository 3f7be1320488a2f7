"""Scorers: properties that hold for any text, and known pitfalls. The contract is in `test_contract.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.errors import ConfigError, EnvironmentFailed, UnknownName
from paragent.scorers import SCORERS, Score, open_scorer
from paragent.scorers.text import contains, exact_match, f1, final_answer, final_number, normalised, same_number, words
from paragent.tasks import BenchmarkTask

TEXTS = st.text(max_size=60)
WORDS = st.lists(st.sampled_from(["red", "green", "blue", "no", "yes", "42", "x"]), min_size=1, max_size=8).map(
    " ".join
)


SOLUTION_OF_THOUSANDS = "He pays 17*125=<<17*125=2125>>2125 dollars.\n#### 2,125"


@pytest.fixture(scope="module", autouse=True)
def _math() -> Iterator[None]:
    """Share one scorer `math`: its child processes take a second to start."""
    with asyncio.Runner() as runner:
        SHARED.update(runner=runner, math=open_scorer("math"))
        yield
        runner.run(SHARED["math"].close())
        SHARED.clear()


SHARED: dict[str, Any] = {}
"""The event loop and the scorer `math` of the running module."""


def score(name: str, reference: Any, answer: str) -> float | None:
    if name != "math":
        return asyncio.run(_score(name, reference, answer)).value
    found: Score = SHARED["runner"].run(SHARED["math"].score(BenchmarkTask("a", "?", reference), answer))
    return found.value


async def _score(name: str, reference: Any, answer: str) -> Score:
    scorer = open_scorer(name)
    try:
        return await scorer.score(BenchmarkTask("a", "?", reference), answer)
    finally:
        await scorer.close()


# --- properties --------------------------------------------------------------------------------------------------------


@given(TEXTS, TEXTS)
def test_text_scores_are_between_0_and_1_and_consistent(answer: str, reference: str) -> None:
    exact, overlap, inside = (compare(answer, reference) for compare in (exact_match, f1, contains))
    assert exact in (0.0, 1.0)
    assert inside in (0.0, 1.0)
    assert 0.0 <= overlap <= 1.0
    assert overlap >= exact
    assert inside >= exact
    if not {*words(answer), *words(reference)} & {"a", "an", "the"}:
        assert f1(reference, answer) == overlap


@given(TEXTS)
def test_a_text_equals_itself(text: str) -> None:
    assert exact_match(text, text) == f1(text, text) == contains(text, text) == 1.0


@given(TEXTS | st.text("-.$15a (€_"))
def test_normalisation_is_idempotent(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)


@given(WORDS, WORDS, WORDS)
def test_a_sequence_of_whole_words_is_contained(before: str, reference: str, after: str) -> None:
    assert contains(f"{before} {reference} {after}", reference) == 1.0


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_printed_numbers_are_found(number: float) -> None:
    assert final_number(f"so it is {number}") == number
    assert same_number(f" {number}", f"{number} ")


@given(st.integers(-(10**12), 10**12))
def test_numbers_may_have_thousands_separators(number: int) -> None:
    assert final_number(f"about {number:,} in all") == number


@given(st.text(alphabet="ab{}\\$ \n:", max_size=40))
def test_every_text_has_a_final_answer(text: str) -> None:
    assert isinstance(final_answer(text), str)


# --- pitfalls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["A", "B", "(A)", "(B)"])
def test_an_option_that_is_an_article_is_compared_like_the_others(option: str) -> None:
    letter = option.strip("()")
    for answer in (f"({letter})", letter.lower(), f"{letter}.", f"Answer: ({letter})"):
        assert [score(name, option, answer) for name in ("exact_match", "contains", "f1")] == [1.0] * 3, answer
    sentence = f"So the answer is {letter}"
    assert [score(name, option, sentence) for name in ("exact_match", "contains", "f1")] == [0.0, 1.0, 0.4]
    for answer in ("(C)", "the", "This is a hard question: C", ""):
        assert [score(name, option, answer) for name in ("exact_match", "contains", "f1")] == [0.0] * 3, answer


@pytest.mark.parametrize("name", ["exact_match", "contains", "f1"])
def test_signs_and_decimal_points_count(name: str) -> None:
    for reference, other in (("-5", "5"), ("1.5", "15"), (".5", "5"), ("-$3", "$3")):
        assert score(name, reference, reference) == 1.0
        assert (score(name, reference, other), score(name, other, reference)) == (0.0, 0.0)
    for reference, same in (("-5", "(\N{MINUS SIGN}5)."), ("1.5", "1.5."), ("1,500", "1500"), ("covid-19", "COVID19")):
        assert score(name, reference, same) == 1.0


def test_articles_do_not_count_in_other_references() -> None:
    assert score("exact_match", "The Beatles", "a beatles") == 1.0
    assert score("exact_match", "the", "The") == 1.0
    assert score("exact_match", "?!", "?!") == 1.0
    assert score("contains", "a cat", "It is the cat.") == 1.0


def test_contains_compares_whole_words() -> None:
    assert score("contains", "no", "I do not know") == 0.0
    assert score("contains", "no", "The answer is: no.") == 1.0
    assert score("contains", "cat", "concatenate") == 0.0
    assert score("contains", "New York", "York is not New") == 0.0


def test_numeric_compares_the_last_number_only() -> None:
    assert score("numeric", "7", "7 times 6 is 42") == 0.0
    assert score("numeric", "42", "7 times 6 is 42.") == 1.0
    assert score("numeric", "42", "it is not 42\nAnswer: 41") == 0.0
    assert score("numeric", "100", "99.5") == 0.0
    assert score("numeric", "0.3333333", "1/3, that is 0.33333333") == 1.0
    assert score("numeric", "-5", "minus: -5") == 1.0
    assert score("numeric", "1e-3", "0.001") == 1.0
    assert score("numeric", "1234.5", "$1,234.50") == 1.0
    assert score("numeric", ["7", "42"], "42") == 1.0


@pytest.mark.parametrize("answer", ["7/15", "it is 7 / 15.", r"$\dfrac{7}{15}$", r"\boxed{\frac{7}{15}}", "0.46666667"])
def test_numeric_reads_a_fraction_as_one_number(answer: str) -> None:
    assert score("numeric", "#### 7/15", answer) == 1.0
    assert score("numeric", "#### 8/15", answer) == 0.0
    assert score("numeric", "15", answer) == 0.0


@pytest.mark.parametrize(
    ("reference", "answer", "wanted"),
    [
        (r"-\frac{7}{15}", "-7/15", 1.0),
        (r"-\frac{7}{15}", r"\boxed{-\frac{7}{15}}", 1.0),
        (r"-\frac{7}{15}", r"\frac{7}{15}", 0.0),
        (r"\frac{-7}{15}", r"-\frac{7}{15}", 1.0),
        (r"\frac13", "1/3", 1.0),
        (r"-\dfrac 13", r"\boxed{-\frac1{3}}", 1.0),
        (r"\frac{1}3", "13", 0.0),
        ("1 1/2", "1.5", 1.0),
        ("1 1/2", r"1\frac{1}{2}", 1.0),
        ("-2 1/4", "-2.25", 1.0),
        ("1 1/2", "0.5", 0.0),
        ("2024", "on 05/12/2024", 1.0),
        ("0", "7/0", 1.0),
        ("0.6", "3 of 3/5", 1.0),
        ("0.75", "Step 2\n\n3/4", 1.0),
    ],
)
def test_numeric_reads_signs_and_whole_numbers_of_fractions(reference: str, answer: str, wanted: float) -> None:
    assert score("numeric", reference, answer) == wanted


def test_numeric_has_no_score_without_a_number_in_the_reference() -> None:
    assert score("numeric", "none", "nothing") is None
    assert score("numeric", "3", "nothing") == 0.0


def test_f1_counts_repeated_words() -> None:
    assert f1("red red red", "red") == pytest.approx(0.5)
    assert f1("yes indeed it is", "yes") == 0.0
    assert f1("the Yes!", "yes") == 1.0


def test_only_the_final_answer_is_compared() -> None:
    assert score("exact_match", "Paris", "It is not Lyon.\n**Answer:** Paris") == 1.0
    assert score("exact_match", "Paris", r"thus \boxed{Paris}") == 1.0
    assert score("contains", "Lyon", "It is not Lyon.\nAnswer: Paris") == 0.0
    assert score("exact_match", ["NYC", "New York"], "new york.") == 1.0


def test_there_is_no_score_without_a_reference() -> None:
    for name in ("exact_match", "f1", "contains", "numeric", "math"):
        assert score(name, None, "x") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        ("5/6", r"so \boxed{\frac{5}{6}}", 1.0),
        (r"\frac{1}{2}", "Answer: 0.5", 1.0),
        ("x^2+1", "$1+x^2$", 1.0),
        (r"3\sqrt{2}", r"\boxed{3*sqrt(2)}", 1.0),
        (30.5, "The result is 30.5", 1.0),
        ("7", "the answer is 8", 0.0),
        ("3", "I do not know", 0.0),
        ("3", "", 0.0),
        ("12", r"\boxed{12", 0.0),
        (SOLUTION_OF_THOUSANDS, r"\boxed{2125}", 1.0),
        (SOLUTION_OF_THOUSANDS, r"\boxed{2}", 0.0),
        (SOLUTION_OF_THOUSANDS, r"\boxed{125}", 0.0),
        ("#### 0.50", r"\boxed{\frac12}", 1.0),
    ],
)
def test_math_compares_values(reference: Any, answer: str, expected: float) -> None:
    assert score("math", reference, answer) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ("A week has seven days.", "no number or formula was found in the answer"),
        ("", "no number or formula was found in the answer"),
        ("It has 5 days, or 6.", "the answer was read as 6"),
        (r"so \boxed{x^2+1}", "the answer was read as x^2+1"),
        ("Answer: 7", ""),
    ],
)
def test_math_notes_what_it_read_as_a_wrong_answer(answer: str, note: str) -> None:
    assert asyncio.run(_score("math", "7", answer)).note == note


SOLUTION = "Ann has 12 boxes of 6 eggs and breaks 2.\nShe has 12*6=<<12*6=72>>72 eggs.\n72-2=<<72-2=70>>70\n#### "
"""A reference in GSM8K's format: the worked solution, and the answer in the last line."""


@pytest.mark.parametrize("name", ["math", "numeric", "exact_match"])
@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        (SOLUTION + "70", r"\boxed{70}", 1.0),
        (SOLUTION + "70", "12*6=72, minus 2\n#### 70", 1.0),
        (SOLUTION + "70", SOLUTION + "70", 1.0),
        (SOLUTION + "70", r"\boxed{72}", 0.0),
        (SOLUTION + "70", "It is 70, or so\n#### 72\n", 0.0),
        (SOLUTION + "70", r"\boxed{2}", 0.0),
        (SOLUTION + "70", r"#### \boxed{70}", 1.0),
        (SOLUTION + "70", "#### **70**", 1.0),
        (SOLUTION + "70", "#### Step 1\n12*6=72\n#### Step 2\nAnswer: 70", 1.0),
        (SOLUTION + "-70", "#### -70", 1.0),
        (SOLUTION + "2,125", r"\boxed{2,125}", 1.0),
    ],
)
def test_only_the_last_line_of_a_gsm8k_reference_is_compared(
    name: str, reference: str, answer: str, expected: float
) -> None:
    assert score(name, reference, answer) == expected


@pytest.mark.slow
def test_math_works_outside_the_main_thread() -> None:
    """math-verify itself does not: its time limits use signals."""

    async def scenario() -> list[float | None]:
        in_thread = [await asyncio.to_thread(asyncio.run, _score("math", "1/2", "0.5")) for _ in range(2)]
        return [found.value for found in in_thread]

    assert asyncio.run(scenario()) == [1.0, 1.0]


@pytest.mark.slow
def test_math_scores_0_for_an_endless_computation() -> None:
    found = asyncio.run(_score("math", "5", r"\boxed{9^{9^{9^{9^{9}}}}}"))
    assert found.value == 0.0


# --- the judge ---------------------------------------------------------------------------------------------------------


class Replies:
    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = list(replies), list[Sequence[Mapping[str, Any]]]()

    async def __call__(self, messages: Sequence[Mapping[str, Any]]) -> str:
        self.asked.append(list(messages))
        return self.replies.pop(0)


def judge(*replies: str, answer: str = "It is Paris") -> tuple[Score, Replies]:
    model = Replies(*replies)
    task = BenchmarkTask("a", "What is the capital of France?", "Paris")
    return asyncio.run(open_scorer("llm_judge", ask=model).score(task, answer)), model


def test_the_judge_gets_question_references_and_answer() -> None:
    found, model = judge('{"reasoning": "same", "correct": true}')
    assert found == Score(1.0, "same")
    assert json.loads(model.asked[0][1]["content"]) == {
        "question": "What is the capital of France?",
        "references": ["Paris"],
        "answer": "It is Paris",
    }


def test_a_malformed_verdict_is_requested_again() -> None:
    found, model = judge("Correct!", '```json\n{"correct": false, "reasoning": "no"}\n```')
    assert found == Score(0.0, "no")
    assert len(model.asked) == 2


def test_a_missing_verdict_is_an_error_not_a_score_of_0() -> None:
    with pytest.raises(EnvironmentFailed, match="no verdict"):
        judge("Correct", "Incorrect", '{"correct": "yes"}')


def test_the_judge_gets_the_end_of_a_long_answer() -> None:
    _, model = judge('{"correct": true}', answer="so " * 20_000 + "it is Paris")
    shown = json.loads(model.asked[0][1]["content"])["answer"]
    assert shown.endswith("it is Paris")
    assert len(shown) == 20_000


def test_an_empty_answer_is_not_sent_to_the_judge() -> None:
    assert judge(answer=" ")[0].value == 0.0


# --- the registry ------------------------------------------------------------------------------------------------------


def test_every_registered_scorer_loads_and_has_its_name() -> None:
    for name in SCORERS.names():
        assert SCORERS.load(name).name == name
    assert set(SCORERS.names()) >= {"exact_match", "f1", "contains", "numeric", "math", "llm_judge"}


def test_wrong_names_are_rejected() -> None:
    with pytest.raises(UnknownName, match="exact_match"):
        open_scorer("exactmatch")
    with pytest.raises(ConfigError, match="--judge-model"):
        open_scorer("llm_judge")
    with pytest.raises(ConfigError, match="not a scorer"):
        open_scorer("paragent.tasks:BenchmarkTask")
    with pytest.raises(ConfigError, match="nowhere:Scorer: there is no module 'nowhere'"):
        open_scorer("nowhere:Scorer")
