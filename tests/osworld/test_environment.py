"""The environment on a real desktop: observations, actions, recordings, scores."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image

from paragent.errors import ConfigError, EnvironmentFailed
from paragent.machines import Machine
from paragent.osworld.controller import Controller
from paragent.osworld.env import OSWorldEnvironment
from paragent.osworld.observation import DesktopObserver
from paragent.tasks import BenchmarkTask

Answer = TypeVar("Answer")
FOUND = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "cat ~/found.txt", "shell": True},
    "expected": {"type": "rule", "rules": {"expected": "it is\n"}},
}
TASK = BenchmarkTask("a", "Write it.", None, {"evaluator": FOUND})


def attempt(
    machine: Machine,
    do: Callable[[OSWorldEnvironment, str], Awaitable[Answer]],
    task: BenchmarkTask = TASK,
    **options: Any,
) -> Answer:
    async def run() -> Answer:
        async with OSWorldEnvironment({"pause": 1.0, **options}) as environment:
            return await do(environment, await environment.open(task, machine))

    return asyncio.run(asyncio.wait_for(run(), 110))


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def test_an_agent_types_into_the_terminal_and_is_scored(desktop: Machine) -> None:
    async def do(environment: OSWorldEnvironment, first: str) -> Any:
        assert first.startswith("Write it.\n\nrole\tname")
        assert "1280 x 800" in environment.instructions
        terminal = next(line for line in first.split("\n") if line.startswith("terminal\t"))
        x, y = (int(number) for number in terminal.split("\t")[3].split(", "))
        clicked = await environment.call("computer", {"action_type": "CLICK", "parameters": {"x": x, "y": y}})
        typed = await environment.call("computer", {"action_type": "TYPING", "text": "echo it is > ~/found.txt\n"})
        assert "echo it is" in typed.text
        assert not clicked.error
        assert not typed.error
        assert picture(typed.images[0]).size == (1280, 800)
        assert await environment.score(TASK, "", []) == {"success": 1.0}
        assert await environment.score(TASK, "FAIL", []) == {"success": 0.0}
        done = await environment.call("computer", {"action_type": "DONE"})
        assert (done.ends, done.error, done.images, len(done.kept)) == ("done", False, (), 1)
        assert done.extras == {"action": {"action_type": "DONE"}, "done": True}
        late = await environment.call("computer", {"action_type": "CLICK", "x": 1, "y": 1})
        assert late.error
        assert "has ended" in late.text
        return environment.first_images

    [first] = attempt(desktop, do, observation_type="screenshot_a11y_tree", record=True, client_password="geheim")
    assert picture(first).size == (1280, 800)


def test_the_recording_is_kept(desktop: Machine) -> None:
    async def run() -> dict[str, bytes]:
        environment = OSWorldEnvironment({"record": True})
        await environment.open(TASK, desktop)
        for x in (100, 200, 300):
            await environment.call("computer", {"action_type": "MOVE_TO", "x": x, "y": 390})
        await environment.close()
        return environment.files

    files = asyncio.run(asyncio.wait_for(run(), 100))
    assert list(files) == ["recording.mp4"]
    assert b"ftyp" in files["recording.mp4"][:64]


def test_a_machine_that_cannot_record_gets_a_video_of_screenshots(desktop: Machine, tmp_path: Path) -> None:
    async def run() -> dict[str, bytes]:
        guest = Controller(desktop)
        await guest.start_recording()  # and so it refuses to record for anybody else
        environment = OSWorldEnvironment({"record": True})
        await environment.open(TASK, desktop)
        for x in (100, 200, 300):
            await environment.call("computer", {"action_type": "MOVE_TO", "x": x, "y": 390})
        await environment.close()
        await guest.end_recording()
        return environment.files

    files = asyncio.run(asyncio.wait_for(run(), 100))
    video = tmp_path / "video.mp4"
    video.write_bytes(files["recording.mp4"])
    counted = ["-count_frames", "-show_entries", "stream=nb_read_frames,width,height", "-of", "csv=p=0"]
    shown = subprocess.run(
        ["ffprobe", "-v", "error", *counted, video], capture_output=True, text=True, check=True, timeout=100
    )
    width, height, frames = (int(number) for number in shown.stdout.split(","))
    assert (width, height) == (1280, 800)
    assert frames >= 4


def test_marks_are_drawn_and_can_be_clicked(desktop: Machine) -> None:
    async def do(environment: OSWorldEnvironment, first: str) -> None:
        mark = next(line.split("\t") for line in first.split("\n") if "\tterminal\t" in line)
        code = f"pyautogui.click(tag_{mark[0]}); pyautogui.typewrite('echo it is > ~/found.txt\\n')"
        result = await environment.call("pyautogui", {"command": code})
        assert not result.error, result.text
        assert environment.first_images != result.images
        assert await environment.score(TASK, "done", []) == {"success": 1.0}
        assert (await environment.call("pyautogui", {"action_type": "FAIL"})).ends == "gave up"
        assert await environment.score(TASK, "", []) == {"success": 0.0}

    attempt(desktop, do, observation_type="som", action_space="pyautogui")


def test_invalid_actions_are_rejected_and_do_nothing(desktop: Machine) -> None:
    async def do(environment: OSWorldEnvironment, _: str) -> None:
        for bad in (
            {"action_type": "CLICK", "x": 5000, "y": 1},
            {"action_type": "PRESS", "key": "any"},
            {"action_type": "JUMP"},
            {"action_type": "CLICK", "mark": 7},
        ):
            result = await environment.call("computer", bad)
            assert result.error
            assert not result.images
        assert "nothing was done" in result.text
        waited = await environment.call("computer", {"action_type": "WAIT"})
        assert not waited.error
        assert await environment.score(TASK, "", []) == {"success": 0.0}

    attempt(desktop, do)


def test_failing_code_is_reported_with_its_error(desktop: Machine) -> None:
    async def do(environment: OSWorldEnvironment, _: str) -> None:
        result = await environment.call("pyautogui", {"command": "pyautogui.click()\nprint(no_such_name)"})
        assert result.error
        assert "NameError: name 'no_such_name' is not defined" in result.text
        assert result.images
        assert (await environment.call("pyautogui", {"command": "x", "action_type": "DONE"})).error

    attempt(desktop, do, action_space="pyautogui")


def test_launched_programs_are_on_the_first_screenshot(desktop: Machine) -> None:
    task = BenchmarkTask(
        "a", "Read it.", None, {"config": [{"type": "launch", "parameters": {"command": ["mousepad", "hello.txt"]}}]}
    )

    async def do(environment: OSWorldEnvironment, first: str) -> None:
        assert "hello.txt" in first
        assert environment.first_images == ()
        assert len(environment.first_kept) == 1
        assert await environment.score(task, "", []) is None

    attempt(desktop, do, task, observation_type="a11y_tree", terminal=True)


@pytest.mark.parametrize("kind", ["screenshot", "a11y_tree"])
def test_the_raw_observation_is_available(desktop: Machine, kind: str) -> None:
    async def do(environment: OSWorldEnvironment, _: str) -> None:
        first = await environment.observation()
        assert first["instruction"] == "Write it."
        assert picture(first["screenshot"]).size == (1280, 800)
        assert first["terminal"] is None
        if kind == "screenshot":
            assert first["accessibility_tree"] is None
        else:
            assert "<application" in first["accessibility_tree"]
        acted = await environment.call("computer", {"action_type": "MOVE_TO", "x": 5, "y": 5})
        assert (await environment.observation())["screenshot"] == (acted.images or acted.kept)[0]

    attempt(desktop, do, observation_type=kind)
    assert asyncio.run(OSWorldEnvironment().observation()) == {}


def test_missing_requirements_are_reported_without_a_machine() -> None:
    environment = OSWorldEnvironment()
    assert environment.missing_requirements(TASK) == []
    login = {"type": "login", "parameters": {}}
    strange = {"config": [login], "evaluator": {**FOUND, "func": "no_such_metric", "postconfig": [{"type": "dance"}]}}
    reported = environment.missing_requirements(BenchmarkTask("b", "x", None, strange))
    assert len(reported) == 3
    assert "Google account" in reported[0]
    assert "no_such_metric" in reported[1]
    assert "dance" in reported[2]
    malformed: list[dict[str, Any]] = [{"config": "x"}, {"config": [5]}, {"evaluator": 5}, {"evaluator": {}}]
    for metadata in malformed:
        [reason] = environment.missing_requirements(BenchmarkTask("c", "x", None, metadata))
        assert "a valid `config`" in reason


def test_options_are_validated_and_a_machine_is_required() -> None:
    with pytest.raises(ConfigError, match="must be 'computer_13' or 'pyautogui'"):
        OSWorldEnvironment({"action_space": "mouse"})
    assert OSWorldEnvironment().needs_machine
    with pytest.raises(EnvironmentFailed, match="needs a machine"):
        asyncio.run(OSWorldEnvironment().open(TASK))


def test_a_stored_attempt_at_an_infeasible_task_can_be_scored_again() -> None:
    task = BenchmarkTask("a", "x", None, {"evaluator": {"func": "infeasible"}})
    call = {"function": {"name": "computer", "arguments": '{"action_type": "FAIL"}'}}
    transcript: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "gave up"},
    ]
    environment = OSWorldEnvironment()
    assert asyncio.run(environment.score(task, "", transcript)) == {"success": 1.0}
    assert asyncio.run(environment.score(task, "", transcript[1:])) == {"success": 0.0}
    assert asyncio.run(environment.score(TASK, "", transcript)) is None


class Screen:
    """A controller that returns a sequence of screenshots, and then repeats the last one."""

    def __init__(self, *screenshots: bytes) -> None:
        self.screenshots, self.count = [b"before", *screenshots], -1

    async def screenshot(self) -> bytes:
        self.count += 1
        return self.screenshots.pop(0) if len(self.screenshots) > 1 else self.screenshots[0]


def wait_until_still(screen: Screen, limit: float, **more: float) -> bytes:
    """Return the result of `DesktopObserver.wait_until_still` after the screen was "before"."""

    async def waiting() -> bytes:
        observer = DesktopObserver(screen, "screenshot", (9, 9))  # type: ignore[arg-type] # only `screenshot` is called
        await observer.remember_screen()
        return await observer.wait_until_still(limit, **more)

    return asyncio.run(asyncio.wait_for(waiting(), 60))


@pytest.mark.slow
def test_a_screenshot_is_taken_when_the_screen_stops_changing() -> None:
    moving = Screen(b"before", b"1", b"2", b"3", b"end")
    assert wait_until_still(moving, 30) == b"end"
    unmoved = Screen(b"before")
    assert wait_until_still(unmoved, 30) == b"before"
    assert unmoved.count > 3  # a change may still follow, so it is observed for longer than a screen that changed
    restless = Screen(*(str(number).encode() for number in range(1000)))
    wait_until_still(restless, 0.5)
    assert 2 <= restless.count <= 10
    assert wait_until_still(Screen(b"now"), 0) == b"now"
