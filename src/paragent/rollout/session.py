"""The driver of a run: dispatches pending rollouts, records their results, retries infrastructure failures."""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.text import counted
from paragent.engines import open_engine
from paragent.errors import Interrupted
from paragent.models.base import MODELS
from paragent.rollout.live_status import (
    RolloutProgress,
    UnfinishedRollout,
    last_status,
    read_status_files,
    unfinished_rollouts,
)
from paragent.rollout.machines import SessionPool, host_address
from paragent.rollout.prepare import RolloutPlan, prepare
from paragent.rollout.worker import FATAL_KINDS, RolloutWorker
from paragent.runners.retry import Failure, RetryPolicy
from paragent.runners.run import Run
from paragent.store import (
    ATTEMPTS,
    MACHINES,
    PRICES,
    PendingRollout,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    Summary,
    final_failures,
    summarise,
)
from paragent.store.failures import normalised_message
from paragent.tasks import Task, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from paragent.rollout.config import RolloutConfig
    from paragent.rollout.resources import RolloutSettings
    from paragent.rollout.tracing import RunTracing

__all__ = ["RETRIES", "WATCH_INTERVAL", "RolloutSession", "SameFailures", "run_parallel_rollout"]

_log = logging.getLogger("paragent.rollout")
RETRIES = RetryPolicy(pause=2.0)
"""The retries of a rollout within one session; a new session may retry as often again."""
_POLL_INTERVAL = 0.25
"""Seconds to wait for results before the display is updated."""
WATCH_INTERVAL = 0.2
"""Seconds between two calls of the observer: reading the status files costs more than recording a result."""
_SESSION_INTERVAL = 5.0
"""Seconds between two updates of the session's duration in the journal."""
_ENDPOINT_FAILURES = 20
"""Stop after at least this many consecutive rollouts that failed because of the endpoint."""


def run_parallel_rollout(config: RolloutConfig, watch: Callable[[RolloutProgress], None] | None = None) -> Summary:
    """Execute all pending rollouts and return the statistics of the run.

    A call with the same configuration continues an earlier run that was stopped or interrupted.

    Args:
        config: the settings of the run.
        watch: called a few times per second with the progress.

    Raises:
        UsageError: a setting is wrong; nothing was started.
        Interrupted: Ctrl-C; all results so far are recorded.
        StoreFailed: results cannot be stored; what was recorded before is safe.
    """
    with RolloutSession(prepare(config)) as session:
        if watch is not None:
            session.watch(watch)
        summary = session.run()
    if session.unsent_spans:
        _log.warning(session.unsent_spans)
    return summary


