"""Blame: decides who caused the failure of a rollout, and what follows: status, retry, stop of the run. Does no I/O.

Workers, which see the error and its circumstances, ask `blame`. The session, which sees all results, asks `FailureDecisions`.
Displays and spans ask `party_of`. docs/concepts/failures.md has the table for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from paragent._internal.tracebacks import described, traceback_of
from paragent.errors import (
    EndpointDown,
    EndpointRefused,
    InfrastructureError,
    LeaseLost,
    LeaseTimeout,
    MachineFailed,
    MissingExtra,
    MissingProgram,
    PoolFailed,
    PoolStopped,
    ProgramFailed,
    TokensMissing,
    UsageError,
)
from paragent.runners.retry import Failure, RetryPolicy
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.activity import RolloutActivity, unpack_activity
from paragent.store.failures import normalised_message
from paragent.tasks import TaskStatus
from paragent.worker.call_times import BLOCKED_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paragent.tasks import TaskResponse

__all__ = [
    "CANCELLED",
    "RETRIES",
    "Circumstances",
    "Decision",
    "FailedExecutions",
    "FailureDecisions",
    "Party",
    "RolloutFailureKind",
    "SameFailures",
    "Stage",
    "Verdict",
    "blame",
    "blame_blocked_loop",
    "blame_response",
    "party_of",
]

_TRACEBACK_CHARACTERS = 8_000
"""The end of a traceback that is stored: about fifty frames."""
_HUNG_SHARE = 0.5
"""The share of a rollout's time limit after which one call of the model that is still unanswered is the endpoint's failure:
the agent had less than the other half for everything else."""
RETRIES = RetryPolicy(pause=2.0)
"""The retries of a rollout within one session; a new session may retry as often again."""
_MOST_UNANSWERED = 3
"""Stop after so many executions whose requests failed, after their retries, if the endpoint has never answered any. It is more
than one, because the first request may be one that the endpoint cannot answer."""
_OWN_FAILURES = 2
"""Executions that must fail while the endpoint works until the request is the cause."""
_MOST_IN_A_ROW = 20
"""Stop after at least this many consecutive rollouts that failed because of the endpoint, or that it refused."""


class Party(StrEnum):
    """Who caused a failure."""

    AGENT = "agent"
    """The agent's code, its model's requests, or its use of time."""
    TASK = "task"
    """The data of the task."""
    SCORER = "scorer"
    """The code that scores answers, or the judge model that it asks."""
    ENDPOINT = "endpoint"
    """The endpoint of the agent's model."""
    ENVIRONMENT = "environment"
    """The environment, one of its helper processes, or an MCP server."""
    MACHINE = "machine"
    """A machine or the pool."""
    WORKER = "worker"
    """The worker process."""
    SETTINGS = "settings"
    """The settings of the user: a key, an address, a missing package."""
    USER = "user"
    """A user cancelled the rollout."""


class RolloutFailureKind(StrEnum):
    """The kinds of failures that are not an error of the agent's code, whose kind is the name of the error's type."""

    SETTINGS = "settings"
    """No rollout can succeed before the user changes something: the key, the model, the address, the credit, a package."""
    TOKENS = "tokens"
    """The endpoint returns no token ids, which training needs."""
    POOL = "pool"
    """The pool has ended, or too many of its machines failed."""
    ENDPOINT = "endpoint"
    """The endpoint failed after all retries, or did not answer."""
    REQUEST = "request"
    """The endpoint failed this rollout's request after all retries, and answered others meanwhile. It is executed again; if that
    repeats itself, the request is the cause, and the rollout is `failed`."""
    REFUSED = "refused"
    """The endpoint refuses this rollout's request and has answered others: moderation or a firewall."""
    MACHINE = "machine"
    """The machine or its lease was lost."""
    ENVIRONMENT = "environment"
    """The environment, a helper process or an MCP server failed."""
    TASK = "task"
    """The environment cannot use the data of the task."""
    WORKER = "worker"
    """The worker died."""
    SCORING = "scoring"
    """The scorer failed."""
    TIME_LIMIT = "time limit"
    """The agent worked longer than its limit."""
    EXIT_CODE = "exit code"
    """The program that is the agent ended with an exit code other than 0, or was stopped."""
    CANCELLED = "cancelled"
    """A user cancelled the rollout."""


