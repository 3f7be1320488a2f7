"""Text of models and agents that makes regular expressions slow: each is read in a time that grows with its length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from paragent.cli.tables import escape
from paragent.models.tool_text import calls_in
from paragent.osworld.actions import special_in
from paragent.scorers.text import final_answer, final_number
from paragent.store.failures import normalised_message
from paragent.view.pointers import PointerReader

TOOLS = [{"type": "function", "function": {"name": "look"}}]
SPACES = " " * 100_000
HOSTILE: list[tuple[Callable[[str], Any], str]] = [
    (PointerReader().read, "pyautogui" + '"\\' * 9_900),
    (PointerReader().read, "pyautogui" + '"""' * 6_000 + "\\"),
    (PointerReader().read, "pyautogui" + "'''\\" * 4_900),
    (final_answer, f"answer:{SPACES}\nx"),
    (final_answer, f"answer is{'*_:' * 30_000}\nx"),
    (final_answer, f"#### 42{SPACES}\nx"),
    (final_answer, "\n#### 42" * 20_000 + "\nx"),
    (final_answer, "\\boxed{" * 20_000),
    (final_number, "1" + ",111" * 50_000 + ",11"),
    (special_in, f"x{SPACES}x"),
    (special_in, f"```{SPACES}x"),
    (normalised_message, "'" * 99_999 + '"' * 99_999 + "0x" * 50_000),
    (lambda text: calls_in(text, TOOLS), "<tool_call>" * 20_000),
    (lambda text: calls_in(text, TOOLS), "<tool_call><function=look><parameter=a>\n" * 5_000),
    (lambda text: calls_in(text, TOOLS), '{"name": "look"' * 10_000),
    (lambda text: calls_in(text, TOOLS), "<think>" * 20_000),
    (escape, "\\" * 100_000),
    (escape, "[a" * 50_000),
]


@pytest.mark.parametrize(("read", "text"), HOSTILE, ids=[f"{number}" for number in range(len(HOSTILE))])
def test_hostile_text_is_read_quickly(read: Callable[[str], Any], text: str) -> None:
    read("")  # imports what it needs, and compiles expressions
    began = time.thread_time()  # other threads of the process may work meanwhile
    read(text)
    assert time.thread_time() - began < 0.5
