"""What the journal keeps: tasks, and plays of their rollouts."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed
from paragent._internal.tracebacks import message_of, type_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "UNSTORABLE",
    "OwedRollout",
    "RolloutResult",
    "RolloutStatus",
    "StoredTask",
    "finite",
    "make_storable",
    "pack_trajectory",
    "reason_of",
    "storable_files",
    "unpack_trajectory",
]

UNSTORABLE = "unstorable"
"""The kind of failure of a play whose score the journal cannot take."""
_LONGEST_REASON = 160


class RolloutStatus(StrEnum):
    """How a play of a rollout ended. The first three decide the rollout for good; the last leaves it owed."""

    COMPLETED = "completed"
    """The agent came to an end of its own, and its answer was scored; a score of 0 is one."""
    FAILED = "failed"
    """The agent's own code, or what it sent to the model, was wrong."""
    TIMED_OUT = "timed out"
    """The agent worked longer than its time limit."""
    INFRASTRUCTURE = "infrastructure"
    """A worker, a machine, the environment or the model's endpoint broke. It counts as 0 while it stays so, and is owed again
    when the run is continued."""


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as the run knows it; `body` has all that the benchmark said about it."""

    id: str
    digest: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OwedRollout:
    """A rollout that has no final result: which attempt at which task."""

    task: str
    attempt: int
    """Which of the attempts that were asked for, counted from 1."""
    plays: int
    """How often it was played already, without a final result."""
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RolloutResult:
    """One play of one rollout, from its start to its end."""

    task: str
    attempt: int
    status: RolloutStatus
    decides: bool = True
    """Whether this is the result of the rollout, and not a play that another one followed."""
    score: float | None = None
    """By the metric of the run; None where nothing could be said."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """By every metric there is."""
    answer: str | None = None
    ending: str = ""
    """How the conversation ended: `answered`, `turns used up`, `context full`."""
    kind: str = ""
    """What failed, in one or two words for counting: `endpoint`, `worker`, `environment`, `ValueError`; empty if nothing did."""
    error: str = ""
    turns: int = 0
    tool_calls: int = 0
    requests: int = 0
    prompt_tokens: int | None = 0
    """None: the endpoint did not say."""
    completion_tokens: int | None = 0
    judge_prompt_tokens: int = 0
    """The part of `prompt_tokens` that a judge used which is another model than the agent's, with another price."""
    judge_completion_tokens: int = 0
    seconds: float = 0.0
    """Working time."""
    waited: float = 0.0
    """Time in which it waited for the endpoint or a machine."""
    ended: float = 0.0
    """When, in seconds since 1970."""
    worker: str = ""
    trajectory: bytes | None = None
    """Every message, tool call and time, as `pack_trajectory` made it."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Pictures and recordings by the names that the trajectory has for them; they become files of the run, no rows."""
    number: int | None = None
    """Its number in the journal; None until it is recorded."""


def reason_of(error: str) -> str:
    """Return the first line of a play's error without the name of its class, for tables and displays."""
    first = error.partition("\n")[0]
    name, separator, message = first.partition(": ")
    return (message if separator and name.isidentifier() else first)[:_LONGEST_REASON]


def pack_trajectory(trajectory: Any) -> bytes:
    """Return a trajectory as bytes: JSON, compressed at the level that costs least. Called where the rollout was played.

    What is not JSON in it is kept as its text; a trajectory that cannot be written at all is replaced by the reason.
    """
    try:
        text = json.dumps(trajectory, ensure_ascii=False, default=str)
    except Exception as error:  # noqa: BLE001 - agents put into it what they like: cycles, keys of any type, a broken __str__
        text = json.dumps({"messages": [], "steps": [], "unstorable": type_name(error) + ": " + message_of(error)})
    return zlib.compress(well_formed(text).encode(), 1)


def unpack_trajectory(body: bytes) -> Any:
    """Return what was packed."""
    return json.loads(zlib.decompress(body))


