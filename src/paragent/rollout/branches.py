"""`Branches`: the messages of a rollout whose agent sends its whole history with each request.

A history that continues an earlier one is appended to it. Any other history becomes a branch: the agent rewrote its history, or
it has several conversations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MOST_CHARACTERS", "Branches", "size_of"]

MOST_CHARACTERS = 512 << 20
"""The limit of all messages that the requests of one rollout have added. A hundred screenshots of 1 MB each have 130 MB."""
_VALUE_BYTES = 50


@dataclass(slots=True)
class _Branch:
    """One history: the first messages of its parent, then its own."""

    parent: int
    shared: int
    messages: list[dict[str, Any]]
    """Its own messages, as they are stored."""
    sent: list[Any] = field(default_factory=list)
    """All its messages, the shared ones included, as the agent sent them last; of a message with images only its `_key`."""


class Branches:
    """The conversation of a rollout and its branches.

    Args:
        messages: the list of branch 0, which other code may extend.
        stored: returns the form of an agent's message that is stored, for example without the content of images.
    """

    def __init__(
        self, messages: list[dict[str, Any]], stored: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given
    ) -> None:
        self._stored = stored
        self._branches = [_Branch(0, 0, messages)]
        self._size = 0
        """About how many characters the messages of requests have."""

    def add(self, history: Sequence[dict[str, Any]]) -> int:
        """Add the history of a request and return the number of its branch.

        Raises:
            RequestRejected: the histories of the rollout are too large.
        """
        if self._size > MOST_CHARACTERS:
            raise RequestRejected(f"the messages of this rollout have more than {MOST_CHARACTERS >> 20} MB")
        self._include_others()
        found, equal = self._nearest(history)
        if equal < len(self._branches[found].sent):
            self._branches.append(_Branch(found, equal, [], self._branches[found].sent[:equal]))
            found = len(self._branches) - 1
        self._extend(self._branches[found], history[equal:])
        return found

    def add_reply(self, number: int, position: int, message: dict[str, Any]) -> int:
        """Add the reply to a request and return the number of its branch.

        It is a new branch if the agent continued the branch meanwhile, or sent the same history twice.

        Args:
            number: the branch of the request.
            position: the number of messages of the request.
            message: the reply.
        """
        self._include_others()
        branch = self._branches[number]
        if len(branch.sent) != position:
            branch = _Branch(number, position, [], branch.sent[:position])
            number = len(self._branches)
            self._branches.append(branch)
        branch.messages.append(message)
        branch.sent.append(message)
        return number

    def stored(self) -> list[dict[str, Any]]:
        """Return the branches for the trajectory, without branch 0."""
        return [{"parent": one.parent, "shared": one.shared, "messages": one.messages} for one in self._branches[1:]]

    def _nearest(self, history: Sequence[dict[str, Any]]) -> tuple[int, int]:
        """Return the branch that begins as a history does for the most messages, and how many these are.

        Of several, one that the history continues is taken, and otherwise the first.
        """
        best, best_rank = 0, (-1, False)
        for number, branch in enumerate(self._branches):
            equal = 0
            for sent, given in zip(branch.sent, history, strict=False):
                if sent is not given and sent != given:
                    if not _same(sent, given):
                        break
                    branch.sent[equal] = _remembered(given)
                equal += 1
            rank = (equal, equal == len(branch.sent))
            if rank > best_rank:
                best, best_rank = number, rank
        return best, best_rank[0]

    def _extend(self, branch: _Branch, messages: Sequence[dict[str, Any]]) -> None:
        for message in messages:
            self._size += size_of(message)
            branch.messages.append(self._stored(message))
            branch.sent.append(_remembered(message))

    def _include_others(self) -> None:
        """Include the messages of branch 0 that other code has added or removed."""
        first = self._branches[0]
        del first.sent[len(first.messages) :]
        first.sent += map(_remembered, first.messages[len(first.sent) :])


def size_of(value: Any) -> int:
    """Return about how many bytes a JSON value takes."""
    if isinstance(value, str):
        return _VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return sum((_VALUE_BYTES + len(name) + size_of(one) for name, one in value.items()), _VALUE_BYTES)
    return sum(map(size_of, value), _VALUE_BYTES) if isinstance(value, list) else _VALUE_BYTES


def _remembered(message: dict[str, Any]) -> Any:
    """Return what is kept of a message to recognise it: the message, or its key if it has images, which are large."""
    content = message.get("content")
    if isinstance(content, list) and not all(isinstance(part, dict) and "text" in part for part in content):
        return _key(message)
    return message


def _same(sent: Any, given: dict[str, Any]) -> bool:
    """Return whether two messages are the same one, although SDKs may have written it in different forms."""
    return (_key(sent) if isinstance(sent, dict) else sent) == _key(given)


def _key(message: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a message: role, content and tool calls. SDKs do not send back all other fields."""
    calls = message.get("tool_calls") or ()
    given = tuple(map(_call_key, calls)) if isinstance(calls, list | tuple) else (str(calls),)
    return (message.get("role"), _content_key(message.get("content")), given, message.get("tool_call_id"))


def _content_key(content: Any) -> Any:
    """Return a content such that a text, a list with this text, and a missing text and an empty one are equal."""
    if not isinstance(content, list):
        return content or ""
    texts, others = [], []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            texts.append(text)
        else:
            # The hash is enough: it is that of a long text, with a key of this process.
            others.append((len(texts), hash(json.dumps(part, sort_keys=True))))
    return ("".join(texts), tuple(others)) if others else "".join(texts)


def _call_key(call: Any) -> tuple[Any, ...]:
    """Return what identifies a tool call. SDKs that parse the arguments write them in another form."""
    function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return (str(call),)
    arguments = function.get("arguments", function.get("input"))
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        arguments = json.dumps(parsed, sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        pass  # malformed arguments of a model are sent back as they are
    return (call.get("id"), function.get("name"), arguments)
