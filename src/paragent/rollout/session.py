"""The driver of a run: dispatches pending rollouts, records their results, retries infrastructure failures."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Self

from paragent._internal.signals import signals_deferred
from paragent._internal.text import counted
from paragent.engines import open_engine
from paragent.errors import Interrupted
from paragent.models.base import MODELS
from paragent.rollout.answered import AnsweredEndpoints
from paragent.rollout.blame import FailureDecisions
from paragent.rollout.budgets import Budgets, reason_to_stop
from paragent.rollout.commands import SessionCommands
from paragent.rollout.control import RunControl
from paragent.rollout.events import EventLog
from paragent.rollout.live_status import (
    RolloutProgress,
    RunState,
    find_left_files,
)
from paragent.rollout.machines import SessionPool, host_address
from paragent.rollout.pool_file import pool_file
from paragent.rollout.prepare import RolloutPlan, prepare
from paragent.rollout.queue import RolloutKey, RolloutQueue, key_of
from paragent.rollout.report import SessionReport
from paragent.rollout.results import result_of, unfinished_result
from paragent.rollout.worker import RolloutWorker
from paragent.runners.run import Run
from paragent.store import (
    ATTEMPTS,
    MACHINES,
    METRIC,
    PRICES,
    PendingRollout,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    Summary,
    final_failures,
    summarise,
)
from paragent.store.summary import STOPPED
from paragent.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paragent.rollout.config import RolloutConfig
    from paragent.rollout.live_run import LiveBudget
    from paragent.rollout.live_status import LeftFiles
    from paragent.rollout.resources import RolloutSettings
    from paragent.rollout.source import FailurePolicy, RolloutSource
    from paragent.rollout.tracing import RunTracing

__all__ = ["RolloutSession", "run_parallel_rollout"]

_log = logging.getLogger("paragent.rollout")
_POLL_INTERVAL = 0.25
"""Seconds to wait for results before the display is updated."""
_SOURCE_INTERVAL = 0.05
"""Seconds to wait for results before a source is asked for rollouts again."""
_SESSION_INTERVAL = 5.0
"""Seconds between two updates of the session's duration in the journal."""
_WAIT_FOR_WORKERS = 6.0
"""Seconds to wait at most for workers of a session that was killed. Those on this host are killed by the kernel at the same
time, and of others the status file is stale after 5 s."""
_FIRST_FAILURE = """
    SELECT min(number) FROM results r WHERE status = 'infrastructure' AND kind IN ('endpoint', 'request') AND NOT EXISTS (
        SELECT 1 FROM results WHERE task = r.task AND attempt = r.attempt AND final = 1 AND status != 'infrastructure')"""
