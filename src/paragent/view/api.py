"""The records of the JSON API between the server and the pages.

`web/generate_api.py` writes `web/src/api.ts` from these classes: fields keep their names, `X | None` becomes `X | null`, tuples
and lists become arrays. Times are seconds since the epoch, durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AgentServerDetail",
    "AgentServerList",
    "AgentServerRow",
    "ControlAnswer",
    "ControlRequest",
    "EngineDetail",
    "EngineWorker",
    "ExecutionDetail",
    "ExecutionRef",
    "FailureGroup",
    "Flip",
    "NewNote",
    "PageSettings",
    "PairedDifference",
    "Pointer",
    "PoolDetail",
    "PoolList",
    "PoolMachine",
    "PoolRow",
    "RawCall",
    "ReplyTokens",
    "RolloutRows",
    "RunComparison",
    "RunDetail",
    "RunList",
    "RunRow",
    "SearchHit",
    "SearchResults",
    "ServedAgent",
    "StepNote",
    "Timeline",
    "TokenSequence",
    "ToolCall",
    "Track",
    "TranscriptStep",
]


@dataclass(slots=True)
class PageSettings:
    """What a page needs to know about its server: `data/settings.json`, also in an export."""

    version: str
    folder: str
    """The folder of the runs, for the title."""
    static: bool
    """Whether this is an export: no live data, no control, no notes."""
    formats: list[str] = field(default_factory=list)
    """The names of the formats of `paragent export`."""


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RunRow:
    """One run in the list of runs."""

    name: str
    mode: str
    model: str
    engine: str
    state: str
    """`running`, `paused`, `stopping`, `complete`, `stopped` (rollouts are pending) or `unreadable`."""
    total: int
    done: int
    """Rollouts with a final result, infrastructure failures excluded."""
    statuses: dict[str, int]
    """Final results by status."""
    score: float | None
    """The mean score of the measured results; None if nothing was measured."""
    interval: tuple[float, float] | None
    """The 95 % interval of the score."""
    measured: int
    """Results in the score: completed ones with a score, and failures and time-outs of the agent, which count as 0."""
    score_of_all: float | None
    """The mean score of all rollouts, if everything that was not measured counts as 0."""
    cut: int
    """Results whose last reply was cut at the limit of tokens, or whose context was full."""
    cost: float | None
    tokens: int | None
    seconds: float
    """The duration of all sessions."""
    started: float | None
    changed: float
    """When the journal was written last."""
    problem: str = ""
    """Why the run cannot be read."""
    origin: str = ""
    """`imported` (from trajectories or logs of another tool), `training` (its tasks arrived from a trainer), or empty."""
    data: str = ""
    """The name of the file or dataset with the tasks."""
    metric: str = ""
    """The scorer whose score counts."""
    judge: str = ""
    """The model that the scorer asks; empty if it asks none."""
    verdicts: dict[str, int] = field(default_factory=dict)
    """Completed final results with a score: `right` (a full score), `partly right` and `wrong` (0 or less)."""


@dataclass(slots=True)
class RunList:
    """All runs of the folder, the newest first."""

    runs: list[RunRow]
    below: list[str] = field(default_factory=list)
    """Folders in this folder that contain runs, relative to it. Their runs are not listed."""


@dataclass(slots=True)
class FailureGroup:
    """Failed executions of one party and kind whose messages differ only in numbers, addresses and quoted names."""

    party: str
    """Where it failed: `endpoint`, `machine`, `worker`, `environment`, `time limit`, or `agent` for an error of its code."""
    kind: str
    """The kind of the results; for errors of the agent, the type of the error."""
    message: str
    """The message with its varying parts replaced by `…`."""
    count: int
    final: int
    """How many of them are final results; the others were retried."""
    first: float
    last: float
    example: ExecutionRef
    """The newest of them."""
    example_message: str
    """Its message, with all its parts."""


@dataclass(slots=True)
class ExecutionRef:
    """Names one execution."""

    number: int
    """Its number in the journal."""
    task: str
    attempt: int
    status: str = ""
    final: bool = True
    ended: float = 0.0
    score: float | None = None
    kind: str = ""


@dataclass(slots=True)
class RunDetail:
    """The head of the page of one run."""

    row: RunRow
    attempts: int
    tasks: int
    pending: int
    stopped: str
    """Why the last session did not execute all rollouts; empty if it did, was killed, or runs."""
    pass_at: dict[str, float]
    means: dict[str, float]
    """The mean of each scorer."""
    measured_by: dict[str, int]
    """The number of results in each of `means`."""
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    requests: int
    executions: int
    """Executions of rollouts, retries included."""
    seconds_worked: float
    seconds_waited: float
    sessions: int
    machines: dict[str, float] | None
    failures: list[FailureGroup]
    config: dict[str, Any]
    """The settings, without secrets."""
    live: bool


@dataclass(slots=True)
class RolloutRows:
    """Rollouts as columns of equal length: the final or the newest result of each, and rollouts without one.

    Sorted by the position of the task, then by attempt. `next` continues the list with `after`; None at its end. `since` of the
    next request returns only the rollouts with a result after `last`.
    """

    next: int | None
    last: int
    """The number of the newest result in the journal."""
    position: list[int] = field(default_factory=list)
    task: list[str] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    question: list[str] = field(default_factory=list)
    """The beginning of the task's text."""
    reference: list[str] = field(default_factory=list)
    """The accepted answers, separated by ` | `; the middle of a long text is left out. Empty if the task has none."""
    number: list[int | None] = field(default_factory=list)
    """The execution; None without a result."""
    status: list[str] = field(default_factory=list)
    """The `RolloutStatus` of the final result, else `pending`. The page marks those that run from the live data."""
    score: list[float | None] = field(default_factory=list)
    ending: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    error: list[str] = field(default_factory=list)
    """Its beginning."""
    answer: list[str] = field(default_factory=list)
    """The middle of a long one is left out: its end decides the score."""
    turns: list[int] = field(default_factory=list)
    tool_calls: list[int] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    """Input and output."""
    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    machine: list[str] = field(default_factory=list)
    executions: list[int] = field(default_factory=list)


