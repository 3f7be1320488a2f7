"""Actions: all forms are parsed, invalid ones are rejected, and the code sent equals that of OSWorld's client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paragent.osworld.actions import BadAction, actions_in, command_of, read_action, special_in

SCREEN = (1920, 1080)
HEAD = "import pyautogui; import time; pyautogui.FAILSAFE = False"


@pytest.mark.parametrize("word", ["WAIT", "FAIL", "DONE"])
@pytest.mark.parametrize("space", ["computer_13", "pyautogui"])
def test_special_actions_in_all_forms(word: str, space: str) -> None:
    forms: list[Any] = [word, f" {word}\n", f"```{word}```", f"```\n{word}\n```", {"action_type": word}]
    forms += [f'{{"action_type": "{word}"}}', f'```json\n{{"action_type": "{word}"}}\n```', {"command": word}]
    for said in forms:
        action = read_action(said, space, SCREEN)
        assert (action.special, action.code) == (word, ""), said
    assert special_in("I am DONE with it") == ""
    assert special_in(None) == ""


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ({"action_type": "MOVE_TO", "x": 1, "y": 2}, "pyautogui.moveTo(x=1, y=2)"),
        ({"action_type": "CLICK"}, "pyautogui.click()"),
        ({"action_type": "CLICK", "button": "right", "x": 1.0, "y": 2}, "pyautogui.click(button='right', x=1, y=2)"),
        ({"action_type": "CLICK", "x": 1, "y": 2, "num_clicks": 3}, "pyautogui.click(x=1, y=2, clicks=3)"),
        ({"action_type": "MOUSE_DOWN", "button": "middle"}, "pyautogui.mouseDown(button='middle')"),
        ({"action_type": "MOUSE_UP"}, "pyautogui.mouseUp()"),
        ({"action_type": "RIGHT_CLICK", "x": 0, "y": 0}, "pyautogui.rightClick(x=0, y=0)"),
        ({"action_type": "DOUBLE_CLICK"}, "pyautogui.doubleClick()"),
        ({"action_type": "DRAG_TO", "x": 9, "y": 8}, "pyautogui.dragTo(x=9, y=8, duration=1.0, button='left')"),
        ({"action_type": "SCROLL", "dx": 0, "dy": -5}, "pyautogui.vscroll(-5)"),
        ({"action_type": "SCROLL", "dx": 3, "dy": 1}, "pyautogui.hscroll(3); pyautogui.vscroll(1)"),
        ({"action_type": "TYPING", "text": "it's\n"}, 'pyautogui.typewrite("it\'s\\n")'),
        ({"action_type": "TYPING", "text": "a<b"}, "pyautogui.typewrite('a<b')"),
        ({"action_type": "PRESS", "key": "Enter"}, "pyautogui.press('Enter')"),
        ({"action_type": "PRESS", "key": "A"}, "pyautogui.press('A')"),
        ({"action_type": "KEY_DOWN", "key": "shift"}, "pyautogui.keyDown('shift')"),
        ({"action_type": "KEY_UP", "key": "shift"}, "pyautogui.keyUp('shift')"),
        ({"action_type": "HOTKEY", "keys": ["ctrl", "C"]}, "pyautogui.hotkey('ctrl', 'C')"),
    ],
)
def test_parameters_may_be_beside_the_type_or_nested(action: dict[str, Any], code: str) -> None:
    nested = {name: value for name, value in action.items() if name != "action_type"}
    for said in (action, {"action_type": action["action_type"], "parameters": nested}):
        read = read_action(said, "computer_13", SCREEN)
        assert read.code == code
        assert command_of(read.code) == ["python", "-c", f"{HEAD}; {code}"]


def test_a_less_than_sign_is_typed_by_its_key_as_in_osworld() -> None:
    pressed = "pyautogui.typewrite('a')\npyautogui.hotkey('shift', ',')\npyautogui.typewrite('b')"
    assert read_action("pyautogui.typewrite('a<b')", "pyautogui", SCREEN).code == pressed
    assert read_action("pyautogui.press('<')", "pyautogui", SCREEN).code == "pyautogui.hotkey('shift', ',')"
    for untouched in (
        "if 1 < 2:\n    pyautogui.typewrite('x')  # as it is",
        "pyautogui.write('a<b')",
        "pyautogui.typewrite('a<b', interval=0.1)",
        "pyautogui.press('<', presses=2)",
    ):
        assert read_action(untouched, "pyautogui", SCREEN).code == untouched


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"action_type": "CLICK", "x": 1}, "both x and y"),
        ({"action_type": "CLICK", "x": 1921, "y": 1}, "from 0 to 1920"),
        ({"action_type": "CLICK", "x": -1, "y": 1}, "from 0 to 1920"),
        ({"action_type": "CLICK", "x": "left", "y": 1}, "must be a number"),
        ({"action_type": "CLICK", "num_clicks": 4}, "1, 2 or 3"),
        ({"action_type": "CLICK", "button": "none"}, "left, right, middle"),
        ({"action_type": "CLICK", "mark": 1}, "no mark 1"),
        ({"action_type": "MOVE_TO"}, "needs x and y"),
        ({"action_type": "SCROLL", "dy": 0.5}, "integer"),
        ({"action_type": "TYPING"}, "needs text"),
        ({"action_type": "TYPING", "text": 5}, "must be a string"),
        ({"action_type": "TYPING", "text": "a", "speed": 2}, "no parameter 'speed'"),
        ({"action_type": "PRESS", "key": "any"}, "no key 'any'"),
        ({"action_type": "HOTKEY", "keys": "ctrl+c"}, "a list"),
        ({"action_type": "HOTKEY", "keys": ["ctrl", 5]}, "no key 5"),
        ({"action_type": "CLICK", "parameters": [1, 2]}, "must be an object"),
        ({"action_type": "JUMP"}, "there are: MOVE_TO"),
        ({}, "action_type"),
        ("click there", "neither one of WAIT"),
        (None, "action_type"),
    ],
)
def test_invalid_actions_are_rejected(said: Any, reason: str) -> None:
    with pytest.raises(BadAction, match=reason):
        read_action(said, "computer_13", SCREEN)


@pytest.mark.parametrize("said", ["", "   ", None, {}, {"command": 5}, "pyautogui.click(", "def"])
def test_invalid_python_is_rejected(said: Any) -> None:
    with pytest.raises(BadAction):
        read_action(said, "pyautogui", SCREEN)


@pytest.mark.parametrize(
    "code", ["import time\ntime.sleep(1)", "```python\nx = 1\ny = 2\n```", "# why\npyautogui.click()"]
)
def test_code_with_more_than_one_line(code: str) -> None:
    [python, flag, sent] = command_of(read_action(code, "pyautogui", SCREEN).code)
    assert (python, flag) == ("python", "-c")
    compile(sent, "sent", "exec")
    assert sent.startswith(f"{HEAD}; ")


def test_a_loop_at_the_beginning_is_a_syntax_error_as_in_osworld() -> None:
    [_, _, sent] = command_of(read_action("for i in range(3): pyautogui.press('a')", "pyautogui", SCREEN).code)
    assert sent == f"{HEAD}; for i in range(3): pyautogui.press('a')"
    with pytest.raises(SyntaxError):
        compile(sent, "sent", "exec")


def test_actions_are_found_in_the_text_of_a_message() -> None:
    click = {"action_type": "CLICK", "x": 1, "y": 2}
    for text in (json.dumps(click), f"I click.\n```json\n{json.dumps(click)}\n```", f"```{json.dumps(click)}```"):
        assert actions_in(text, "computer_13") == [click]
    assert actions_in("First\n```python\npyautogui.click(1, 2)\n```\nthen\n```\nDONE\n```", "pyautogui") == [
        {"command": "pyautogui.click(1, 2)"},
        {"action_type": "DONE"},
    ]
    for space in ("computer_13", "pyautogui"):
        assert actions_in(" FAIL ", space) == [{"action_type": "FAIL"}]
        for plain in ("The answer is 42.", "", "I am DONE.", '{"a": 1}', "```python\nprint(1)\n```", "pyautogui"):
            assert actions_in(plain, space) == []


def test_marks_are_replaced_by_coordinates() -> None:
    marks = [(10, 20), (30, 40)]
    click = read_action({"action_type": "CLICK", "mark": 2}, "computer_13", SCREEN, marks)
    assert click.code == "pyautogui.click(x=30, y=40)"
    code = read_action("pyautogui.click(*tag_2)", "pyautogui", SCREEN, marks).code
    assert code == "tag_2 = (30, 40)\npyautogui.click(*tag_2)"