class RolloutSession:
    """One session of a run: a context manager that locks the run directory."""

    def __init__(self, plan: RolloutPlan) -> None:
        self.plan = plan
        self._watch: Callable[[RolloutProgress], None] | None = None
        self._config = plan.config
        self.directory = RunDirectory(plan.path)
        self._retries: list[tuple[float, int, PendingRollout]] = []
        """A heap of rollouts to execute again, by the time from which they may be."""
        self._executions: dict[tuple[str, int], int] = {}
        """How often rollouts with infrastructure failures were executed in this session, by task and attempt."""
        self._active: dict[str, PendingRollout] = {}
        """Dispatched rollouts by the id of their runner task."""
        self._unrecorded: dict[str, RolloutResult] = {}
        """Results that are not recorded yet, by the id of their runner task."""
        self._dispatched = 0
        self._endpoint_failures = 0
        """Consecutive rollouts that failed because of the endpoint."""
        self._same_failures = SameFailures(plan.config.run.give_up_after)
        self._session_updated = 0.0
        self._watch_called = 0.0
        self._requests: Callable[[], tuple[int, int]] | None = None
        """Returns the requests in flight and their limit."""
        self._pool: SessionPool | None = None
        self._machines_before: dict[str, float] = {}
        """The machine figures of earlier sessions."""
        self._began = False
        """Whether rollouts were dispatched. A session that fails earlier restores the run directory."""
        self.resumed = False
        """Whether the run has results of an earlier session."""
        self.pending = 0
        """The number of rollouts that were pending when the session began."""
        self.progress: RolloutProgress
        self._worker: RolloutWorker
        self._tracing: RunTracing | None = None
        """Sends spans, with `--otel`."""
        self.unsent_spans = ""
        """Which spans could not be sent, and why; empty if all were sent."""
        self.stopped: str = ""
        """Why the remaining rollouts were not executed; empty if they were."""

    def __enter__(self) -> Self:
        run = self._config.run
        self.resumed = self.directory.open(self._config.stored(), self.plan.identity, fresh=run.fresh)
        journal = self.directory.journal
        if run.retry_failed:
            journal.reopen([RolloutStatus.FAILED, RolloutStatus.TIMED_OUT, RolloutStatus.CANCELLED])
        self._record_unfinished()
        self.directory.clear_live()
        if journal.count_tasks() < self.plan.benchmark.size:
            journal.add_tasks(self.plan.benchmark)
        journal.set_meta(ATTEMPTS, str(self._config.data.attempts))
        if self.plan.prices is not None:
            journal.set_meta(PRICES, json.dumps(self.plan.prices))
        summary = self.summary()
        self.progress = RolloutProgress.resumed(self.plan.path.name, self.plan.path, summary, final_failures(journal))
        self.pending = summary.pending
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not self._began:
            self.directory.undo()
        else:
            self.directory.close()

    def watch(self, observer: Callable[[RolloutProgress], None]) -> None:
        """Call `observer` with the progress a few times per second."""
        self._watch = observer

    def summary(self) -> Summary:
        """Return the current statistics of the run."""
        return summarise(self.directory.journal, self._config.data.attempts)

    def run(self) -> Summary:
        """Execute the pending rollouts.

        Raises:
            Interrupted: Ctrl-C.
            StoreFailed: results cannot be stored.
            UsageError, MachineFailed, PoolFailed: the machines cannot be started. On leaving the `with`, the run directory
                is restored.
        """
        if not self.pending:
            return self._finish()
        number = self.directory.journal.begin_session()
        with self._traced(number):
            try:
                with self._machines() as settings, self._rate_limit(settings) as shared:
                    self._worker = RolloutWorker(shared)
                    self._execute(number)
            except Interrupted:
                self._finish()
                raise
            finally:
                self._update_session(number, force=True)
            return self._finish()

    def _finish(self) -> Summary:
        """Write results.jsonl and summary.json; return the statistics."""
        summary = self.summary()
        self.directory.finish(summary)
        return summary

    @contextlib.contextmanager
    def _traced(self, session: int) -> Iterator[None]:
        """Send spans of all results that are recorded in the block, with `--otel`."""
        if not self._config.run.otel:
            yield
            return
        from paragent.rollout.tracing import open_tracing

        self._tracing = tracing = open_tracing(self.plan, self.directory.journal, session)
        error = ""
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._set_note("sending spans")
            self.unsent_spans = tracing.close(self.progress.done - self.progress.done_before, error)
            self._set_note("")

    @contextlib.contextmanager
    def _machines(self) -> Iterator[RolloutSettings]:
        """Start machines if the environment needs them; yield the settings for workers."""
        settings = self.plan.settings
        if self.plan.machines is None:
            yield settings
            return
        self._set_note("starting machines")
        self._machines_before = json.loads(self.directory.journal.meta(MACHINES) or "{}")
        with SessionPool(self._config, self.plan.machines, self.pending) as pool:
            self._pool = pool
            self._set_note("")
            try:
                yield replace(settings, machines=pool.access)
            finally:
                self._record_machines()
                self._pool = None
                self._set_note("stopping machines")
        self._set_note("")

    @contextlib.contextmanager
    def _rate_limit(self, settings: RolloutSettings) -> Iterator[RolloutSettings]:
        """Share the rate limit between workers. One worker, or a model without an endpoint, needs no sharing."""
        if self.plan.engine.workers == 1 or self._config.model.name in MODELS.names():
            yield settings
            return
        from paragent.models.rate_limit_server import RateLimitServer

        run = self._config.run
        with RateLimitServer(run.num_rollouts, host_address(run)) as rate_limit:
            self._requests = rate_limit.pressure
            model, judge = (replace(one, rate_limit=rate_limit.address) for one in (settings.model, settings.judge))
            yield replace(settings, model=model, judge=judge)

    def _execute(self, session: int) -> None:
        """Dispatch rollouts and record results until no rollout is pending."""
        run = Run(self.plan.engine, open_engine(self.plan.engine), iter(()), lent=False)
        pending = self.directory.journal.pending(self._config.data.attempts)
        run.open()
        self._began = True
        try:
            more = self._feed(run, pending)
            while run.outstanding or (self._retries and not self.stopped):
                if not run.outstanding:
                    time.sleep(self._poll_timeout())
                run.collect(self._poll_timeout())
                self._take_responses(run)
                more = self._feed(run, pending) if more or self._retries else False
                self._record()
                self._report(session)
        except KeyboardInterrupt:
            self._cancel(run)
            raise Interrupted({}) from None
        finally:
            run.close()
            self._record_unfinished()

    def _feed(self, run: Run, pending: Iterator[PendingRollout]) -> bool:
        """Dispatch rollouts until N are active; return whether more may be pending."""
        room = min(run.room, self._config.run.num_rollouts - run.outstanding)
        tasks: list[Task] = []
        exhausted = False
        while len(tasks) < room and not self.stopped:
            if self._retries and self._retries[0][0] <= time.monotonic():
                rollout = heapq.heappop(self._retries)[2]
            elif (following := next(pending, None)) is not None:
                rollout = following
            else:
                exhausted = True
                break
            tasks.append(self._runner_task(rollout))
        run.feed(tasks)
        return not exhausted and not self.stopped

    def _runner_task(self, rollout: PendingRollout) -> Task:
        self._dispatched += 1
        task = Task(rollout, self._worker, id=f"{self._dispatched}:{rollout.label}")
        self._active[task.id] = rollout
        return task

    def _take_responses(self, run: Run) -> None:
        """Turn responses into results and decide which are final. Ctrl-C at any point loses neither results nor usage."""
        for number, response in list(run.ready.items()):
            rollout = self._active.get(response.id)
            if rollout is not None and (result := _result_of(response, rollout)) is not None:
                if response.status is not TaskStatus.SUCCEEDED:
                    self._add_last_status(result)
                if result.final:
                    self._decide(result, rollout)
                self._unrecorded[response.id] = result
            self._active.pop(response.id, None)
            del run.ready[number]

    def _add_last_status(self, result: RolloutResult) -> None:
        """Add what the worker of an unfinished execution reported last; without a report, only the time of its start."""
        known = last_status(self.directory.live, result.worker, result.task, result.attempt)
        if known is None:
            result.started = result.ended - result.seconds if result.seconds else 0.0
        else:
            result.started, result.machine, result.activity = known.started, known.machine, known.activity
            if known.requests > result.requests:
                _copy_usage(result, known)

    def _decide(self, result: RolloutResult, rollout: PendingRollout) -> None:
        """Decide whether a result is final, is retried, or stops the run."""
        key = (result.task, result.attempt)
        if result.status is not RolloutStatus.INFRASTRUCTURE:
            self.stopped = self.stopped or self._same_failures.note(result)
            self._endpoint_failures = 0
            self._executions.pop(key, None)
            return
        if result.kind in FATAL_KINDS:
            self.stopped = self.stopped or result.error
            return
        executions = self._executions[key] = self._executions.get(key, 0) + 1
        # The runner has already retried a rollout whose worker was lost.
        failure = Failure.FINAL if result.kind == "worker" or self.stopped else Failure.INFRASTRUCTURE
        if RETRIES.allows(failure, executions):
            result.final = False
            self._dispatched += 1
            retry_at = time.monotonic() + RETRIES.delay(executions)
            heapq.heappush(self._retries, (retry_at, self._dispatched, rollout))
            return
        self._executions.pop(key, None)
        if result.kind == "endpoint":
            self._endpoint_failures += 1
            if self._endpoint_failures >= max(_ENDPOINT_FAILURES, self._config.run.num_rollouts) and not self.stopped:
                self.stopped = f"the last {self._endpoint_failures} rollouts all ended with: {result.error}"

    def _record(self) -> None:
        """Record results durably, then count them."""
        results = list(self._unrecorded.values())
        if results:
            with _signals_deferred():
                self.directory.write_files(results)
                self.directory.journal.record(results)
                self.directory.append_results(results)
                self._trace(results)
                for key, result in list(self._unrecorded.items()):
                    del self._unrecorded[key]
                    self.progress.count(result)

    def _trace(self, results: list[RolloutResult]) -> None:
        if self._tracing is not None:
            self._tracing.record(results)

    def _report(self, session: int) -> None:
        """Update the session's duration and call the observer, each at its interval."""
        self._update_session(session)
        self.progress.active = len(self._active)
        if self._watch and self.progress.seconds - self._watch_called > WATCH_INTERVAL:
            self._watch_called = self.progress.seconds
            self.progress.live = live = read_status_files(self.directory.live)
            if self._requests:
                live.in_flight, live.request_limit = self._requests()
            self.progress.machines = self._pool.counts() if self._pool else None
            self._watch(self.progress)

    def _record_unfinished(self) -> None:
        """Record what rollouts had used whose worker died, so that all tokens are counted."""
        journal, live = self.directory.journal, self.directory.live
        with _signals_deferred():
            results = [
                _unfinished_result(one)
                for one in unfinished_rollouts(live)
                if one.requests
                and not journal.has_result(one.task, one.attempt, one.worker, since=one.started, requests=one.requests)
            ]
            if results:
                journal.record(results)
                self._trace(results)

    def _poll_timeout(self) -> float:
        if not self._retries:
            return _POLL_INTERVAL
        return min(_POLL_INTERVAL, max(0.01, self._retries[0][0] - time.monotonic()))

    def _cancel(self, run: Run) -> None:
        """Cancel active rollouts. Results that arrive meanwhile are recorded; the other rollouts stay pending."""
        self.stopped = "interrupted"
        self._set_note(f"stopping {counted(run.outstanding, 'rollout')}; all results so far are kept")
        self._take_responses(run)
        self._record()
        run.cancel()
        self._take_responses(run)
        for key, result in list(self._unrecorded.items()):
            if result.status is RolloutStatus.INFRASTRUCTURE:
                result.final = False  # caused by the interrupt: the rollout stays pending, but its usage is counted
                if not result.requests:
                    del self._unrecorded[key]
        self._record()

    def _set_note(self, note: str) -> None:
        """Show what the session is doing besides executing rollouts."""
        self.progress.note = note
        if self._watch:
            self._watch(self.progress)

    def _record_machines(self) -> None:
        """Record the machine figures, earlier sessions included."""
        figures = self._pool.figures() if self._pool else {}
        if figures:
            total = {name: round(self._machines_before.get(name, 0) + value, 3) for name, value in figures.items()}
            self.directory.journal.set_meta(MACHINES, json.dumps(total))

    def _update_session(self, number: int, *, force: bool = False) -> None:
        seconds = self.progress.seconds
        if force or seconds - self._session_updated > _SESSION_INTERVAL:
            self._session_updated = seconds
            self._record_machines()
            results = self.progress.done - self.progress.done_before
            self.directory.journal.update_session(number, seconds, results)