# --- timeline ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Track:
    """One machine, or one of the places for rollouts of a worker."""

    kind: str
    """`machine` or `worker`."""
    name: str
    slot: int
    """Workers execute several rollouts at a time: the number of the place, from 0. 0 for machines."""
    spans: list[tuple[float, float, int, int]]
    """Start and end in seconds after `Timeline.origin`, the index of the state in `Timeline.states`, and the number of the
    execution (0: none). Spans shorter than a bucket are merged into the state that took most of the bucket."""
    busy: float
    """The fraction of the visible time in which it did work: a machine that is leased, a worker's place that does not wait."""


@dataclass(slots=True)
class Timeline:
    """What machines and workers did."""

    origin: float
    start: float
    """Of the visible part, in seconds after `origin`."""
    end: float
    states: list[str]
    """The words of `RolloutActivity` and `MachineState`."""
    tracks: list[Track]
    hidden: int
    """Tracks that were left out because there are too many; the least busy ones are shown first."""
    machine_utilisation: float | None
    worker_utilisation: float | None
    sessions: list[tuple[float, float]]
    """Start and end of the sessions, in seconds after `origin`; nothing happened between them."""
    columns: list[tuple[float, float]]
    """About 200 equal parts of the visible time without the gaps between sessions: start and end in seconds after `origin`."""
    machine_shares: list[list[float]]
    """For each state and each column, its share of the time of all machines, also of those without a track."""
    worker_shares: list[list[float]]
    """For each state and each column, its share of the time of all places of workers; the rest was idle."""


# --- one rollout ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ToolCall:
    """A tool call in a message of the assistant."""

    id: str
    name: str
    arguments: str
    """JSON text, or whatever the model wrote."""


@dataclass(slots=True)
class Pointer:
    """An action on a screenshot, in pixels of the image: where to draw it."""

    kind: str
    """`click`, `double click`, `right click`, `move`, `drag`, `scroll`, `type` or `key`."""
    x: float | None = None
    y: float | None = None
    to_x: float | None = None
    to_y: float | None = None
    text: str = ""
    """What was typed, or the keys."""


