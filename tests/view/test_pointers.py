"""Where actions are drawn on screenshots."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.view.api import Pointer
from paragent.view.pointers import PointerReader


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"action_type": "CLICK", "x": 10, "y": 20}, Pointer("click", 10, 20)),
        ({"action_type": "CLICK", "parameters": {"x": 10, "y": 20, "button": "right"}}, Pointer("right click", 10, 20)),
        ({"action_type": "CLICK", "x": 10, "y": 20, "num_clicks": 2}, Pointer("double click", 10, 20)),
        ({"action_type": "RIGHT_CLICK", "x": 1.5, "y": 2}, Pointer("right click", 1.5, 2)),
        ({"action_type": "DOUBLE_CLICK", "x": 1, "y": 2}, Pointer("double click", 1, 2)),
        ({"action_type": "MOVE_TO", "x": 1, "y": 2}, Pointer("move", 1, 2)),
        ({"action_type": "TYPING", "text": "hello"}, Pointer("type", text="hello")),
        ({"action_type": "PRESS", "key": "enter"}, Pointer("key", text="enter")),
        ({"action_type": "HOTKEY", "keys": ["ctrl", "c"]}, Pointer("key", text="ctrl+c")),
        ({"action_type": "SCROLL", "dx": 0, "dy": -3}, Pointer("scroll", text="3 down")),
        ({"action": "left_click", "coordinate": [5, 6]}, Pointer("click", 5, 6)),
        ({"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]}, Pointer("drag", 1, 2, 3, 4)),
        ({"command": "pyautogui.click(100, 200)"}, Pointer("click", 100, 200)),
        (
            {"command": "import pyautogui\npyautogui.click(x=100, y=200, button='right')"},
            Pointer("right click", 100, 200),
        ),
        ({"command": "pyautogui.click((100, 200), clicks=2)"}, Pointer("double click", 100, 200)),
        ({"command": "x, y = 100, 200\npyautogui.doubleClick(x, y + 5)"}, Pointer("double click", 100, 205)),
        ({"command": "pyautogui.typewrite('it', interval=0.1)"}, Pointer("type", text="it")),
        ({"command": "pyautogui.hotkey('ctrl', 's')"}, Pointer("key", text="ctrl+s")),
        ({"command": "pyautogui.press(['tab', 'enter'])"}, Pointer("key", text="tab+enter")),
        ({"command": "pyautogui.scroll(-5, 10, 20)"}, Pointer("scroll", 10, 20, text="5 down")),
    ],
)
def test_an_action_is_read_from_a_tool_call(arguments: Any, expected: Pointer) -> None:
    assert PointerReader().read(json.dumps(arguments)) == [expected]
    assert PointerReader().read(arguments) == [expected]


def test_a_drag_begins_where_the_pointer_was_in_an_earlier_call() -> None:
    reader = PointerReader()
    reader.read({"action_type": "MOVE_TO", "x": 1, "y": 2})
    assert reader.read({"action_type": "DRAG_TO", "x": 30, "y": 40}) == [Pointer("drag", 1, 2, 30, 40)]
    assert reader.read({"command": "pyautogui.dragTo(5, 6)"}) == [Pointer("drag", 30, 40, 5, 6)]


def test_pressing_moving_and_releasing_is_a_drag() -> None:
    code = "pyautogui.moveTo(1, 2); pyautogui.mouseDown(); pyautogui.moveTo(8, 9); pyautogui.mouseUp()"
    assert PointerReader().read({"command": code})[-1] == Pointer("drag", 1, 2, 8, 9)


def test_typing_happens_where_the_last_click_was() -> None:
    found = PointerReader().read({"command": "pyautogui.click(3, 4)\npyautogui.write('abc')"})
    assert found == [Pointer("click", 3, 4), Pointer("type", 3, 4, text="abc")]


def test_the_action_that_was_performed_has_the_coordinates_of_marks() -> None:
    performed = {"action_type": "CLICK", "parameters": {"x": 7, "y": 8}}
    assert PointerReader().read('{"action_type": "CLICK", "mark": 3}', performed) == [Pointer("click", 7, 8)]


def test_a_tool_is_named_after_its_action() -> None:
    assert PointerReader().read('{"element": 3, "text": "query"}', name="type") == [Pointer("type", text="query")]
    assert PointerReader().read('{"query": "words"}', name="search") == []


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "null",
        "[1, 2]",
        "{",
        '{"action_type": 7}',
        '{"action_type": "DONE"}',
        '{"action_type": "CLICK", "x": 1e999, "y": "3"}',
        '{"command": "pyautogui.click(" }',
        '{"command": "pyautogui.click(*everything)"}',
        '{"command": "pyautogui' + ".x" * 9000 + '"}',
        '{"command": "pyautogui; ' + "-" * 9000 + '1"}',
        '{"command": "pyautogui\\n# \\"\\"\\"\\n' + "-" * 9000 + '1\\n# \\"\\"\\""}',
        '{"command": "pyautogui' + "(" * 9000 + '"}',
    ],
)
def test_malformed_calls_have_no_coordinates(arguments: str) -> None:
    assert all(pointer.x is None and pointer.y is None for pointer in PointerReader().read(arguments))


@given(st.text() | st.dictionaries(st.text(), st.none() | st.floats() | st.text() | st.lists(st.floats())))
def test_no_arguments_raise(arguments: Any) -> None:
    for name in ("", "click", "drag", "scroll", "key"):
        PointerReader().read(arguments, name=name)


def test_a_long_text_is_read_although_code_must_be_short() -> None:
    [typed] = PointerReader().read({"command": f"pyautogui.write({'many words ' * 500!r})"})
    assert typed.text.startswith("many words many words")


def test_code_with_many_levels_does_not_break_the_parser_for_others() -> None:
    for code in ("pyautogui" + ".x" * 9000, "pyautogui; " + "-" * 9000 + "1", "pyautogui; 1" + "+1" * 9000):
        PointerReader().read({"command": code})
        assert PointerReader().read({"command": "pyautogui.click(1, 2)"}) == [Pointer("click", 1, 2)]
        assert ast.parse("1 + 1")


def test_code_is_never_executed() -> None:
    code = "import os\npyautogui.click(__import__('os').abort(), 2)\nos.abort()"
    assert PointerReader().read({"command": code}) == [Pointer("click")]
