"""Values of imported documents, which may have any type, and the steps, tokens and images made from them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from paragent.store.formats.atif import RESULT_FIELDS
from paragent.store.formats.conversations import dictionaries
from paragent.store.records import RolloutResult, RolloutStatus, make_storable

__all__ = ["BranchBuilder", "TokenJoiner", "real", "result_from", "string", "structure", "timestamp", "whole"]


def structure(value: Any) -> dict[str, Any]:
    """Return a value that is an object; otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def string(value: Any) -> str:
    """Return a value that is text; otherwise an empty text."""
    return value if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    """Return a value that is a whole number of 63 bits; otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def real(value: Any) -> float | None:
    """Return a value that is a finite number; otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or not math.isfinite(value):
        return None
    return float(value)


def timestamp(value: Any) -> float | None:
    """Return an ISO 8601 time in seconds since the epoch; None if it is not one."""
    try:
        moment = datetime.fromisoformat(string(value))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def result_from(task: str, facts: dict[str, Any]) -> RolloutResult:
    """Return the result with these fields; those that cannot be stored are named in its `error`."""
    known = {name: facts[name] for name in RESULT_FIELDS if name in facts}
    attempt = known.pop("attempt", None)
    attempt = attempt if isinstance(attempt, int) and not isinstance(attempt, bool) and 0 < attempt < 2**31 else 0
    status = known.pop("status", RolloutStatus.COMPLETED)
    result = RolloutResult(task, attempt, status, **known)
    make_storable(result)
    return result


class TokenJoiner:
    """Joins the tokens of calls to sequences: a call whose prompt continues a sequence extends it."""

    def __init__(self) -> None:
        self.sequences: list[dict[str, Any]] = []

    def add(self, prompt: Any, ids: Any, logprobs: Any, step: int, version: int | None) -> None:
        """Add the tokens of a call; anything but lists of numbers is ignored."""
        if not _whole_numbers(prompt) or not _whole_numbers(ids):
            return
        scored = (
            isinstance(logprobs, list) and len(logprobs) == len(ids) and all(real(one) is not None for one in logprobs)
        )
        for sequence in reversed(self.sequences):
            known = sequence["token_ids"]
            if prompt[: len(known)] == known:
                break
        else:
            sequence = {"token_ids": [], "mask": [], "logprobs": [], "turns": []}
            self.sequences.append(sequence)
        start, unsampled = len(prompt), len(prompt) - len(sequence["token_ids"])
        sequence["token_ids"] += prompt[len(sequence["token_ids"]) :] + ids
        sequence["mask"] += [0] * unsampled + [1] * len(ids)
        if "logprobs" in sequence and scored:
            sequence["logprobs"] += [0.0] * unsampled + logprobs
        else:
            sequence.pop("logprobs", None)
        sequence["turns"].append({"step": step, "start": start, "end": start + len(ids), "version": version})


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


class BranchBuilder:
    """Finds the branches of a conversation from the messages that each model call was sent.

    Args:
        messages: the conversation, branch 0.
    """

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.branches: list[dict[str, Any]] = []
        """For the trajectory: `parent`, `shared` and `messages` of branch 1 and those after it."""
        self._whole = [messages]
        self._keys = [[_key(message) for message in messages]]

    def add(self, sent: list[dict[str, Any]], reply: dict[str, Any]) -> tuple[int, int]:
        """Return the branch of a call and the position of its reply; a call that continues no branch begins a new one."""
        keys = [*map(_key, sent), _key(reply)]
        best, shared = 0, 0
        for branch, known in enumerate(self._keys):
            common = _common(known, keys)
            if common == len(keys):
                return branch, len(sent)
            if branch and common == len(known):  # the call continues this branch
                added = [*sent, reply][common:]
                self.branches[branch - 1]["messages"] += added
                self._whole[branch] += added
                known += keys[common:]
                return branch, len(sent)
            if common > shared:
                best, shared = branch, common
        shared = min(shared, len(sent))
        own = [*sent, reply][shared:]
        self.branches.append({"parent": best, "shared": shared, "messages": own})
        self._whole.append([*sent, reply])
        self._keys.append(keys)
        return len(self.branches), len(sent)


def _common(a: list[str], b: list[str]) -> int:
    """Return how many items at the beginning are equal."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


def _key(message: dict[str, Any]) -> str:
    calls = [(call.get("id"), call.get("function")) for call in dictionaries(message.get("tool_calls"))]
    parts = [message.get(name) for name in ("role", "content", "tool_call_id", "images")]
    return json.dumps([parts, calls], sort_keys=True, default=str)
