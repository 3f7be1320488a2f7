"""What the journal keeps: tasks, and plays of their rollouts."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["OwedRollout", "Play", "PlayStatus", "StoredTask", "pack_trajectory", "unpack_trajectory"]


class PlayStatus(StrEnum):
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
class Play:
    """One play of one rollout, from its start to its end."""

    task: str
    attempt: int
    status: PlayStatus
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


def pack_trajectory(trajectory: Any) -> bytes:
    """Return a trajectory as bytes: JSON, compressed at the level that costs least. Called where the rollout was played."""
    return zlib.compress(json.dumps(trajectory, ensure_ascii=False, default=str).encode(), 1)


def unpack_trajectory(body: bytes) -> Any:
    """Return what was packed."""
    return json.loads(zlib.decompress(body))