"""The first execution of a pending rollout that failed because of the endpoint."""


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
    """One session of a run: a context manager that locks the run directory.

    Args:
        plan: the run.
        source: where rollouts come from; None: they are the pending ones of the run's benchmark.
    """

    def __init__(self, plan: RolloutPlan, source: RolloutSource | None = None) -> None:
        self.plan = plan
        self._source = source
        self._config = plan.config
        self.directory = RunDirectory(plan.path)
        self._queue: RolloutQueue
        self._report: SessionReport
        self._commands: SessionCommands
        self._unrecorded: dict[str, RolloutResult] = {}
        """Results that are not recorded yet, by the id of their runner task."""
        self._failures: FailurePolicy
        self._answered: AnsweredEndpoints
        self._session_updated = 0.0
        self._pool: SessionPool | None = None
        self._run: Run | None = None
        self._events = EventLog()
        self._machines_before: dict[str, float] = {}
        """The machine figures of earlier sessions."""
        self._began = False
        """Whether rollouts were dispatched. A session that fails earlier restores the run directory."""
        self._dispatch_ended = False
        """Whether no more rollouts will be dispatched."""
        self.resumed = False
        """Whether the run has results of an earlier session."""
        self.pending = 0
        """The number of rollouts that were pending when the session began."""
        self.progress: RolloutProgress
        self._worker: RolloutWorker
        self._control: RunControl | None = None
        self._tracing: RunTracing | None = None
        """Sends spans, with `--otel`."""
        self.unsent_spans = ""
        """Which spans could not be sent, and why; empty if all were sent."""
        self.used_up: LiveBudget | None = None
        """The budget because of which the session stopped."""

    @property
    def stopped(self) -> str:
        """Why the remaining rollouts were not executed; empty if they were."""
        return self._queue.stopped

    def __enter__(self) -> Self:
        self.resumed = self.directory.open(self._config.stored(), self.plan.identity, fresh=self._config.run.fresh)
        try:
            self._open()
        except BaseException:
            self.directory.close()  # `__exit__` is not called
            raise
        return self

    def _open(self) -> None:
        journal = self.directory.journal
        if self._config.run.retry_failed:
            journal.reopen(
                [RolloutStatus.FAILED, RolloutStatus.TIMED_OUT, RolloutStatus.CANCELLED, RolloutStatus.UNSCORED]
            )
        left = self._record_unfinished(_WAIT_FOR_WORKERS)
        self.directory.clear_live(keep=left.of_active)
        if journal.count_tasks() < self.plan.benchmark.size:
            journal.add_tasks(self.plan.benchmark)
        journal.set_meta(ATTEMPTS, str(self._config.data.attempts))
        journal.set_meta(METRIC, self.plan.metric)
        if self.plan.prices is not None:
            journal.set_meta(PRICES, json.dumps(self.plan.prices))
        summary = self.summary()
        self.progress = RolloutProgress.resumed(self.plan.path.name, self.plan.path, summary, final_failures(journal))
        self.pending = summary.pending
        self._open_parts(summary)

    def _open_parts(self, summary: Summary) -> None:
        plan, attempts = self.plan, self._config.data.attempts
        self._answered = AnsweredEndpoints(self.directory.journal)
        self._failures = self._load_failures() if self._source is None else self._source.failures
        pending = self.directory.journal.pending(attempts) if self._source is None else self._source.rollouts()
        self._queue = RolloutQueue(pending, self._config.run.num_rollouts)
        budgets = Budgets.of(self._config, plan.prices)
        self._report = SessionReport(self.directory.live, self.progress, self._queue, budgets, summary.seconds)
        self._commands = SessionCommands(
            self._queue,
            self.directory,
            self.progress,
            attempts=attempts,
            capacity=plan.capacity,
            record=self._record_now,
        )

    def _load_failures(self) -> FailureDecisions:
        """Return the decisions about failures, with the failed executions of pending rollouts in earlier sessions."""
        decisions, journal = FailureDecisions(self._config.run.give_up_after), self.directory.journal
        [(first,)] = journal.rows(_FIRST_FAILURE)
        if first is not None:
            sessions = [started for (started,) in journal.rows("SELECT started FROM sessions ORDER BY number")]
            decisions.load(journal.results("number >= ?", [first]), sessions)
        return decisions

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not self._began:
            self.directory.undo()
        else:
            self.directory.close()

    def watch(self, observer: Callable[[RolloutProgress], None]) -> None:
        """Call `observer` with the progress a few times per second, and when the state or the note changes."""
        self._report.watch(observer)

    def summary(self) -> Summary:
        """Return the current statistics of the run."""
        return summarise(self.directory.journal, self._config.data.attempts)

    def wake(self) -> None:
        """Ask the source for rollouts now; from any thread."""
        if (control := self._control) is not None:
            control.wake()

    def stop(self, why: str) -> None:
        """Start no more rollouts and cancel those under way; from any thread."""
        self._queue.stopped = self._queue.stopped or why
        self._queue.cancels_active = True
        self.wake()

    def run(self) -> Summary:
        """Execute the pending rollouts, or those of the source until it ends.

        Raises:
            Interrupted: Ctrl-C.
            StoreFailed: results cannot be stored.
            UsageError, MachineFailed, PoolFailed: the machines cannot be started. On leaving the `with`, the run directory
                is restored.
        """
        if self.pending:
            self._check_budgets()
        if (not self.pending and self._source is None) or self.stopped:
            return self._finish()
        number = self.directory.journal.begin_session()
        self.directory.journal.set_meta(STOPPED, "")
        with self._traced(number):
            try:
                with (
                    RunControl(self.directory.live, lambda: self._report.live) as control,
                    self._machines() as settings,
                    self._rate_limit(settings) as shared,
                ):
                    self._worker = RolloutWorker(replace(shared, supervised=True))
                    self._execute(number, control)
            except Interrupted:
                self._finish()
                raise
            finally:
                self._update_session(number, force=True)
                self._update_used_up()
                self._report.show(RunState.STOPPED if self._count_pending() else RunState.COMPLETE)
            return self._finish()

    def _count_pending(self) -> int:
        return self.directory.journal.count_pending(self._config.data.attempts)

    def _finish(self) -> Summary:
        """Store why the session stopped, and write results.jsonl and summary.json; return the statistics."""
        self.directory.journal.set_meta(STOPPED, self.stopped)
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
            self._tracing = None
            self.unsent_spans = tracing.close(error)
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
        expected = self.pending if self._source is None else self._config.run.num_rollouts
        pool = SessionPool(self._config, self.plan.machines, expected)
        try:
            with pool, pool_file(self.directory.live, pool.access):
                self._pool = self._report.pool = self._commands.pool = pool
                self._set_note("")
                try:
                    yield replace(settings, machines=pool.access)
                finally:
                    self._record_machines()
                    self._pool = self._report.pool = self._commands.pool = None
                    self._set_note("stopping machines")
        finally:
            self._events.collect(None, pool, now=True)
            self._record_events()
        self._set_note("")

    @contextlib.contextmanager
    def _rate_limit(self, settings: RolloutSettings) -> Iterator[RolloutSettings]:
        """Share the rate limit between workers. A model without an endpoint needs none."""
        if self._config.model.name in MODELS.names():
            if self._source is not None:
                self._source.opened(None)
            yield settings
            return
        from paragent.models.rate_limit_server import RateLimitServer

        run = self._config.run
        controlled = self._source is not None
        with RateLimitServer(run.num_rollouts, host_address(run), controlled=controlled) as rate_limit:
            self._report.requests, self._commands.resize_requests = rate_limit.pressure, rate_limit.resize
            if self._source is not None:
                self._source.opened(rate_limit)
            model, judge = (
                replace(one, rate_limit=rate_limit.address, answered=self._answered.knows(one))
                for one in (settings.model, settings.judge)
            )
            self._answered.watch(rate_limit, model, judge)
            try:
                yield replace(settings, model=model, judge=judge)
            finally:
                self._answered.record()

    def _execute(self, session: int, control: RunControl) -> None:
        """Dispatch rollouts and record results until no rollout is pending, or the session is to stop."""
        queue = self._queue
        self._run = run = Run(self.plan.engine, open_engine(self.plan.engine), iter(()), lent=False)
        run.open()
        self._began = True
        self._control = control
        control.accept()
        try:
            control.execute(self._command)
            self._feed(run)
            self._report.show(queue.state)
            while (run.outstanding or queue.has_more) and not queue.cancels_active:
                if not run.outstanding:
                    control.wait(self._poll_timeout())
                run.collect(self._poll_timeout())
                self._take_responses(run)
                self._check_budgets()
                self._feed(run)
                self._record()
                control.execute(self._command)
                if self._source is not None:
                    self.progress.total = self._source.total
                self._update_session(session)
                self._report.show_regularly(queue.state)
            if run.outstanding:
                self._cancel(run)
        except KeyboardInterrupt:
            queue.stopped = "interrupted"
            self._cancel(run)
            raise Interrupted({}) from None
        finally:
            self._dispatch_ended = True
            control.refuse("the run is finishing")
            run.close()
            self._events.collect(run, self._pool, now=True)
            self._record_unfinished()

    @property
    def _state(self) -> RunState:
        if not self._began:
            return RunState.STARTING
        return RunState.STOPPING if self._dispatch_ended else self._queue.state

    def _command(self, name: str, argument: str) -> str:
        """Execute a command of a user, and show its effect before the user gets the answer."""
        answer = self._commands.execute(name, argument)
        self._report.show(self._queue.state)
        return answer

    def _check_budgets(self) -> None:
        """Stop the session if a budget is used up."""
        if not self.stopped and (budget := self._report.used_up(self._unrecorded.values())) is not None:
            self.used_up = budget
            self._queue.stopped = reason_to_stop(budget)
            self._queue.cancels_active = self._config.run.at_limit == "cancel"

    def _update_used_up(self) -> None:
        """Count what the rollouts under way used after a budget was used up."""
        if self.used_up is not None and self.stopped == reason_to_stop(self.used_up):
            final = self._report.use_of(self.used_up.name)
            if final.used is not None:
                self.used_up = final
                self._queue.stopped = reason_to_stop(final)

    def _feed(self, run: Run) -> None:
        """Dispatch rollouts until N are under way."""
        run.feed([Task(rollout, self._worker, id=task_id) for task_id, rollout in self._queue.take(run.room)])

    def _take_responses(self, run: Run) -> None:
        """Turn responses into results and decide which are final. Ctrl-C at any point loses neither results nor usage."""
        queue = self._queue
        cancelling = len(queue.cancelling)
        for number, response in list(run.ready.items()):
            rollout = queue.active.get(response.id)
            cancelled = rollout is not None and key_of(rollout) in queue.cancelling
            live = self.directory.live
            if rollout is not None and (result := result_of(response, rollout, live, cancelled=cancelled)) is not None:
                if result.final:
                    self._decide(result, rollout)
                self._unrecorded[response.id] = result
            queue.end(response.id)
            del run.ready[number]
        if len(queue.cancelling) < cancelling:
            self._commands.clear_cancelled()

    def _decide(self, result: RolloutResult, rollout: PendingRollout) -> None:
        """Decide whether a result is final, is retried, or stops the run."""
        queue = self._queue
        decision = self._failures.decide(
            result,
            concurrent=queue.limit,
            stopping=bool(queue.stopped),
            endpoint_answered=self._answered.include_agents,
            earlier=map(key_of, takewhile(lambda other: other is not rollout, queue.active.values())),
        )
        queue.stopped = queue.stopped or decision.stop
        if decision.retry_after is not None:
            result.final = False
            queue.retry_later(rollout, decision.retry_after)
        for key in decision.reopen:
            self._reopen(key, result)

    def _reopen(self, key: RolloutKey, last: RolloutResult) -> None:
        """Make a rollout pending again that had a final result in this session."""
        unrecorded = [*self._unrecorded.values(), last]
        if (result := next((one for one in unrecorded if (one.task, one.attempt) == key), None)) is not None:
            result.final = False
            return
        recorded = self.directory.journal.final_result(*key)
        if recorded is not None:
            self.directory.journal.reopen_rollout(*key)
            self.progress.reopen(recorded)

    def _record(self) -> None:
        """Record results and events durably, then count the results."""
        results = list(self._unrecorded.values())
        self._events.collect(self._run, self._pool)
        self._events.derive(results)
        if results or self._events.overdue:
            with signals_deferred():
                self.directory.write_files(results)
                self._record_events(results)
                self._answered.record(results)
                self.directory.append_results(results)
                self._trace(results)
                for key, result in list(self._unrecorded.items()):
                    del self._unrecorded[key]
                    self.progress.count(result)
                    self._report.count(result)
                if self._source is not None:
                    self._source.recorded(results)

    def _record_events(self, results: Sequence[RolloutResult] = ()) -> None:
        """Record the events so far, in one transaction with results."""
        if results or self._events.machines or self._events.workers:
            self.directory.journal.record(results, self._events.machines, self._events.workers)
            self._events.clear()

    def _trace(self, results: list[RolloutResult]) -> None:
        if self._tracing is not None:
            self._tracing.record(results)

    def _record_now(self, result: RolloutResult) -> None:
        """Record a result that no runner task has."""
        self._unrecorded[f"without a task: {result.label}"] = result
        self._record()

    def _record_unfinished(self, wait: float = 0.0) -> LeftFiles:
        """Record what executions without a result had used, so that all tokens are counted; then delete the status files.

        Args:
            wait: how many seconds to wait at most for workers of an earlier session.
        """
        left = find_left_files(self.directory.live, wait)
        with signals_deferred():
            self._record_events()
            used = [unfinished_result(one) for one in left.executions if one.requests]
            self._trace(self.directory.journal.record_unfinished(used))
            left.remove_ended()  # after the commit: a crash in between must not lose the usage
        return left

    def _poll_timeout(self) -> float:
        retry = self._queue.seconds_to_retry
        interval = _POLL_INTERVAL if self._source is None else _SOURCE_INTERVAL
        return interval if retry is None or self._queue.paused else min(interval, max(0.01, retry))

    def _cancel(self, run: Run) -> None:
        """Cancel active rollouts. Results that arrive meanwhile are recorded; the other rollouts stay pending."""
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
        self._report.show(self._state)

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
