"""The adapter for agents of OSWorld's runner: their arguments, their predictions and the end of the rollout."""

from __future__ import annotations

import json
import logging
import re
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Annotated, Any

import pytest

from paragent import Environment, RolloutWorker, ToolResult, tool
from paragent.cli import main
from paragent.demo.samples import sample_path
from paragent.models import ModelSettings, Sampling
from paragent.osworld.agent_adapter import predict_agent_factory
from paragent.rollout.resources import RolloutSettings
from paragent.store import Journal, RolloutResult, RolloutStatus, images_folder
from paragent.store.records import unpack_trajectory
from paragent.tasks import BenchmarkTask

HERE = "tests.osworld.test_agent_adapter"
CODE = "pyautogui.press('a')"


class Desktop(Environment):
    """Accepts actions like a desktop, and counts them."""

    name = "desk"
    metric = "presses"
    one_at_a_time = True
    agent_factory = staticmethod(predict_agent_factory)
    presses = 0

    async def observation(self) -> dict[str, Any]:
        return {"screenshot": b"\x89PNG", "instruction": "Press a."}

    @tool
    async def pyautogui(
        self, command: Annotated[str | None, "code"] = None, action_type: Annotated[str | None, "or a word"] = None
    ) -> ToolResult:
        """Act."""
        if "DONE" in (command, action_type):
            return ToolResult("done", ends="done")
        self.presses += command == CODE
        return ToolResult("pressed" if command == CODE else "this is no valid action", error=command != CODE)

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> dict[str, float]:
        return {"presses": self.presses / 10}


class Mute(Environment):
    """Does not support agents of OSWorld's runner."""


class Toolless(Environment):
    """Supports agents of OSWorld's runner, but has no tool."""

    agent_factory = staticmethod(predict_agent_factory)


def run_rollout(
    agent: str, environment: str = "Desktop", *, max_retries: int = 3, **settings: Any
) -> tuple[RolloutResult, dict[str, Any]]:
    model = ModelSettings(name="demo", sampling=Sampling(max_tokens=99), max_retries=max_retries)
    names: dict[str, Any] = {"environment": f"{HERE}:{environment}", "agent": f"{HERE}:{agent}"}
    rollout = RolloutWorker(RolloutSettings(run="r", model=model, judge=model, **names, **settings)).run(
        BenchmarkTask("a", "Question?")
    )
    assert rollout.trajectory is not None
    return rollout, unpack_trajectory(rollout.trajectory)


class Scripted:
    """Returns a list of predictions in order, and then repeats the last one."""

    says: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.turn = 0

    def predict(self, instruction: str, obs: dict[str, Any]) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        assert instruction == obs["instruction"] == "Press a."
        assert obs["screenshot"] == b"\x89PNG"
        assert obs["accessibility_tree"] is obs["terminal"] is None
        self.turn += 1
        return self.says[min(self.turn, len(self.says)) - 1]


class AllForms(Scripted):
    says = (
        ("Twice.", [CODE, {"action_type": "tool_use", "command": CODE, "id": 3}]),
        ({"response": "In pieces.", "usage": {}}, [{"command": CODE}], "more"),
        (["Not", "valid."], ["pyautogui.(", None, {"action_type": "JUMP", "parameters": {"x": Path("y")}}]),
        (None, None),
        ("The end.", "DONE"),
    )


def test_a_prediction_is_a_message_with_a_tool_call_for_each_action() -> None:
    rollout, trajectory = run_rollout("AllForms")
    assert (rollout.status, rollout.ending, rollout.answer, rollout.score) == ("completed", "done", "The end.", 0.3)
    assert (rollout.turns, rollout.tool_calls, rollout.requests) == (5, 7, 0)
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (None, None)
    messages = trajectory["messages"]
    assert messages[0] == {"role": "user", "content": "Question?"}
    said = [message for message in messages if message["role"] == "assistant"]
    assert [message["content"] for message in said] == ["Twice.", "In pieces.", "Not\nvalid.", "", "The end."]
    calls = [call for message in said for call in message.get("tool_calls", ())]
    given = [json.loads(call["function"]["arguments"]) for call in calls]
    assert given[:5] == [*[{"command": CODE}] * 3, {"command": "pyautogui.("}, {"command": None}]
    assert given[5:] == [{"action_type": "JUMP", "parameters": {"x": "y"}}, {"command": "DONE"}]
    reported = [message for message in messages if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in reported] == [call["id"] for call in calls]
    assert len({call["id"] for call in calls}) == 7
    steps = [(step["kind"], step["turn"]) for step in trajectory["steps"]]
    assert [turn for kind, turn in steps if kind == "agent"] == [1, 2, 3, 4, 5]
    assert [turn for kind, turn in steps if kind == "tool"] == [1, 1, 2, 3, 3, 3, 5]


