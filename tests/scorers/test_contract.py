"""The scorer contract for every scorer, and for a scorer as a third party would write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from paragent.scorers import SCORERS, Score, Scorer
from paragent.tasks import BenchmarkTask
from paragent.testing import ScorerContract


class TestContains(ScorerContract):
    scorer = "contains"
    task = BenchmarkTask("a", "What is the capital of France?", "Paris")
    right, wrong = "It is Paris, of course.", "It is Lyon."


class TestExactMatch(TestContains):
    scorer = "exact_match"
    right = "Answer: Paris"


class TestF1(TestExactMatch):
    scorer = "f1"
    wrong = "Answer: Lyon"


class TestNumeric(ScorerContract):
    scorer = "numeric"
    task = BenchmarkTask("a", "How many?", "72")
    right, wrong = "There are 72.", "There are 71."


@pytest.mark.slow
class TestMath(ScorerContract):
    scorer = "math"
    task = BenchmarkTask("a", "What is 1/2 + 1/3?", "5/6")
    right, wrong = r"\boxed{\frac{5}{6}}", r"\boxed{\frac{6}{5}}"


class TestJudge(TestContains):
    scorer = "llm_judge"

    async def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        case = json.loads(messages[1]["content"])
        return json.dumps({"correct": any(reference in case["answer"] for reference in case["references"])})


class FirstLetter(Scorer):
    """The smallest scorer: compares the first letters."""

    name = "first_letter"

    async def score(self, task: BenchmarkTask, answer: str) -> Score:
        if not task.references:
            return Score(None)
        return Score(float(any(answer[:1] == one[:1] for one in task.references)))


class TestThirdParty(ScorerContract):
    scorer = f"{__name__}:FirstLetter"
    task = BenchmarkTask("a", "What is the capital of France?", "Paris")
    right, wrong = "Paris", "Lyon"


def test_every_registered_scorer_is_tested() -> None:
    suites = [one for one in globals().values() if isinstance(one, type) and issubclass(one, ScorerContract)]
    tested = {suite.scorer for suite in suites if suite is not ScorerContract}
    assert set(SCORERS.implementations) <= tested
