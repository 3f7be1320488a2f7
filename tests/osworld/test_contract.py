"""The environment contract on `osworld`, in both action spaces."""

from __future__ import annotations

from typing import Any

import pytest

from paragent.machines import Machine
from paragent.tasks import BenchmarkTask
from paragent.testing import EnvironmentContract


class TestOSWorld(EnvironmentContract):
    """All attempts share one desktop; the tool call of the suite does not change it."""

    environment = "osworld"
    options = {"observation_type": "screenshot_a11y_tree", "pause": 0.2}  # noqa: RUF012 - the suite's annotation makes it a class variable
    task = BenchmarkTask("a", "Play the song in Spotify.", None, {"evaluator": {"func": "infeasible"}})
    right, wrong = "FAIL", "DONE"
    good_call = ("computer", {"action_type": "MOVE_TO", "x": 600, "y": 390})

    @pytest.fixture(autouse=True)
    def _desktop(self, shared_desktop: Machine) -> None:
        self._machine = shared_desktop

    def machine(self) -> Any:
        return self._machine


class TestOSWorldInPython(TestOSWorld):
    options = {"action_space": "pyautogui", "observation_type": "screenshot", "pause": 0.2}  # noqa: RUF012 - the suite's annotation makes it a class variable
    good_call = ("pyautogui", {"command": "pyautogui.moveTo(600, 390)"})
