"""`LiveRun`: what a session says about its run, for `paragent ctl RUN status` and the web view, and the file that it is in.

The session replaces `live/session.json` about once a second. The file has no secrets: everyone who may read the run directory may
read it.
"""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from paragent._internal.files import read_small_file
from paragent.rollout.live_status import LiveRollout, RunState

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LiveBudget", "LiveMachine", "LiveRun", "LiveWorker", "RunState", "read_session_file", "write_session_file"]

_FILE = "session.json"


@dataclass(frozen=True, slots=True)
class LiveBudget:
    """A budget of the run, and how much of it is used."""

    name: str
    """`cost`, `tokens` or `time`."""
    limit: float
    """In the currency of the prices, in tokens or in seconds."""
    used: float | None
    """By all sessions of the run, with the rollouts that are under way; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class LiveMachine:
    """A machine of the pool that the run uses."""

    name: str
    state: str
    """A `MachineState`."""
    seconds: float
    """How long it has been in this state; for a leased machine, the age of the lease."""
    holder: str
    """Who has leased it: the worker and the task; empty if nobody has."""
    resets: int
    """How many leases of it have ended; the machine is reset after each."""
    failure: str
    """Why it failed or was stopped; empty if it was not."""


@dataclass(slots=True)
class LiveWorker:
    """A worker process that has executed rollouts in this session."""

    name: str
    """`host:pid`."""
    rollouts: int = 0
    """Rollouts that it is executing."""
    done: int = 0
    """Executions that ended in it."""
    lost: int = 0
    """Executions that were lost because it died. The engine replaces a worker that died."""


@dataclass(slots=True, kw_only=True)
class LiveRun:
    """The state of a run while its session is active. Numbers include earlier sessions unless they say otherwise."""

    run: str
    """The name of the run."""
    state: RunState
    at: float
    """When this was true, in seconds since the epoch."""
    pid: int
    """The process id of the session."""
    host: str
    """The host of the session."""
    note: str = ""
    """What the session is doing besides executing rollouts, or why it stops."""
    total: int = 0
    """Rollouts of the complete run: tasks times attempts."""
    done: int = 0
    """Rollouts with a final result; infrastructure failures are not counted."""
    active: int = 0
    """Rollouts under way."""
    pending: int = 0
    """Rollouts without a final result that are not under way."""
    failed: int = 0
    """Final results with the status `failed` or `timed out`."""
    cancelled: int = 0
    infrastructure_failures: int = 0
    """Rollouts that failed in this session because of infrastructure, after all retries. They stay pending."""
    retries: int = 0
    """Executions of this session that failed because of infrastructure and are retried."""
    mean_score: float | None = None
    """The mean score of the results measured so far; None without any. Failures of the agent count as 0."""
    measured: int = 0
    """Results in `mean_score`, as in `Summary.measured`."""
    cut: int = 0
    """Results whose answer may be incomplete, as in `Summary.cut`."""
    requests_in_flight: int = 0
    request_limit: int = 0
    """How many requests to the endpoint may be in flight; 0 if the model has no endpoint."""
    prompt_tokens: int | None = 0
    """With the rollouts under way; None if unknown."""
    completion_tokens: int | None = 0
    cost: float | None = None
    """In the currency of the prices, with the rollouts under way; None if unknown."""
    budgets: list[LiveBudget] = field(default_factory=list)
    num_rollouts: int = 0
    """How many rollouts may be under way."""
    seconds: float = 0.0
    """The duration of this session."""
    seconds_left: float | None = None
    """The estimated time to the end."""
    machine_states: dict[str, int] = field(default_factory=dict)
    """How many machines are in which state; empty if the run uses none."""
    machines: list[LiveMachine] = field(default_factory=list)
    workers: list[LiveWorker] = field(default_factory=list)
    rollouts: list[LiveRollout] = field(default_factory=list)
    """The rollouts under way whose workers share the run directory, the slowest first."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> LiveRun:
        """Return the record that `as_json` made; names of a newer version are left out.

        Raises:
            ValueError: the values are not those of a `LiveRun`.
        """
        try:
            return _reader().validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"not the state of a run: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@functools.cache
def _reader() -> TypeAdapter[LiveRun]:
    return TypeAdapter(LiveRun)


def write_session_file(folder: Path, live: LiveRun) -> None:
    """Replace the session file in the folder `live` of a run. A file that cannot be written only makes the display older."""
    draft = folder / f".{_FILE}.draft"
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(live.as_json()))
        draft.replace(folder / _FILE)


def read_session_file(folder: Path) -> LiveRun | None:
    """Return the last state that a session wrote into the folder `live` of a run; None if there is none.

    A session that was killed leaves its last state. `ControlClient.is_live` tells whether the session exists.
    """
    try:
        return LiveRun.from_json(json.loads(read_small_file(folder / _FILE)))
    except (OSError, ValueError, RecursionError):
        return None