class Idle(Scripted):
    says: tuple[Any, ...] = (("Hm.", []), ("Ah!", [CODE]), ("Hm.", []))


class Tireless(Scripted):
    says = (("Again.", [CODE]),)


class Odd(Scripted):
    says = ("DONE",)


def test_the_rollout_ends_without_actions_and_after_the_last_turn() -> None:
    rollout, _ = run_rollout("Idle", max_retries=2)
    assert (rollout.ending, rollout.turns, rollout.score) == ("no actions", 5, 0.1)
    rollout, _ = run_rollout("Tireless", max_turns=4)
    assert (rollout.ending, rollout.turns, rollout.score) == ("turns used up", 4, 0.4)


class Slow(Scripted):
    def predict(self, instruction: str, obs: dict[str, Any]) -> Any:
        threading.Event().wait(3)  # longer than the time limit of the rollout
        return "", ["DONE"]


@pytest.mark.slow
def test_a_blocking_prediction_ends_by_the_time_limit() -> None:
    rollout, trajectory = run_rollout("Slow", timeout=1.5)
    assert (rollout.status, rollout.kind, rollout.prompt_tokens) == (RolloutStatus.TIMED_OUT, "time limit", None)
    assert [message["role"] for message in trajectory["messages"]] == ["user"]


class Later(Scripted):
    async def predict(self, instruction: str, obs: dict[str, Any]) -> Any:
        return instruction, ["DONE"]


class Promising(Scripted):
    def predict(self, instruction: str, obs: dict[str, Any]) -> Any:
        return Later.predict(self, instruction, obs)  # type: ignore[arg-type] # it needs nothing of the class


def test_an_agent_may_be_asynchronous() -> None:
    for name in ("Later", "Promising"):
        rollout, _ = run_rollout(name)
        assert (rollout.ending, rollout.answer) == ("done", "Press a.")


# --- what the agent is given ------------------------------------------------------------------------------------------


class Remembering(Scripted):
    """Returns the arguments of its `reset`."""

    got: Any = "nothing"

    def predict(self, instruction: str, obs: dict[str, Any]) -> Any:
        return json.dumps(self.got, default=lambda value: type(value).__name__), ["DONE"]


class Bare(Remembering):
    def reset(self) -> None:
        self.got = "reset"


class LoggerFirst(Remembering):
    def reset(self, runtime_log: logging.Logger) -> None:
        self.got = runtime_log


class AsOSWorlds(Remembering):
    def reset(self, _logger: Any = None, vm_ip: Any = "?", **more: Any) -> None:
        self.got = [_logger, vm_ip, more]


class Anything(Remembering):
    def reset(self, *args: Any, max_steps: int = 1, **more: Any) -> None:
        self.got = [*args, max_steps, more]


class ByName(Remembering):
    async def reset(self, seed: int = 7, *, vm_ip: Any, logger: Any) -> None:
        self.got = [seed, vm_ip, logger]


@pytest.mark.parametrize(
    ("agent", "got"),
    [
        ("Remembering", "nothing"),
        ("Bare", "reset"),
        ("LoggerFirst", "Logger"),
        ("AsOSWorlds", ["Logger", None, {}]),
        ("Anything", ["Logger", 1, {"vm_ip": None}]),
        ("ByName", [7, None, "Logger"]),
    ],
)
def test_reset_gets_the_arguments_of_its_signature(agent: str, got: Any) -> None:
    rollout, _ = run_rollout(agent)
    assert rollout.answer is not None, rollout.error
    assert json.loads(rollout.answer) == got


class Constructed(Remembering):
    def __init__(
        self, platform: str, model: str, max_tokens: int = 1, temperature: float = 0.5, top_p: float = 1, **more: Any
    ):
        self.got = [platform, model, max_tokens, temperature, top_p, more]


class Needy(Remembering):
    def __init__(self, env: Any) -> None:
        self.got = env


an_agent = Scripted()


def test_constructors_get_the_known_arguments_of_their_signature() -> None:
    rollout, _ = run_rollout("Constructed")
    assert json.loads(rollout.answer or "") == ["ubuntu", "demo", 99, 0.5, 1, {}]


@pytest.mark.parametrize(
    ("agent", "environment", "reported"),
    [
        ("Needy", "Desktop", "missing a required argument: 'env'"),
        ("an_agent", "Desktop", "name the class"),
        ("Bare", "Mute", "must be an AgentBase or a function"),
        ("Bare", "Toolless", "`action_type`"),
    ],
)
def test_unusable_agents_are_usage_errors(agent: str, environment: str, reported: str) -> None:
    rollout, _ = run_rollout(agent, environment)
    assert (rollout.status, rollout.kind) == (RolloutStatus.INFRASTRUCTURE, "settings")
    assert reported in rollout.error


