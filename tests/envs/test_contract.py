"""The environment contract for every environment."""

from __future__ import annotations

import pytest

from paragent.demo.samples import sample_options
from paragent.tasks import BenchmarkTask
from paragent.testing import EnvironmentContract

BODY = "def double(x):\n    return x * 2"


@pytest.mark.slow
class TestMath(EnvironmentContract):
    environment = "math"
    task = BenchmarkTask("a", "What is 1/2 + 1/3?", "5/6")
    right, wrong = r"So it is \boxed{\frac{5}{6}}.", r"\boxed{\frac{6}{5}}"
    good_call = ("calculator", {"expression": "1/2 + 1/3"})


class TestPy(EnvironmentContract):
    environment = "py"
    task = BenchmarkTask(
        "a", "Write double(x).", None, {"test_list": ["assert double(2) == 4", "assert double('a') == 'aa'"]}
    )
    right, wrong = f"```python\n{BODY}\n```", "```python\ndef double(x):\n    return x + 2\n```"
    good_call = ("python", {"code": "print(1 + 1)"})


class TestPyWithoutSandbox(TestPy):
    options = {"sandbox": "none"}  # noqa: RUF012 - the suite's own annotation makes it a class variable


class TestRag(EnvironmentContract):
    environment = "rag"
    options = sample_options("rag")
    task = BenchmarkTask(
        "a", "On which island did the Lighthouse of Alexandria stand?", "Pharos", {"documents": ["lighthouse"]}
    )
    right, wrong = "See [lighthouse].\nAnswer: Pharos", "Answer: Rhodes"
    good_call = ("search", {"query": "Lighthouse of Alexandria"})


@pytest.mark.browser
class TestWeb(EnvironmentContract):
    environment = "web"
    options = sample_options("web")
    task = BenchmarkTask(
        "a", "When does the ferry to Seal Rock depart?", "11:15", {"start_url": "http://site.test/ferry.html"}
    )
    right, wrong = "It departs at 11:15.", "Answer: 08:40"
    good_call = ("open", {"url": "http://site.test/ferry.html"})
