"""The scripted policy for desktops: a plan for every sample task, with the accessibility tree or with screenshots."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import pytest
from PIL import Image, ImageDraw

from paragent.demo.desktop_policy import focused_field, largest_area
from paragent.demo.samples import sample_path
from paragent.models import ModelSettings, open_model
from tests.demo.desktop_tasks import desktop_tasks

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


def shown(question: str, url: str) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": content}]


def answered(arguments: str, seen: str) -> list[dict[str, Any]]:
    """Return a tool call and its result: a screenshot or a table."""
    call = {"id": "1", "function": {"name": "computer", "arguments": arguments}}
    content = [{"type": "image_url", "image_url": {"url": seen}}] if seen.startswith("data:") else seen
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": content}]


def drawn(*patches: tuple[tuple[int, int, int, int], str]) -> str:
    image = Image.new("RGB", (640, 400), "steelblue")
    for box, colour in patches:
        ImageDraw.Draw(image).rectangle(box, fill=colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize("task", desktop_tasks(), ids=lambda task: str(task["id"]))
def test_there_is_a_plan_for_every_sample_task(task: dict[str, Any]) -> None:
    first = ask([{"role": "system", "content": "s"}, {"role": "user", "content": f"{task['instruction']}\n\n{ROWS}"}])
    assert isinstance(first, dict), first
    wanted = {"impossible": "FAIL", "append": "WAIT", "replace": "WAIT"}  # the file is not open
    assert first["action_type"] == wanted.get(task["id"].partition("-")[2], "CLICK")


@pytest.mark.parametrize("task", desktop_tasks()[:15], ids=lambda task: str(task["id"]))
def test_every_kind_of_sample_task_finds_its_window_in_the_screenshot(task: dict[str, Any]) -> None:
    windows = {
        "files": ((20, 60, 80, 90), "#3584e4"),
        "editor": ((320, 20, 620, 180), "white"),
        "terminal": ((20, 220, 300, 380), "black"),
        "calculator": ((400, 220, 560, 380), "#f6f5f4"),
    }
    windows |= {"multi_apps": windows["calculator"]}
    first = ask(shown(task["instruction"], drawn(*windows.values())))
    if task["domain"] == "os":
        assert first == {"action_type": "FAIL"}
    else:
        left, top, right, bottom = windows[task["domain"]][0]
        assert first["action_type"] == "CLICK"
        assert left < first["x"] < right
        assert top < first["y"] < bottom


def test_the_plan_waits_for_missing_elements() -> None:
    question = {"role": "user", "content": f"Compute 1 + 1 with the calculator and leave it.\n\n{ROWS}"}
    click, escape, wait = '{"action_type": "CLICK"}', '{"action_type": "PRESS"}', '{"action_type": "WAIT"}'
    begun = [question, *answered(click, ROWS), *answered(escape, ROWS)]
    assert ask(begun) == {"action_type": "WAIT"}  # there is no key 1
    assert ask([*begun, *answered(wait, ROWS) * 8]) == {"action_type": "FAIL"}
    assert ask([*begun, *answered(click, ROWS)]) == {"action_type": "CLICK", "x": 1023, "y": 775}


def test_menu_keys_are_pressed_once_the_menu_is_open() -> None:
    closed, opened = drawn(), drawn(((100, 100, 200, 300), "white"))
    question = "Change the settings of the text editor: show line numbers."
    reported = [*shown(question, closed), *answered("{}", closed), *answered("{}", closed)]
    assert ask(reported) == {"action_type": "WAIT"}
    assert ask([*reported, *answered('{"action_type": "WAIT"}', opened)]) == {"action_type": "PRESS", "key": "u"}


def test_the_terminal_is_found_in_a_screenshot() -> None:
    patches = drawn(((0, 0, 300, 30), "black"), ((100, 100, 400, 300), "black"), ((420, 0, 630, 390), "white"))
    question = "In the terminal, make the file run.sh in the folder Documents executable."
    command = ask(shown(question, patches), "pyautogui")["command"]
    x, y = (int(part) for part in command.removeprefix("pyautogui.click(").removesuffix(")").split(", "))
    assert 100 < x < 400
    assert 100 < y < 300


def test_there_is_no_area_without_an_image_or_a_matching_colour() -> None:
    assert largest_area("", lambda *_: True) is None
    assert largest_area(drawn(), lambda red, green, blue: red > 250) is None


def test_the_focused_field_is_found_by_its_frame() -> None:
    """A selected line has the same colour; unfocused fields have another frame."""
    chosen, other = ((10, 100, 170, 130), "#3584e4"), ((200, 40, 400, 74), "#cdc7c2")
    frame, inside, words = (
        ((200, 100, 400, 134), "#3584e4"),
        ((202, 102, 398, 132), "white"),
        ((210, 110, 300, 124), "#3584e4"),
    )
    assert focused_field(drawn(chosen, other)) is None
    assert focused_field(drawn(chosen, other, frame, inside)) == (300, 116)
    assert focused_field(drawn(chosen, other, frame, inside, words)) == (300, 116)
    assert focused_field("") is None


def test_unknown_tasks_are_answered_with_a_message() -> None:
    assert "do not know" in ask([{"role": "user", "content": "Write a novel."}])


def test_the_sample_file_is_up_to_date() -> None:
    lines = sample_path("osworld").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == desktop_tasks()