@dataclass(frozen=True, slots=True)
class _Rule:
    party: Party
    status: RolloutStatus
    fatal: bool = False
    """Whether no rollout of the run can succeed, so that the run stops."""
    retried: bool = False
    """Whether a rollout that failed in this way is executed again in the same session."""


_INFRASTRUCTURE, _FAILED = RolloutStatus.INFRASTRUCTURE, RolloutStatus.FAILED
_RULES: dict[str, _Rule] = {
    RolloutFailureKind.SETTINGS: _Rule(Party.SETTINGS, _INFRASTRUCTURE, fatal=True),
    RolloutFailureKind.TOKENS: _Rule(Party.SETTINGS, _INFRASTRUCTURE, fatal=True),
    RolloutFailureKind.POOL: _Rule(Party.MACHINE, _INFRASTRUCTURE, fatal=True),
    RolloutFailureKind.ENDPOINT: _Rule(Party.ENDPOINT, _INFRASTRUCTURE, retried=True),
    RolloutFailureKind.REQUEST: _Rule(Party.AGENT, _INFRASTRUCTURE, retried=True),
    RolloutFailureKind.REFUSED: _Rule(Party.AGENT, _FAILED),
    RolloutFailureKind.MACHINE: _Rule(Party.MACHINE, _INFRASTRUCTURE, retried=True),
    RolloutFailureKind.ENVIRONMENT: _Rule(Party.ENVIRONMENT, _INFRASTRUCTURE, retried=True),
    RolloutFailureKind.TASK: _Rule(Party.TASK, _INFRASTRUCTURE),
    RolloutFailureKind.WORKER: _Rule(Party.WORKER, _INFRASTRUCTURE),  # the dispatch loop has retried it
    RolloutFailureKind.SCORING: _Rule(Party.SCORER, RolloutStatus.UNSCORED),  # the worker has retried it
    RolloutFailureKind.TIME_LIMIT: _Rule(Party.AGENT, RolloutStatus.TIMED_OUT),
    RolloutFailureKind.EXIT_CODE: _Rule(Party.AGENT, _FAILED),
    RolloutFailureKind.CANCELLED: _Rule(Party.USER, RolloutStatus.CANCELLED),
}
_AGENTS_ERROR = _Rule(Party.AGENT, _FAILED)


def _rule_of(kind: str) -> _Rule:
    return _RULES.get(kind, _AGENTS_ERROR)


def party_of(kind: str, status: str) -> str:
    """Return who caused a failure of this kind and status; empty for an empty kind."""
    if kind == RolloutFailureKind.REQUEST and status == _INFRASTRUCTURE:
        return str(Party.ENDPOINT)  # until the request has failed often enough
    return str(_rule_of(kind).party) if kind else ""


# --- in a worker: one error and its circumstances ---------------------------------------------------------------------------


class Stage(Enum):
    """Whose code a rollout is executing."""

    BUILDING = "the environment and the MCP servers are started"
    OPENING = "the environment takes the task"
    CONSTRUCTING = "the agent is constructed"
    ACTING = "the agent works"
    SCORING = "the answer is scored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of a rollout when an error ends it."""

    stage: Stage
    limit: float | None = None
    """The limit of its working time, in seconds."""
    expired: bool = False
    """Whether that limit was exceeded."""
    unanswered: float = 0.0
    """Seconds of work that the last call of the model had taken when it was cut; 0 if it was answered or failed by itself."""
    endpoint_answered: bool = True
    """Whether the endpoint has ever answered with the key, the model and the address of the run."""
    call_failure: Exception | None = None
    """The failure of the last call of the model; None if it was answered."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, kind and message of a failed rollout."""

    kind: str
    error: str

    @property
    def status(self) -> RolloutStatus:
        """How the rollout ended."""
        return _rule_of(self.kind).status

    @property
    def is_fatal(self) -> bool:
        """Whether no rollout of the run can succeed, so that the run stops."""
        return _rule_of(self.kind).fatal

    def set_on(self, result: RolloutResult) -> None:
        """Set status, kind and message of a result."""
        result.status, result.kind, result.error = self.status, str(self.kind), self.error
        if not self.status.measured:
            result.score = None