@dataclass(slots=True)
class TranscriptStep:
    """One message of the conversation with what is known about its making."""

    index: int
    kind: str
    """`system`, `user`, `model`, `agent` (made by the agent's own code), `tool`, `judge`, `score`, `machine`, `error`, or
    `branch`: the steps after it belong to another branch of the conversation."""
    turn: int
    at: float | None
    """Seconds after the start of the execution; None if unknown."""
    seconds: float | None
    text: str
    """At most 100,000 characters; `length` has the whole length."""
    length: int
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    call: str = ""
    """Of a tool's result: the id of the call."""
    name: str = ""
    """Of a tool's result: the tool. Of a model's message: the model."""
    error: bool = False
    images: list[str] = field(default_factory=list)
    """File names of images."""
    pointers: list[Pointer] = field(default_factory=list)
    """Of a message of the assistant: its actions, to be drawn on the image that it saw (`seen`)."""
    seen: str = ""
    """The newest image before this message."""
    request_id: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    retries: int = 0
    waited: float = 0.0
    finish_reason: str = ""
    raw: bool = False
    """Whether request and response can be shown."""
    branch: int = 0
    """The branch of the conversation that it belongs to."""
    response_model: str = ""
    """The model that answered, if the endpoint returned another name than the one that was asked for."""
    cached: bool = False
    """Whether the reply is from the local store of `--cache`."""
    version: int | None = None
    """The version of the policy in training."""
    sampled_tokens: int | None = None
    """How many token ids of the reply are recorded; None if none are."""


@dataclass(slots=True)
class TokenSequence:
    """One recorded token sequence of an execution."""

    tokens: int
    sampled: int
    calls: int
    """Model calls whose tokens it has."""
    logprobs: bool


@dataclass(slots=True)
class StepNote:
    """A note of a user on a step."""

    number: int
    step: int
    text: str
    at: float


@dataclass(slots=True)
class ExecutionDetail:
    """One execution of a rollout."""

    run: str
    number: int
    task: str
    attempt: int
    status: str
    final: bool
    score: float | None
    scores: dict[str, float | None]
    question: str
    reference: str
    """The reference answer of the task; empty if it has none."""
    answer: str | None
    ending: str
    party: str
    """As in `FailureGroup`; empty without a failure."""
    kind: str
    error: str
    """The whole message, with a traceback if there is one."""
    turns: int
    tool_calls: int
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    waited: float
    started: float
    ended: float
    worker: str
    machine: str
    activity: list[tuple[str, float]]
    """What the rollout did, and for how many seconds, from its start."""
    steps: list[TranscriptStep]
    tools: list[dict[str, Any]]
    """The tools that the model could call."""
    files: list[str]
    """Other files of the execution, such as recordings."""
    executions: list[ExecutionRef]
    """All executions of this rollout, the oldest first."""
    attempts: list[ExecutionRef]
    """The final or newest execution of every attempt at the task."""
    notes: list[StepNote]
    sequences: list[TokenSequence] = field(default_factory=list)
    """The recorded token sequences; empty if the endpoint returned no token ids."""


@dataclass(slots=True)
class RawCall:
    """The request and the response of a model call."""

    request: Any
    """Rebuilt from the recorded messages; images by their names."""
    response: Any
    """As the endpoint returned it; None if it was not recorded."""
    tokens: ReplyTokens | None = None
    """The sampled tokens; None if they are not recorded."""


@dataclass(slots=True)
class ReplyTokens:
    """The sampled tokens of a model call."""

    ids: list[int]
    logprobs: list[float] | None
    prompt: int
    """The number of tokens before them."""
    version: int | None


@dataclass(slots=True)
class NewNote:
    """A note to add. An empty text removes the note with this number."""

    execution: int
    step: int
    text: str
    number: int | None = None


# --- compare and search -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PairedDifference:
    """The difference of a run from the first one, paired by task."""

    run: str
    pairs: int
    mean: float
    baseline_mean: float
    difference: float
    interval: tuple[float, float]
    better: int
    worse: int
    only_here: int
    only_baseline: int


