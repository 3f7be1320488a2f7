"""Tool calls in text: every common format is parsed, and ordinary answers are not calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.models import Completion
from paragent.models.tool_text import as_text, calls_in, with_calls

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    for name in ("look", "add")
]
LOOK = ("look", {"at": "it"})
ADD = ("add", {"x": 1})
LOOK_JSON = '{"name": "look", "arguments": {"at": "it"}}'
ADD_JSON = '{"name": "add", "arguments": {"x": 1}}'


def read(text: str) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls_in(text, TOOLS)]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>', [LOOK]),
        ('Fine.\n<tool_call>{"name": "look", "arguments": {"at": "it"}}', [LOOK]),
        (
            f'<tool_call>{LOOK_JSON}</tool_call>\n<tool_call>{{"name": "add", "arguments": "{{\\"x\\": 1}}"}}</tool_call>',
            [LOOK, ADD],
        ),
        ("<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", [ADD]),
        ("<function=look>\n<parameter=at>\nit\n</parameter>\n</function>", [LOOK]),
        ('<function=add>{"x": 1}</function>', [ADD]),
        ('<|python_tag|>{"name": "look", "parameters": {"at": "it"}}', [LOOK]),
        (
            '<|python_tag|>{"name": "look", "parameters": {"at": "it"}}; {"name": "add", "parameters": {"x": 1}}',
            [LOOK, ADD],
        ),
        ('{"name": "look", "parameters": {"at": "it"}}', [LOOK]),
        ('{"type": "function", "name": "add", "parameters": {"x": 1}}', [ADD]),
        ('```json\n{"name": "look", "arguments": {"at": "it"}}\n```', [LOOK]),
        ("[look(at='it'), add(x=1)]", [LOOK, ADD]),
        ('[TOOL_CALLS][{"name": "look", "arguments": {"at": "it"}}]', [LOOK]),
        ('<think>I could <tool_call>{"name": "add"}</tool_call></think>[add(x=1)]', [ADD]),
        (
            f"<tool_call>{ADD_JSON}</tool_call><tool_response>9</tool_response><tool_call>{LOOK_JSON}</tool_call>",
            [ADD],
        ),
        ('<tool_call>{"name": "nothing", "arguments": {}}</tool_call>', [("nothing", {})]),
        ('<tool_call>{"name": "look", "arguments": {"at": "\\ud800"}}</tool_call>', [("look", {"at": "\ufffd"})]),
    ],
)
def test_calls_are_parsed_in_every_common_format(text: str, calls: list[Any]) -> None:
    assert read(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "",
        "{}",
        "[]",
        "[1, 2]",
        '{"name": "Ada", "arguments": {}}',
        '{"name": "look"}',
        'The call {"name": "look", "arguments": {"at": "it"}} would do it.',
        "[print(at='it')]",
        "[look(it)]",
        "look(at='it')",
        '<think><tool_call>{"name": "add", "arguments": {}}</tool_call></think>42',
    ],
)
def test_an_ordinary_answer_is_not_a_call(text: str) -> None:
    assert calls_in(text, TOOLS) == []


def test_a_malformed_block_is_a_call_that_the_environment_rejects() -> None:
    assert calls_in('<tool_call>{"name": "look", "arguments": {"at"</tool_call>', TOOLS) == [
        ("look", '{"name": "look", "arguments": {"at"')
    ]
    assert calls_in("<tool_call>what now</tool_call>", TOOLS) == [("", "what now")]


def test_a_completion_keeps_the_text_before_its_calls() -> None:
    text = 'First.\n<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
    made = with_calls(Completion({"role": "assistant", "content": text}, {"prompt_tokens": 1}), TOOLS)
    function = {"name": "add", "arguments": '{"x": 1}'}
    assert made.message["tool_calls"] == [{"id": "", "type": "function", "function": function}]
    assert (made.message["content"], made.finish_reason, made.usage) == ("First.", "tool_calls", {"prompt_tokens": 1})
    plain = Completion({"role": "assistant", "content": "42"}, None)
    assert with_calls(plain, TOOLS) is plain


def test_a_conversation_as_text_can_be_parsed_again() -> None:
    calls = [
        {"id": str(number), "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for number, (name, given) in enumerate((LOOK, ADD))
    ]
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    sent = as_text(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "what?"},
            {"role": "assistant", "content": "Well.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "0", "content": "a"},
            {"role": "tool", "tool_call_id": "1", "content": "b"},
            {"role": "user", "content": [picture]},
        ],
        TOOLS,
    )
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert sent[0]["content"].startswith("Be kind.")
    assert '"name": "add"' in sent[0]["content"]
    assert read(sent[2]["content"]) == [LOOK, ADD]
    answers = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    assert sent[3]["content"] == [{"type": "text", "text": answers}, picture]
    assert as_text([{"role": "user", "content": "what?"}], TOOLS)[0]["role"] == "system"


pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=look>", "</function>", "<parameter=at>", "<|python_tag|>", "[TOOL_CALLS]",
     "<think>", "</think>", '{"name": "look", "arguments": {"at": 1}}', '{"name"', "[look(", "at=1)]", "```json\n", "\n```", "{"]
)  # fmt: skip


@given(st.lists(pieces | st.text(st.characters(exclude_categories=[]), max_size=5), max_size=8).map("".join))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    for name, arguments in calls_in(text, TOOLS):
        assert isinstance(name, str)
        assert isinstance(arguments, str)
