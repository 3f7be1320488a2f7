"""The hand-written policy at a desktop: it has a plan for every sample task, by the tree or by the picture."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import pytest
from PIL import Image, ImageDraw

from manyhands.envs.samples.desktop_tasks import desktop_tasks
from manyhands.models import ModelSettings, open_model
from manyhands.models.demo_sight import largest_patch

ROWS = """role\tname\ttext\tmiddle\tsize
frame\tgalculator\t\t958, 619\t333x368
text\t\t36\t958, 513\t317x52
toggle-button\tM+\t (disabled)\t1088, 615\t59x34
toggle-button\t+\t\t1023, 775\t59x34
frame\tLXTerminal\t\t319, 579\t562x342
terminal\tTerminal\tuser@vm:~$\t312, 599\t546x291
frame\thome - Thunar\t\t319, 192\t565x345
directory-pane\tIcon view\t\t405, 238\t392x194
frame\tUntitled 1 - Mousepad\t\t940, 216\t603x393
menu\tView\t\t804, 52\t48x25
menu\tDocument\t\t869, 52\t83x25
text\t\t (focused)\t940, 248\t599x313"""


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def ask(messages: list[dict[str, Any]], name: str = "computer") -> Any:
    model = open_model(ModelSettings(name="demo"))
    message = asyncio.run(model.complete(messages, [tool(name)])).message
    calls = message.get("tool_calls")
    return json.loads(calls[0]["function"]["arguments"]) if calls else message["content"]


def drawn(*patches: tuple[tuple[int, int, int, int], str]) -> str:
    picture = Image.new("RGB", (640, 400), "steelblue")
    for box, colour in patches:
        ImageDraw.Draw(picture).rectangle(box, fill=colour)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize("task", desktop_tasks(), ids=lambda task: str(task["id"]))
def test_there_is_a_plan_for_every_sample(task: dict[str, Any]) -> None:
    first = ask([{"role": "system", "content": "s"}, {"role": "user", "content": f"{task['instruction']}\n\n{ROWS}"}])
    assert isinstance(first, dict), first
    wanted = {"impossible": "FAIL", "append": "WAIT", "replace": "WAIT", "compute": "WAIT", "written": "WAIT"}
    assert first["action_type"] == wanted.get(task["id"].partition("-")[2], "CLICK")


def test_it_goes_on_with_its_plan_and_waits_for_what_is_not_there() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Compute 1 + 1 with the calculator and leave it.\n\n{ROWS}"}
    ]
    assert ask(messages) == {"action_type": "WAIT"}  # there is no key 1 on this picture
    for _ in range(8):
        call = {"id": "1", "function": {"name": "computer", "arguments": '{"action_type": "WAIT"}'}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": ROWS}]
    assert ask(messages) == {"action_type": "FAIL"}
    click = {"id": "1", "function": {"name": "computer", "arguments": '{"action_type": "CLICK", "x": 1, "y": 1}'}}
    messages = [
        *messages[:1],
        {"role": "assistant", "content": None, "tool_calls": [click]},
        {"role": "tool", "content": ROWS},
    ]
    assert ask(messages) == {"action_type": "CLICK", "x": 1023, "y": 775}


def test_it_finds_the_terminal_in_a_picture_and_writes_python() -> None:
    patches = drawn(((0, 0, 300, 30), "black"), ((100, 100, 400, 300), "black"), ((420, 0, 630, 390), "white"))
    content = [
        {"type": "text", "text": "In the terminal, make the file run.sh in the folder Documents executable."},
        {"type": "image_url", "image_url": {"url": patches}},
    ]
    command = ask([{"role": "user", "content": content}], "pyautogui")["command"]
    x, y = (int(part) for part in command.removeprefix("pyautogui.click(").removesuffix(")").split(", "))
    assert 100 < x < 400
    assert 100 < y < 300


def test_patches_of_no_picture_and_of_no_such_colour() -> None:
    assert largest_patch("", lambda *_: True) is None
    assert largest_patch(drawn(), lambda red, green, blue: red > 250) is None


def test_what_it_does_not_know_it_says() -> None:
    assert "do not know" in ask([{"role": "user", "content": "Write a novel."}])