CANCELLED = Verdict(RolloutFailureKind.CANCELLED, "cancelled by a user")
"""The verdict on a rollout that a user cancelled."""


def blame(error: BaseException, known: Circumstances) -> Verdict:
    """Return whose failure an error is that ended a rollout.

    Args:
        error: the error; of a rollout whose machine is lost, that loss.
        known: the circumstances.
    """
    if known.expired and isinstance(error, TimeoutError) and not isinstance(error, LeaseTimeout):
        return _blame_time_limit(known)
    kind = _kind_by_type(error, known) or _kind_by_stage(error, known)
    text = described(error)
    if isinstance(error, InfrastructureError | UsageError | ProgramFailed):
        return Verdict(kind or type(error).__name__, text)
    trace = traceback_of(error, of_ours=True)[-_TRACEBACK_CHARACTERS:]
    return Verdict(kind or type(error).__name__, f"{text}\n{trace}")


def _blame_time_limit(known: Circumstances) -> Verdict:
    if known.stage is Stage.SCORING:
        return Verdict(RolloutFailureKind.SCORING, f"scoring took longer than {known.limit:g} s")
    if known.stage in (Stage.BUILDING, Stage.OPENING):
        return Verdict(RolloutFailureKind.ENVIRONMENT, f"the environment was not ready within {known.limit:g} s")
    limit = known.limit or 0.0
    if known.unanswered and (known.unanswered >= _HUNG_SHARE * limit or not known.endpoint_answered):
        return Verdict(
            RolloutFailureKind.ENDPOINT,
            f"the endpoint had not answered a call for {known.unanswered:.1f} s when the rollout's time limit of {limit:g} s was "
            "reached. Lower --request-timeout to try again earlier, or raise --timeout",
        )
    if isinstance(known.call_failure, InfrastructureError):
        return blame(known.call_failure, known)  # the agent waited for an endpoint that had failed
    return Verdict(RolloutFailureKind.TIME_LIMIT, f"worked longer than {limit:g} s")


def blame_blocked_loop(stage: Stage, limit: float | None, stack: str, *, of_agent: bool) -> Verdict:
    """Return whose failure it is that a rollout blocks the event loop of its worker.

    Args:
        stage: whose code the rollout is executing.
        limit: the time limit of the agent, if it is exceeded.
        stack: where the code is.
        of_agent: whether the agent's own code runs, and not a tool or another part of the environment.
    """
    cure = f"use `await`, or run blocking code with `await asyncio.to_thread(...)`\n{stack}"
    too_long = f"for more than {BLOCKED_LIMIT:g} s" if limit is None else f"beyond the time limit of {limit:g} s"
    if stage is Stage.SCORING:
        return Verdict(RolloutFailureKind.SCORING, f"the scorer blocked the event loop {too_long}; {cure}")
    if not of_agent:
        return Verdict(RolloutFailureKind.ENVIRONMENT, f"the environment blocked the event loop {too_long}; {cure}")
    return Verdict(RolloutFailureKind.TIME_LIMIT, f"the code of the agent blocked the event loop {too_long}; {cure}")


