"""The environment contract on every environment."""

from __future__ import annotations

from typing import Any

import pytest

from paragent.demo.samples import sample_options
from paragent.machines import Machine
from paragent.tasks import BenchmarkTask
from paragent.testing import EnvironmentContract

BODY = "def double(x):\n    return x * 2"


class TestMath(EnvironmentContract):
    environment = "math"
    item = BenchmarkTask("a", "What is 1/2 + 1/3?", "5/6")
    right, wrong = r"So it is \boxed{\frac{5}{6}}.", r"\boxed{\frac{6}{5}}"
    a_call = ("calculator", {"expression": "1/2 + 1/3"})


class TestPy(EnvironmentContract):
    environment = "py"
    item = BenchmarkTask(
        "a", "Write double(x).", None, {"test_list": ["assert double(2) == 4", "assert double('a') == 'aa'"]}
    )
    right, wrong = f"```python\n{BODY}\n```", "```python\ndef double(x):\n    return x + 2\n```"
    a_call = ("python", {"code": "print(1 + 1)"})


class TestPyWithoutSandbox(TestPy):
    options = {"sandbox": "none"}  # noqa: RUF012 - the suite's own annotation makes it a class variable


class TestRag(EnvironmentContract):
    environment = "rag"
    options = sample_options("rag")
    item = BenchmarkTask(
        "a", "On which island did the Lighthouse of Alexandria stand?", "Pharos", {"documents": ["lighthouse"]}
    )
    right, wrong = "See [lighthouse].\nAnswer: Pharos", "Answer: Rhodes"
    a_call = ("search", {"query": "Lighthouse of Alexandria"})


class TestWeb(EnvironmentContract):
    environment = "web"
    options = sample_options("web")
    item = BenchmarkTask(
        "a", "When does the ferry to Seal Rock depart?", "11:15", {"start_url": "http://site.test/ferry.html"}
    )
    right, wrong = "It departs at 11:15.", "Answer: 08:40"
    a_call = ("open", {"url": "http://site.test/ferry.html"})


class TestOSWorld(EnvironmentContract):
    """On a real desktop, which the attempts share: the call of the suite leaves it as it is."""

    environment = "osworld"
    options = {"observation_type": "screenshot_a11y_tree", "pause": 0.2}  # noqa: RUF012 - as above
    item = BenchmarkTask("a", "Play the song in Spotify.", None, {"evaluator": {"func": "infeasible"}})
    right, wrong = "FAIL", "DONE"
    a_call = ("computer", {"action_type": "MOVE_TO", "x": 600, "y": 390})

    @pytest.fixture(autouse=True)
    def _desktop(self, shared_desktop: Machine) -> None:
        self._machine = shared_desktop

    def machine(self) -> Any:
        return self._machine


class TestOSWorldInPython(TestOSWorld):
    options = {"action_space": "pyautogui", "observation_type": "screenshot", "pause": 0.2}  # noqa: RUF012 - as above
    a_call = ("pyautogui", {"command": "pyautogui.moveTo(600, 390)"})