@dataclass(slots=True)
class Flip:
    """A task whose mean score differs between the runs."""

    task: str
    """Its id in the first run that has it."""
    question: str
    scores: list[float | None]
    """The mean score in each run; None if it has no result."""
    executions: list[int | None]
    """The first attempt's execution in each run."""
    ids: list[str]
    """Its id in each run; empty if the run does not have it."""


@dataclass(slots=True)
class RunComparison:
    """Runs next to each other; the first one is the baseline."""

    runs: list[RunRow]
    differences: list[PairedDifference]
    """One for each run after the first; runs without a common task are left out."""
    flips: list[Flip]
    common: int
    """Tasks that all runs have."""


@dataclass(slots=True)
class SearchHit:
    """One step that contains the words."""

    execution: ExecutionRef
    step: int
    kind: str
    before: str
    match: str
    after: str


@dataclass(slots=True)
class SearchResults:
    """The hits of a search, the best first."""

    hits: list[SearchHit]
    total: int
    """At most 1,000 are counted."""
    indexed: int
    """Executions in the index."""
    executions: int
    """Executions with a trajectory; the index is being built while this is larger than `indexed`."""
    problem: str = ""
    """Why the words cannot be searched, such as an unbalanced quote."""


# --- engine, pools, agent servers -------------------------------------------------------------------------------------


@dataclass(slots=True)
class EngineWorker:
    """A worker of a run."""

    name: str
    """`host:pid`."""
    state: str
    """`started`, `ready`, `lost`, `stopped`."""
    since: float
    active: int
    """Rollouts that it executes now."""
    done: int
    lost: int
    """Rollouts that were lost with it."""


@dataclass(slots=True)
class EngineDetail:
    """The engine of a run."""

    engine: str
    live: bool
    workers: list[EngineWorker]
    restarts: int
    lost: int
    """Executions that were lost with their worker."""
    events: list[tuple[float, str, str, str]]
    """Time, worker, event, detail; the newest first, at most 200."""


@dataclass(slots=True)
class PoolRow:
    """A pool in the list of pools."""

    id: str
    address: str
    run: str
    """The run that it belongs to; empty for a pool that serves several."""
    provider: str
    states: dict[str, int]
    """Machines by state."""
    waiting: int
    """Requests that wait for a machine."""
    problem: str = ""


@dataclass(slots=True)
class PoolList:
    """The pools that the view knows: those of live runs and those named on the command line."""

    pools: list[PoolRow]


@dataclass(slots=True)
class PoolMachine:
    """A machine of a pool."""

    name: str
    state: str
    since: float
    """Seconds in this state."""
    holder: str
    lease_age: float | None
    leases: int
    resets: int
    failures: int
    detail: str
    """Why it is quarantined, or its last failure."""
    screenshot: bool
    log: bool


@dataclass(slots=True)
class PoolDetail:
    """One pool and its machines."""

    row: PoolRow
    machines: list[PoolMachine]
    events: list[tuple[float, str, str, str, str]]
    """Time, machine, state, holder, detail; the newest first, at most 200."""


@dataclass(slots=True)
class AgentServerRow:
    """An agent server in the list of servers."""

    id: str
    address: str
    agents: int
    queued: int
    calls_per_second: float
    memory: int
    """Bytes of resident memory."""
    seconds: float
    """Since its start."""
    problem: str = ""


@dataclass(slots=True)
class AgentServerList:
    """The agent servers that were named on the command line, and those on this host that can be found."""

    servers: list[AgentServerRow]


@dataclass(slots=True)
class ServedAgent:
    """An agent of a server."""

    id: str
    name: str
    kind: str
    """Its class."""
    queued: int
    running: int
    calls: int
    failed: int
    seconds: float
    """Of work, in all calls."""
    error: str
    """Why it could not be constructed; empty if it was."""


@dataclass(slots=True)
class AgentServerDetail:
    """One agent server."""

    row: AgentServerRow
    agents: list[ServedAgent]


# --- control ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ControlRequest:
    """A command for a live run, as `paragent ctl` takes it."""

    command: str
    """`pause`, `resume`, `cancel`, `retry`, `set`, `retire` or `stop`."""
    argument: str = ""


@dataclass(slots=True)
class ControlAnswer:
    """What the command did."""

    ok: bool
    message: str