def _kind_by_type(error: BaseException, known: Circumstances) -> RolloutFailureKind | None:
    """Return the kind of an error whose type says who caused it; None for any other."""
    if isinstance(error, TokensMissing):
        return RolloutFailureKind.TOKENS
    if isinstance(error, PoolFailed | PoolStopped):
        return RolloutFailureKind.POOL
    if isinstance(error, LeaseLost | LeaseTimeout | MachineFailed):
        return RolloutFailureKind.MACHINE
    if isinstance(error, EndpointRefused) and not _refuses_one_request(error):
        return RolloutFailureKind.SETTINGS
    if known.stage is Stage.SCORING:
        return RolloutFailureKind.SCORING
    if isinstance(error, EndpointRefused):
        return RolloutFailureKind.REFUSED
    if isinstance(error, EndpointDown):
        return RolloutFailureKind.REQUEST if error.others_answered else RolloutFailureKind.ENDPOINT
    if isinstance(error, MissingExtra | MissingProgram):
        return RolloutFailureKind.SETTINGS
    if isinstance(error, InfrastructureError):
        return RolloutFailureKind.ENVIRONMENT
    return None


def _kind_by_stage(error: BaseException, known: Circumstances) -> RolloutFailureKind | None:
    """Return the kind of an error by the code that raised it; None for an error of the agent's code."""
    usage = isinstance(error, UsageError)
    if known.stage is Stage.BUILDING:
        return RolloutFailureKind.SETTINGS if usage else RolloutFailureKind.ENVIRONMENT
    if known.stage is Stage.OPENING:
        return RolloutFailureKind.TASK if usage else RolloutFailureKind.ENVIRONMENT
    if usage and (known.stage is Stage.CONSTRUCTING or error is known.call_failure):
        return RolloutFailureKind.SETTINGS
    return RolloutFailureKind.EXIT_CODE if isinstance(error, ProgramFailed) else None


def _refuses_one_request(error: EndpointRefused) -> bool:
    """Return whether an endpoint refuses only one request: it has answered others with the same key, model and address, and
    neither the key nor the credit is the reason."""
    return error.answered and error.status not in (None, 401, 402)


# --- in the session: results and those before them ---------------------------------------------------------------------------


def blame_response(response: TaskResponse) -> Verdict | None:
    """Return whose failure it is that an execution returned no result; None if the session cancelled it."""
    if response.status is TaskStatus.CANCELLED:
        return None
    if response.status is TaskStatus.LOST:
        return Verdict(RolloutFailureKind.WORKER, response.msg)
    if response.status is TaskStatus.TIMED_OUT:
        return Verdict(RolloutFailureKind.TIME_LIMIT, response.msg)
    return Verdict(response.error.type if response.error else "unknown", response.msg)


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens after an execution. Without values: its result is final, and the run continues."""

    retry_after: float | None = None
    """Seconds after which the rollout is executed again; None: its result is final."""
    stop: str = ""
    """Why the run stops; empty if it does not."""
    reopen: tuple[tuple[str, int], ...] = ()
    """Rollouts with a final result, by task and attempt, that become pending again."""


@dataclass(slots=True)
class _FailedRollout:
    """The executions of one rollout that failed in a row and are retried."""

    executions: int = 0
    """Those of this session."""
    own: int = 0
    """Executions, also of earlier sessions, during which or after which the endpoint answered: the request is their cause."""
    ended: float | None = None
    """When the last execution ended; None if it is counted in `own`, or cannot be any more."""

    def count_answer(self, answered: float) -> None:
        """Count the last execution as the request's own failure if the endpoint answered later, at `answered`."""
        if self.ended is not None and answered > self.ended:
            self.own += 1
            self.ended = None


