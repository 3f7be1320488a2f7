"""Records of a run: pending rollouts, results, events of machines and workers, notes; how results are made storable."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed
from paragent._internal.tracebacks import message_of, type_name
from paragent.errors import StoreFailed
from paragent.store.activity import unpack_activity
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "MachineEvent",
    "NewScore",
    "Note",
    "PendingRollout",
    "RolloutResult",
    "RolloutStatus",
    "WorkerEvent",
    "error_summary",
    "finite_score",
    "make_storable",
    "pack_task",
    "pack_trajectory",
    "rollout_label",
    "storable_files",
    "unpack_task",
    "unpack_trajectory",
]

_SCORING = "scoring"
"""The failure kind of a rollout whose score cannot be stored: its scorer failed."""
_SUMMARY_LENGTH = 300
_LARGEST_TRAJECTORY = 128 << 20
"""Bytes of the JSON of a trajectory of somebody else's run. Images are files; texts of 100 long turns take some MB."""
_MOST_VALUES = 5_000_000
"""Values in it, counted by commas and brackets. Each takes up to 100 bytes of memory, but two in the JSON."""


class RolloutStatus(StrEnum):
    """How an execution of a rollout ended. All are final except INFRASTRUCTURE, which leaves the rollout pending."""

    COMPLETED = "completed"
    """The agent finished. Its answer was scored if the task has a reference; the score may be 0."""
    FAILED = "failed"
    """The agent's code raised an error, or the model rejected what the agent sent."""
    TIMED_OUT = "timed out"
    """The agent exceeded its time limit."""
    INFRASTRUCTURE = "infrastructure"
    """A worker, a machine, the environment or the model's endpoint failed. The rollout stays pending: it is executed again when
    the run is continued."""
    CANCELLED = "cancelled"
    """A user cancelled the rollout. It counts in no mean, and is executed again only if a user asks for it."""
    UNSCORED = "unscored"
    """The agent answered, and the scorer failed. The answer is kept without a score: `rescore` can score it."""

    @property
    def measured(self) -> bool:
        """Whether the result says something about the agent: it completed, failed or exceeded its own time limit."""
        return self in (RolloutStatus.COMPLETED, RolloutStatus.FAILED, RolloutStatus.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class PendingRollout:
    """A rollout without a final result: one attempt at one task. Workers receive this record."""

    task: BenchmarkTask
    attempt: int
    """Counted from 1."""

    @property
    def label(self) -> str:
        """The name for displays and logs."""
        return rollout_label(self.task.id, self.attempt)


@dataclass(slots=True)
class RolloutResult:
    """The result of one execution of a rollout. Its fields are the columns of the journal and the keys of results.jsonl."""

    task: str
    """The id of the task."""
    attempt: int
    """Counted from 1."""
    status: RolloutStatus
    """How the rollout ended."""
    final: bool = True
    """Whether this is the result of the rollout; False for an execution that is or will be retried."""
    score: float | None = None
    """The score that counts; None if the answer could not be scored."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """The scores of all scorers, by name."""
    answer: str | None = None
    """The answer; None if there is none."""
    ending: str = ""
    """How the conversation ended: `answered`, `answer cut`, `turns used up`, `context full`, or a text of the agent's own."""
    kind: str = ""
    """The kind of failure, for counting: `endpoint`, `worker`, `environment`, `ValueError`; empty without a failure."""
    error: str = ""
    """The failure in one sentence; empty if there is none."""
    turns: int = 0
    """Replies of the model."""
    tool_calls: int = 0
    """Calls of tools."""
    requests: int = 0
    """Replies received from models."""
    cached_replies: int = 0
    """Replies from the cache of `--cache`; they are not requests, and their tokens are not counted."""
    prompt_tokens: int | None = 0
    """None if the endpoint did not report tokens."""
    completion_tokens: int | None = 0
    """Tokens that the model generated; None if the endpoint does not report them."""
    cached_tokens: int | None = None
    """The part of `prompt_tokens` that the endpoint took from a cache; None if no reply said it."""
    reasoning_tokens: int | None = None
    """The part of `completion_tokens` that the model spent on reasoning; None if no reply said it."""
    judge_prompt_tokens: int = 0
    """The part of `prompt_tokens` used by a judge that is a different model than the agent's."""
    judge_completion_tokens: int = 0
    """Tokens that judges generated."""
    seconds: float = 0.0
    """Time spent working."""
    waited: float = 0.0
    """Time spent waiting for the endpoint or a machine."""
    started: float = 0.0
    """When it started, in seconds since the epoch; 0 if that is unknown."""
    ended: float = 0.0
    """When it ended, in seconds since the epoch."""
    worker: str = ""
    """`host:pid`."""
    machine: str = ""
    """The machine that it used; empty without one."""
    activity: bytes | None = None
    """What it was doing from `started` on, as `pack_activity` returns it; None if that is unknown."""
    trajectory: bytes | None = None
    """All messages, tool calls and times, as `pack_trajectory` returns them."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Images and recordings by the file names used in the trajectory. They are stored as files, not in the journal."""
    number: int | None = None
    """Its number in the journal; None until it is recorded."""

    @property
    def label(self) -> str:
        """The name for displays and logs."""
        return rollout_label(self.task, self.attempt)

    @property
    def is_measured(self) -> bool:
        """Whether the result counts in means: completed with a score, or a failure or a time-out of the agent (0)."""
        return self.status.measured and (self.score is not None or self.status is not RolloutStatus.COMPLETED)


@dataclass(slots=True)
class MachineEvent:
    """A machine of the pool entered a state."""

    machine: str
    state: str
    """A word of `MachineState`: `booting`, `free`, `leased`, `resetting`, `quarantined`, `stopped`."""
    at: float
    """When, in seconds since the epoch."""
    holder: str = ""
    """Who leases the machine: the worker and the task; empty if nobody does."""
    detail: str = ""
    """The reason, for example why the machine was quarantined."""
    number: int | None = None
    """Its number in the journal; None until it is recorded."""


@dataclass(slots=True)
class WorkerEvent:
    """A worker of the engine started or ended."""

    worker: str
    """`host:pid`."""
    event: str
    """`started`, `ready`, `lost` or `stopped`."""
    at: float
    """When, in seconds since the epoch."""
    detail: str = ""
    """The reason, for example why the worker was lost."""
    number: int | None = None
    """Its number in the journal; None until it is recorded."""


@dataclass(slots=True)
class Note:
    """A note of a user on a step of an execution."""

    task: str
    attempt: int
    execution: int
    """The number of the result."""
    step: int
    text: str
    at: float
    """When it was written, in seconds since the epoch."""
    number: int | None = None
    """Its number in the journal."""


@dataclass(frozen=True, slots=True)
class NewScore:
    """A score that was computed after the rollout."""

    result: int
    """The number of the result."""
    value: float | None
    """None: there was nothing to compare."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Steps for the trajectory: the calls of a judge, and what the scorer says about its score. They have the kinds `judge` and
    `score`, and the name of the scorer as `metric`."""


def pack_task(task: BenchmarkTask) -> str:
    """Return a task as JSON for the journal."""
    return well_formed(json.dumps(asdict(task), ensure_ascii=False))


def unpack_task(body: str) -> BenchmarkTask:
    """Return the task that `pack_task` packed.

    Raises:
        StoreFailed: the text is not a task.
    """
    try:
        return BenchmarkTask(**json.loads(body))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreFailed(f"the journal is damaged: a task cannot be read: {error}") from error


def rollout_label(task: str, attempt: int) -> str:
    """Return the name of a rollout for displays: the task id, and the attempt unless it is the first."""
    return task if attempt == 1 else f"{task}#{attempt}"


def error_summary(error: str) -> str:
    """Return the first line of an error without the name of its class, for tables and displays."""
    first = error.partition("\n")[0]
    name, separator, message = first.partition(": ")
    return (message if separator and name.isidentifier() else first)[:_SUMMARY_LENGTH]


def pack_trajectory(trajectory: Any) -> bytes:
    """Return a trajectory as compressed JSON. Workers call this, so that the driver only stores bytes.

    Values that are not JSON are stored as text. If a trajectory cannot be serialised, the replies of endpoints are left out; if
    that does not help, it is replaced by the error, and only its tokens are kept: training needs them.
    """
    try:
        text = _as_json(trajectory)
    except Exception:  # noqa: BLE001 - replies may be nested too deeply, and agents may add anything
        try:
            text = _as_json(_without_responses(trajectory))
        except Exception as error:  # noqa: BLE001 - agents may add cycles, keys of any type or a broken __str__
            why = type_name(error) + ": " + message_of(error)
            tokens = trajectory.get("tokens") if isinstance(trajectory, dict) else None
            kept = {"tokens": tokens} if tokens else {}
            text = json.dumps({"messages": [], "steps": [], "unstorable": why, **kept})
    return zlib.compress(well_formed(text).encode(), 1)


def _as_json(trajectory: Any) -> str:
    return json.dumps(trajectory, ensure_ascii=False, default=str)


def _without_responses(trajectory: Any) -> Any:
    steps = [{name: value for name, value in step.items() if name != "response"} for step in trajectory["steps"]]
    return {**trajectory, "steps": steps}


def unpack_trajectory(body: bytes, *, own: bool = False) -> Any:
    """Return the trajectory that `pack_trajectory` packed.

    Args:
        body: what `pack_trajectory` returned.
        own: whether this process trusts it, because it is of its own run. Otherwise its size is limited: a few bytes of
            somebody else's run can become gigabytes.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or is too large.
        zlib.error: it is not compressed data.
    """
    reader = zlib.decompressobj()
    text = reader.decompress(body, 0 if own else _LARGEST_TRAJECTORY)
    if not reader.eof:
        raise ValueError(f"larger than {_LARGEST_TRAJECTORY:,} bytes" if reader.unconsumed_tail else "incomplete")
    if not own and sum(map(text.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def make_storable(result: RolloutResult) -> None:
    """Change a result so that the journal can store it: values that cannot be stored are dropped and named in `error`.

    Answers, scores and error texts come from models, agents, environments and scorers, so they may be anything. If the score
    that counts cannot be stored, the result becomes a failure; dropping any other value does not change the status.
    """
    notes: list[str] = []
    had_score = result.score is not None
    for name, (read, fallback) in _COLUMNS.items():
        setattr(result, name, _storable(notes, read, name, getattr(result, name), fallback))
    given: Any = result.scores
    result.scores = {}
    for name, value in _storable_items(notes, "scores", given):
        result.scores[name] = _storable(notes, _real, name, value, None)
    if result.trajectory is not None:
        result.trajectory = _storable(notes, _bytes, "trajectory", result.trajectory, None)
    if result.activity is not None:
        result.activity = _storable(notes, _packed_activity, "activity", result.activity, None)
    if had_score and result.score is None and result.status is RolloutStatus.COMPLETED:
        result.status, result.kind = RolloutStatus.UNSCORED, _SCORING
        result.error = "\n".join(filter(None, [f"the result cannot be stored: {'; '.join(notes)}", result.error]))
    else:
        _append_notes(result, notes)


def storable_files(result: RolloutResult) -> dict[str, bytes]:
    """Return the files of a result that can be written; the others are named in `error`."""
    notes: list[str] = []
    files = {}
    for name, content in _storable_items(notes, "files", result.files):
        data = _storable(notes, _bytes, name, content, None)
        if data is not None:
            files[name] = data
    _append_notes(result, notes)
    return files


def _append_notes(result: RolloutResult, notes: list[str]) -> None:
    """Append the dropped values to `error`; an `error` that is not a string is left to `make_storable`."""
    if notes and isinstance(result.error, str):
        result.error = "\n".join(filter(None, [result.error, f"left out: {'; '.join(notes)}"]))


def _storable(notes: list[str], read: Callable[[str, Any], Any], name: str, value: Any, fallback: Any) -> Any:
    """Return `read(name, value)`; if that fails, return `fallback` and append the reason to `notes`."""
    try:
        return read(name, value)
    except Exception as error:  # noqa: BLE001 - the value may have any type and any behaviour
        notes.append(f"{name}: {well_formed(message_of(error))}")
        return fallback


def _storable_items(notes: list[str], name: str, given: Any) -> list[tuple[str, Any]]:
    """Return the items of a dictionary whose keys are strings."""
    if not isinstance(given, dict):
        notes.append(f"{name}: of type {type(given).__name__}, not a dictionary")
        return []
    named = [(_storable(notes, _text, f"a name in {name}", key, None), value) for key, value in given.items()]
    return [(key, value) for key, value in named if key is not None]


def finite_score(value: Any) -> float | None:
    """Return a score as a float; None if it is not a finite number."""
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
    if value is None and name in _TOKENS:
        return None
    if int(value) != value or not -(2**63) <= value < 2**63:
        raise ValueError("not a whole number of 64 bits")
    return int(value)


def _real(name: str, value: Any) -> float | None:
    if value is None and name not in _TIMES:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return float(value)


def _bytes(name: str, value: Any) -> bytes:  # noqa: ARG001 - the signature of a reader
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"of type {type(value).__name__}, not bytes")
    return bytes(value)


def _packed_activity(name: str, value: Any) -> bytes:
    body = _bytes(name, value)
    unpack_activity(body)
    return body


def _status(name: str, value: Any) -> RolloutStatus:  # noqa: ARG001 - the signature of a reader
    return RolloutStatus(value)


_COUNTS = ("attempt", "turns", "tool_calls", "requests", "cached_replies")
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
_TIMES = ("seconds", "waited", "started", "ended")
_COLUMNS: dict[str, tuple[Callable[[str, Any], Any], Any]] = {
    "status": (_status, RolloutStatus.FAILED),
    **dict.fromkeys(("ending", "kind", "error", "worker", "machine"), (_text, "")),
    "task": (_text, ""),
    "answer": (_text, None),
    **dict.fromkeys((*_COUNTS, "judge_prompt_tokens", "judge_completion_tokens"), (_whole, 0)),
    **dict.fromkeys(_TOKENS, (_whole, None)),
    "score": (_real, None),
    **dict.fromkeys(_TIMES, (_real, 0.0)),
}
"""For each column: the reader, and the value that is stored if the reader fails."""