def make_storable(play: RolloutResult) -> None:
    """Change a play so that the journal can take it: each value that it cannot take is left out, and `error` says why.

    Answers, scores and texts of errors come from models, agents, environments and metrics, so anything may be in them. A
    play whose deciding score is no number is a failure; any other value that is left out does not change how it ended.
    """
    notes: list[str] = []
    had_score = play.score is not None
    for name, (read, blank) in _COLUMNS.items():
        setattr(play, name, _kept(notes, read, name, getattr(play, name), blank))
    given: Any = play.scores
    play.scores = {}
    for name, value in _items(notes, "scores", given):
        play.scores[name] = _kept(notes, _real, name, value, None)
    if play.trajectory is not None:
        play.trajectory = _kept(notes, _bytes, "trajectory", play.trajectory, None)
    if had_score and play.score is None and play.status is RolloutStatus.COMPLETED:
        play.status, play.kind = RolloutStatus.FAILED, UNSTORABLE
        play.error = "\n".join(filter(None, [f"the result cannot be stored: {'; '.join(notes)}", play.error]))
    else:
        _add(play, notes)


def storable_files(play: RolloutResult) -> dict[str, bytes]:
    """Return the files of a play by names that can be written; those that are left out are named in `error`."""
    notes: list[str] = []
    files = {}
    for name, content in _items(notes, "files", play.files):
        kept = _kept(notes, _bytes, name, content, None)
        if kept is not None:
            files[name] = kept
    _add(play, notes)
    return files


def _add(play: RolloutResult, notes: list[str]) -> None:
    """Say in the play's error what was left out; an error that is not text is left to `make_storable`."""
    if notes and isinstance(play.error, str):
        play.error = "\n".join(filter(None, [play.error, f"left out: {'; '.join(notes)}"]))


def _kept(notes: list[str], read: Callable[[str, Any], Any], name: str, value: Any, blank: Any) -> Any:
    """Return a value as `read` returns it; one that cannot be read is `blank`, and `notes` gets the reason."""
    try:
        return read(name, value)
    except Exception as error:  # noqa: BLE001 - values of any type, with any behaviour
        notes.append(f"{name}: {well_formed(message_of(error))}")
        return blank


def _items(notes: list[str], name: str, given: Any) -> list[tuple[str, Any]]:
    """Return the pairs of a dictionary whose keys are text."""
    if not isinstance(given, dict):
        notes.append(f"{name}: of type {type(given).__name__}, not a dictionary")
        return []
    named = [(_kept(notes, _text, f"a name in {name}", key, None), value) for key, value in given.items()]
    return [(key, value) for key, value in named if key is not None]


def finite(value: Any) -> float | None:
    """Return a score that can be stored: the number itself, None for what is none."""
    try:
        return _real("score", value)
    except (TypeError, ValueError, OverflowError):
        return None


def _text(name: str, value: Any) -> str | None:
    if value is None and name == "answer":
        return None
    if not isinstance(value, str):
        raise TypeError(f"of type {type(value).__name__}, not text")
    return well_formed(value)


def _whole(name: str, value: Any) -> int | None:
    if value is None and name in {"prompt_tokens", "completion_tokens"}:
        return None
    if int(value) != value or not -(2**63) <= value < 2**63:
        raise ValueError("not a whole number of 64 bits")
    return int(value)


def _real(name: str, value: Any) -> float | None:
    if value is None and name not in {"seconds", "waited", "ended"}:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return float(value)


def _bytes(name: str, value: Any) -> bytes:  # noqa: ARG001 - the form of a reader
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"of type {type(value).__name__}, not bytes")
    return bytes(value)


def _status(name: str, value: Any) -> RolloutStatus:  # noqa: ARG001 - the form of a reader
    return RolloutStatus(value)


_COUNTS = ("attempt", "turns", "tool_calls", "requests")
_COLUMNS: dict[str, tuple[Callable[[str, Any], Any], Any]] = {
    "status": (_status, RolloutStatus.FAILED),
    **dict.fromkeys(("ending", "kind", "error", "worker"), (_text, "")),
    "task": (_text, ""),
    "answer": (_text, None),
    **dict.fromkeys((*_COUNTS, "judge_prompt_tokens", "judge_completion_tokens"), (_whole, 0)),
    **dict.fromkeys(("prompt_tokens", "completion_tokens"), (_whole, None)),
    "score": (_real, None),
    **dict.fromkeys(("seconds", "waited", "ended"), (_real, 0.0)),
}
"""How each value is read, and what is stored where it cannot be."""