class FailedExecutions:
    """Counts the executions of rollouts that failed in a row and are retried, and notices requests that always fail.

    A request is the cause if at least two of its executions failed while the endpoint worked: it answered others during the
    retries of the request, or it answered after the execution and before the next one failed. One such execution is not enough:
    its end can be the moment at which an endpoint dies.
    """

    def __init__(self) -> None:
        self._rollouts: dict[tuple[str, int], _FailedRollout] = {}
        """By task and attempt."""
        self._answered = 0.0
        """When the endpoint answered last, as far as results show it, in seconds since the epoch."""

    def load(self, results: Iterable[RolloutResult], sessions: Sequence[float]) -> None:
        """Take the executions of earlier sessions. They are not counted by `add`: each session retries as often.

        Args:
            results: the results in the order in which they were recorded.
            sessions: when the sessions started, in order. An answer in a session shows nothing of failures in the one before.
        """
        following = iter([*sessions[1:], float("inf")])
        end = next(following)
        for result in results:
            while result.started >= end:
                self._end_session()
                end = next(following)
            self.note_answer(result)
            if result.status is not _INFRASTRUCTURE:
                self.end(result)
            elif result.kind in (RolloutFailureKind.ENDPOINT, RolloutFailureKind.REQUEST):
                self.add(result)
        self._end_session()

    def _end_session(self) -> None:
        for rollout in self._rollouts.values():
            rollout.count_answer(self._answered)
            rollout.executions, rollout.ended = 0, None

    def note_answer(self, result: RolloutResult) -> None:
        """Note when the endpoint answered, if a result shows that it did."""
        self._answered = max(self._answered, _last_answer(result))

    def add(self, result: RolloutResult) -> int:
        """Count a failed execution and return how many of the rollout have failed in this session."""
        rollout = self._rollouts.setdefault((result.task, result.attempt), _FailedRollout())
        rollout.count_answer(self._answered)
        rollout.executions += 1
        rollout.ended = result.ended if result.kind == RolloutFailureKind.ENDPOINT else None
        rollout.own += result.kind == RolloutFailureKind.REQUEST
        return rollout.executions

    def blame_request(self, result: RolloutResult) -> bool:
        """If the rollout's own request fails again and again, make the failure the agent's; return whether it is."""
        rollout = self._rollouts.get((result.task, result.attempt))
        of_request = result.kind in (RolloutFailureKind.ENDPOINT, RolloutFailureKind.REQUEST)
        if rollout is None or rollout.own < _OWN_FAILURES or not of_request:
            return False
        result.status, result.kind = _FAILED, RolloutFailureKind.REQUEST
        return True

    def end(self, result: RolloutResult) -> None:
        """Forget a rollout, which has a final result."""
        self._rollouts.pop((result.task, result.attempt), None)


def _last_answer(result: RolloutResult) -> float:
    """Return when the endpoint answered a rollout's last request, or an earlier time if that is unknown; 0 without an answer."""
    if not result.requests or result.turns <= result.cached_replies:
        return 0.0
    answered = now = result.started
    if result.status in (RolloutStatus.COMPLETED, RolloutStatus.UNSCORED):  # otherwise the last request may have failed
        for activity, seconds in unpack_activity(result.activity):
            if activity is RolloutActivity.SCORING:  # a judge may generate after it
                break
            now += seconds
            if activity is RolloutActivity.GENERATING:
                answered = now
    return answered