class SameFailures:
    """Decides whether to stop a run early: its first rollouts all failed with the same error.

    The first result with another outcome ends the check. A reached time limit is such a result: it depends on the task.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._error = ""
        self._count = 0

    def note(self, result: RolloutResult) -> str:
        """Take a final result; return the reason to stop, or an empty string."""
        if self._limit and result.status is RolloutStatus.FAILED:
            first_line = result.error.partition("\n")[0]
            error = f"{result.kind} {normalised_message(first_line)}"
            if self._error in {"", error}:
                self._error = error
                self._count += 1
                if self._count == self._limit:
                    return f"the first {self._count} rollouts all failed with the same error: {first_line}"
                return ""
        self._limit = 0
        return ""


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM, if the program handles them, to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}  # not SIG_DFL or SIG_IGN
    received: list[signal.Signals] = []
    deferring = True

    def defer(number: int, frame: FrameType | None) -> None:
        if deferring:
            received.append(signal.Signals(number))
        else:
            handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, defer)
        yield
    finally:
        deferring = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(received):
        signal.raise_signal(number)


def _result_of(response: TaskResponse, rollout: PendingRollout) -> RolloutResult | None:
    """Return the result that a response contains; None for a rollout that was cancelled before it used anything."""
    if response.status is TaskStatus.SUCCEEDED:
        answer: Any = response.answer
        assert isinstance(answer, RolloutResult)
        return answer
    result = RolloutResult(
        rollout.task.id, rollout.attempt, RolloutStatus.FAILED, error=response.msg, worker=response.worker
    )
    result.seconds, result.ended = response.time_cost, time.time()
    _set_usage(result, response.usage)
    if response.status is TaskStatus.CANCELLED:
        result.status, result.kind, result.final = RolloutStatus.INFRASTRUCTURE, "cancelled", False
        return result if result.requests else None
    if response.status is TaskStatus.LOST:
        result.status, result.kind = RolloutStatus.INFRASTRUCTURE, "worker"
    elif response.status is TaskStatus.TIMED_OUT:
        result.status, result.kind = RolloutStatus.TIMED_OUT, "time limit"
    else:
        result.kind = response.error.type if response.error else "unknown"
    return result


def _set_usage(result: RolloutResult, usage: Mapping[str, float]) -> None:
    """Set what an unfinished rollout had used, as `RolloutEpisode` reported it."""
    result.requests = int(usage.get("requests", 0))
    unknown = bool(usage.get("unknown"))
    result.prompt_tokens, result.completion_tokens = (
        None if unknown else int(usage.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")
    )
    result.cached_tokens, result.reasoning_tokens = (
        int(usage[name]) if name in usage and not unknown else None for name in ("cached_tokens", "reasoning_tokens")
    )
    result.judge_prompt_tokens, result.judge_completion_tokens = (
        int(usage.get(name, 0)) for name in ("judge_prompt_tokens", "judge_completion_tokens")
    )


def _copy_usage(result: RolloutResult, one: UnfinishedRollout) -> None:
    result.requests = one.requests
    result.prompt_tokens, result.completion_tokens = one.prompt_tokens, one.completion_tokens
    result.cached_tokens, result.reasoning_tokens = one.cached_tokens, one.reasoning_tokens
    result.judge_prompt_tokens, result.judge_completion_tokens = one.judge_prompt_tokens, one.judge_completion_tokens


def _unfinished_result(one: UnfinishedRollout) -> RolloutResult:
    """Return a result for a rollout whose worker died; it is not final and only counts usage."""
    result = RolloutResult(
        one.task,
        one.attempt,
        RolloutStatus.INFRASTRUCTURE,
        final=False,
        kind="worker",
        error="its worker died",
        started=one.started,
        ended=one.reported,
        worker=one.worker,
        machine=one.machine,
        activity=one.activity,
    )
    _copy_usage(result, one)
    return result
