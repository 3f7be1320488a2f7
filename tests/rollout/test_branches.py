"""Branches of a conversation: every history that an agent sent, and every reply to it, can be read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paragent.errors import RequestRejected
from paragent.rollout.branches import Branches

Message = dict[str, Any]


def said(text: str, role: str = "user") -> Message:
    return {"role": role, "content": text}


def history_of(first: list[Message], branches: list[dict[str, Any]], number: int) -> list[Message]:
    """Return all messages of a branch, as the format of trajectories defines it."""
    if number == 0:
        return first
    branch = branches[number - 1]
    assert 0 <= branch["parent"] < number
    earlier = history_of(first, branches, branch["parent"])
    assert branch["shared"] <= len(earlier)
    messages: list[Message] = branch["messages"]
    return earlier[: branch["shared"]] + messages


class Agents(RuleBasedStateMachine):
    """Agents that continue, rewrite and repeat their conversations, with several requests at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Message] = []
        self.branches = Branches(self.first)
        self.known: list[list[Message]] = [[]]
        """The histories that agents may continue."""
        self.open: list[tuple[int, list[Message]]] = []
        """Branches and histories of the requests without a reply."""
        self.done: list[tuple[int, list[Message]]] = []
        """Branches and histories with their replies."""
        self.replies = 0

    @rule(data=st.data(), added=st.lists(st.sampled_from(["a", "b"]), max_size=2), cut=st.integers(0, 4))
    def request(self, data: st.DataObject, added: list[str], cut: int) -> None:
        before = data.draw(st.sampled_from(self.known))
        history = [*before[: len(before) - cut], *map(said, added)] or [said("a")]
        number = self.branches.add([dict(message) for message in history])
        self.known.append(history)
        self.open.append((number, history))

    @rule(data=st.data(), text=st.sampled_from(["x", "y"]))
    def reply(self, data: st.DataObject, text: str) -> None:
        if not self.open:
            return
        number, history = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        message = said(text, "assistant")
        found = self.branches.add_reply(number, len(history), message)
        self.done.append((found, [*history, message]))
        self.known.append([*history, message])
        self.replies += 1

    @invariant()
    def everything_can_be_read_back(self) -> None:
        stored = self.branches.stored()
        for number, history in [*self.open, *self.done]:
            assert history_of(self.first, stored, number)[: len(history)] == history

    @invariant()
    def every_reply_is_stored_once(self) -> None:
        own = [self.first, *(branch["messages"] for branch in self.branches.stored())]
        assistants = [id(message) for messages in own for message in messages if message["role"] == "assistant"]
        replies = {id(history[-1]) for _, history in self.done}
        assert replies <= set(assistants)
        assert len(assistants) == len(set(assistants))


TestAgents = Agents.TestCase


@given(st.lists(st.tuples(st.lists(st.text(max_size=3), min_size=1, max_size=3), st.text(max_size=3)), max_size=6))
def test_an_agent_that_only_appends_has_one_conversation(turns: list[tuple[list[str], str]]) -> None:
    messages: list[Message] = []
    branches = Branches(messages)
    history: list[Message] = []
    for texts, answer in turns:
        history += map(said, texts)
        assert branches.add(json.loads(json.dumps(history))) == 0
        history.append(said(answer, "assistant"))
        assert branches.add_reply(0, len(history) - 1, history[-1]) == 0
    assert branches.stored() == []
    assert messages == history


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
REPLY = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "let me see"}
FORMS = [
    REPLY,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "refusal": None, "annotations": []},
    {"role": "assistant", "content": [], "tool_calls": [CALL]},
    {
        "role": "assistant",
        "tool_calls": [{**CALL, "index": 0, "function": {"name": "add", "arguments": '{"b":2,"a":1}'}}],
    },
]


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_is_recognised_in_the_form_in_which_sdks_send_it_back(form: Message) -> None:
    messages: list[Message] = []
    branches = Branches(messages)
    branches.add([said("1 + 2")])
    branches.add_reply(0, 1, REPLY)
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2"}]
    assert branches.add([{"role": "user", "content": parts}, form, result]) == 0
    assert messages == [said("1 + 2"), REPLY, result]


OTHERS = [
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "2"}]},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": "{}"}}]},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": "{"}}]},
    {"role": "assistant", "content": "3", "tool_calls": [CALL]},
    {"role": "assistant", "content": None, "tool_calls": "all"},
    {"role": "assistant", "content": None, "tool_calls": ["add"]},
    {"role": "user", "content": None},
]


@pytest.mark.parametrize("form", OTHERS)
def test_a_changed_reply_begins_a_branch(form: Message) -> None:
    branches = Branches([])
    branches.add([said("1 + 2")])
    branches.add_reply(0, 1, REPLY)
    assert branches.add([said("1 + 2"), form]) == 1
    assert branches.stored() == [{"parent": 0, "shared": 1, "messages": [form]}]


def test_images_are_compared_by_content() -> None:
    def shown(data: str) -> Message:
        return {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}],
        }

    messages: list[Message] = []
    branches = Branches(messages, lambda given: {**given, "content": "an image"})
    assert branches.add([shown("aaaa")]) == 0
    assert branches.add([shown("aaaa"), said("what is it?")]) == 0
    assert branches.add([shown("bbbb")]) == 1
    assert len(messages) == 2


def test_new_messages_are_limited_and_repeated_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.rollout.branches.MOST_CHARACTERS", 50_000)
    branches = Branches([])
    history = [said("x" * 40_000)]
    for number in range(20):
        branches.add([*history, said(str(number))])
    branches.add([said("y" * 40_000)])
    with pytest.raises(RequestRejected, match="the messages of this rollout"):
        branches.add([said("z")])