class FailureDecisions:
    """Decides which results of a session are final, which rollouts are executed again, and whether the run stops.

    Args:
        give_up_after: stop when this many first rollouts all fail with the same error; 0: never.
    """

    def __init__(self, give_up_after: int) -> None:
        self._executions = FailedExecutions()
        self._endpoint_failures = 0
        """Consecutive rollouts that failed because of the endpoint."""
        self._unanswered = 0
        """Executions that failed because of an endpoint that has never answered."""
        self._refused: list[tuple[str, int]] = []
        """Consecutive rollouts that the endpoint refused."""
        self._same_failures = SameFailures(give_up_after)

    def load(self, results: Iterable[RolloutResult], sessions: Sequence[float]) -> None:
        """Take the executions of earlier sessions; see `FailedExecutions.load`."""
        self._executions.load(results, sessions)

    def decide(
        self,
        result: RolloutResult,
        *,
        concurrent: int,
        stopping: bool,
        endpoint_answered: bool,
        earlier: Iterable[tuple[str, int]] = (),
    ) -> Decision:
        """Decide what happens after an execution.

        Args:
            result: its result. A failure that repeats itself, while others succeed, becomes the agent's: it is changed.
            concurrent: the number of concurrent rollouts: as many failures may have one cause.
            stopping: whether the session stops, so that nothing is executed again.
            endpoint_answered: whether the endpoint has ever answered with the key, the model and the address of the run.
            earlier: the rollouts that started before this one and have not ended, by task and attempt.
        """
        self._executions.note_answer(result)
        if result.kind == RolloutFailureKind.ENDPOINT and not endpoint_answered:
            self._unanswered += 1
            if self._unanswered >= _MOST_UNANSWERED:
                return Decision(stop=f"the endpoint has never answered: {result.error}")
        if _rule_of(result.kind).retried and result.status is _INFRASTRUCTURE:
            executions = self._executions.add(result)
            if RETRIES.allows(Failure.FINAL if stopping else Failure.INFRASTRUCTURE, executions):
                return Decision(retry_after=RETRIES.delay(executions))
            if not stopping:
                self._executions.blame_request(result)
        self._executions.end(result)
        return self._decide_final(result, max(_MOST_IN_A_ROW, concurrent), earlier)

    def _decide_final(self, result: RolloutResult, many: int, earlier: Iterable[tuple[str, int]]) -> Decision:
        if _rule_of(result.kind).fatal and result.status is _INFRASTRUCTURE:
            return Decision(stop=result.error)
        if result.kind == RolloutFailureKind.ENDPOINT:
            self._endpoint_failures += 1
            if self._endpoint_failures >= many:
                return Decision(stop=f"the last {self._endpoint_failures} rollouts all ended with: {result.error}")
        elif result.kind == RolloutFailureKind.REFUSED:
            self._refused.append((result.task, result.attempt))
            if len(self._refused) >= many:
                stop = f"the endpoint refused the last {len(self._refused)} rollouts: {result.error}"
                return Decision(stop=stop, reopen=tuple(self._refused))
        elif result.status.measured:
            self._endpoint_failures = 0
            self._refused.clear()
        return Decision(stop=self._same_failures.note(result, earlier))


class SameFailures:
    """Decides whether to stop a run early: its first rollouts all failed with the same error.

    The first result with another outcome ends the check. A reached time limit is such a result: it depends on the task. Rollouts
    that started earlier and have not ended may have answered and be waiting for their scores: until twice as many have failed,
    the run waits for them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._error = self._message = ""
        self._count = 0
        self._awaited: set[tuple[str, int]] | None = None
        """When there are enough failures: rollouts that started earlier and have not ended."""

    def note(self, result: RolloutResult, earlier: Iterable[tuple[str, int]] = ()) -> str:
        """Take a final result; return the reason to stop, or an empty string.

        Args:
            result: the result.
            earlier: the rollouts that started before this one and have not ended, by task and attempt.
        """
        if self._awaited is not None:
            self._awaited.discard((result.task, result.attempt))
        same_cause = result.status is _FAILED or result.kind in (
            RolloutFailureKind.ENVIRONMENT,
            RolloutFailureKind.TASK,
        )
        decides_nothing = result.status in (RolloutStatus.CANCELLED, RolloutStatus.UNSCORED, _INFRASTRUCTURE)
        if self._limit and same_cause:
            self._count_failure(result, earlier)
        elif not decides_nothing:
            self._limit = 0
        if not self._limit or self._awaited is None or (self._awaited and self._count < 2 * self._limit):
            return ""
        return f"the first {self._count} rollouts all failed with the same error: {self._message}"

    def _count_failure(self, result: RolloutResult, earlier: Iterable[tuple[str, int]]) -> None:
        self._message = result.error.partition("\n")[0]
        error = f"{result.kind} {normalised_message(self._message)}"
        if self._error not in {"", error}:
            self._limit = 0
            return
        self._error = error
        self._count += 1
        if self._count == self._limit:
            self._awaited = set(earlier)