def test_a_malformed_prediction_is_an_error_of_the_agent() -> None:
    rollout, _ = run_rollout("Odd")
    assert (rollout.status, rollout.kind, rollout.prompt_tokens) == (RolloutStatus.FAILED, "TypeError", None)
    assert "a response and a list of actions, not 'DONE'" in rollout.error


# --- at a desktop -----------------------------------------------------------------------------------------------------


class Typist:
    """Lists files in the terminal, which it finds in the raw tree. Its first action is invalid."""

    def __init__(
        self,
        platform: str,
        action_space: str,
        observation_type: str,
        screen_size: tuple[int, int],
        client_password: str,
    ) -> None:
        assert (platform, observation_type, screen_size) == ("ubuntu", "screenshot_a11y_tree", (1280, 800))
        assert client_password == "password"
        self.codes = action_space == "pyautogui"

    def reset(self, _logger: logging.Logger | None = None, vm_ip: str | None = None) -> None:
        assert vm_ip == "127.0.0.1"
        self.turn = self.waits = 0

    def predict(self, instruction: str, obs: dict[str, Any]) -> tuple[str, list[Any]]:
        assert instruction.startswith("In the terminal, write the names of the files")
        assert "\n" not in instruction
        assert obs["screenshot"].startswith(b"\x89PNG")
        place = self.terminal(obs["accessibility_tree"])
        if place is None and self.waits < 20:
            self.waits += 1
            return "There is no terminal yet.", ["WAIT"]
        self.turn += 1
        return f"Thought {self.turn}", self.actions(*(place or (0, 0)))[self.turn - 1]

    def actions(self, x: int, y: int) -> list[list[Any]]:
        line = "ls ~/Pictures > ~/Documents/list.txt\n"
        if self.codes:
            return [
                ["pyautogui.(1"],
                [f"pyautogui.click({x}, {y})", f"import time\npyautogui.write({line!r})"],
                ["DONE"],
            ]
        click = {"action_type": "CLICK", "parameters": {"x": x, "y": y}, "note": "OSWorld does not mind"}
        return [[{"action_type": "JUMP"}], [click, {"action_type": "TYPING", "text": line}], ["DONE"]]

    def terminal(self, tree: str) -> tuple[int, int] | None:
        for node in ET.fromstring(tree).iter("terminal"):
            facts = {name.rpartition("}")[2]: re.findall(r"-?\d+", value) for name, value in node.attrib.items()}
            (x, y), (width, height) = facts["screencoord"], facts["size"]
            return int(x) + int(width) // 2, int(y) + int(height) // 2
        return None


@pytest.mark.slow
@pytest.mark.parametrize("space", ["computer_13", "pyautogui"])
def test_an_agent_of_osworlds_runner_solves_a_task_at_a_desktop(space: str, tmp_path: Path) -> None:
    flags = ["--mode", "osworld", "--data", str(sample_path("osworld")), "--task-id", "02-list", "--model", "demo"]
    flags += ["--provider-name", "process", "--screen-width", "1280"]
    flags += ["--screen-height", "800", "--action-space", space, "--observation-type", "screenshot_a11y_tree"]
    flags += ["--output-dir", str(tmp_path), "--run-name", "run", "--num-rollouts", "1", "--agent", f"{HERE}:Typist"]
    assert main(["rollout", *flags]) == 0
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        [rollout] = journal.results()
    assert (rollout.error, rollout.score, rollout.ending, rollout.answer) == ("", 1.0, "done", "Thought 3")
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (None, None)
    assert len(list(images_folder(tmp_path / "run", "02-list", 1).glob("step_*.png"))) >= 2
    assert main(["export", str(tmp_path / "run"), "--format", "osworld", "--output", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / space / "screenshot_a11y_tree/demo/terminal/02-list"
    steps = [json.loads(line) for line in (folder / "traj.jsonl").read_text().splitlines()]
    wrong, click, typed, done = [step for step in steps if step["response"].startswith("Thought")]
    assert wrong["screenshot_file"] is None
    assert "action" in wrong["info"]["result"]
    assert click["response"] == typed["response"] == "Thought 2"
    assert done["action"] == ("DONE" if space == "pyautogui" else {"action_type": "DONE"})
    assert [step["done"] for step in (wrong, click, typed, done)] == [False, False, False, True]
    for step in (click, typed, done):
        assert (folder / step["screenshot_file"]).read_bytes().startswith(b"\x89PNG")
