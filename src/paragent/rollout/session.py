"""The driver's side of a rollout run: what is owed goes out, results come back, are durable, and then count."""

from __future__ import annotations

import contextlib
import heapq
import json
import re
import signal
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.text import counted
from paragent.errors import Interrupted
from paragent.models.base import MODELS
from paragent.rollout.dataset import digest_of
from paragent.rollout.live_status import Tally, Unfinished, left_by_the_dead, read_boards
from paragent.rollout.machines import SessionPool
from paragent.rollout.prepare import Prepared, prepare
from paragent.rollout.worker import FATAL, RolloutWorker
from paragent.runners.run import Run
from paragent.store import (
    MACHINES,
    PRICES,
    OwedRollout,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    StoredTask,
    Summary,
    final_failures,
    summarise,
)
from paragent.tasks import BenchmarkTask, Task, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from paragent.rollout.config import RolloutConfig
    from paragent.rollout.resources import RolloutSettings

__all__ = ["Session", "run_parallel_rollout"]


_REPLAYS = 2
"""Further plays of a rollout in one session after infrastructure ended it; a new session may try as often again."""
_REPLAY_PAUSE = 2.0
"""Seconds before the first of them, twice as many before the second."""
_TURN = 0.25
"""Seconds of waiting for results before the display is told something."""
_TELL = 0.2
"""Seconds between two reports to whoever watches: reading what workers say costs more than a result."""
_SESSION_NOTE = 5.0
"""Seconds between two notes of how long the session lasts."""
_BREAKER = 20
"""Rollouts in a row that the endpoint ended, at least, after which there is no point in going through all the others."""


class AlikeFailures:
    """Decides whether to give up: the first rollouts of a session all failed in the same way.

    The first result of any other kind ends the watch, a reached time limit included: that is a result of the task.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._way = ""
        self._count = 0

    def note(self, play: RolloutResult) -> str:
        """Take in a final result; return why to give up, or an empty text."""
        if self._limit and play.status is RolloutStatus.FAILED:
            head = play.error.partition("\n")[0]
            way = f"{play.kind} {_VARYING.sub('', head)}"
            if self._way in {"", way}:
                self._way = way
                self._count += 1
                if self._count == self._limit:
                    return f"the first {self._count} rollouts all failed in the same way: {head}"
                return ""
        self._limit = 0
        return ""


_VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"")
"""What differs between two messages of the same error: numbers, addresses, names in quotes."""


class Player:
    """The call that travels to a worker: plays one rollout there."""

    def __init__(self, settings: RolloutSettings) -> None:
        self._worker = RolloutWorker(settings)

    async def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        play = await self._worker.play(BenchmarkTask(**given["item"]), given["attempt"])
        return {name: getattr(play, name) for name in play.__slots__}


def run_parallel_rollout(config: RolloutConfig, watch: Callable[[Tally], None] | None = None) -> Summary:
    """Play everything that is owed and return the statistics of the whole run.

    The same configuration again continues where an earlier call stopped, for whatever reason it did.

    Args:
        config: what to play.
        watch: told now and then how far it is.

    Raises:
        UsageError: something has to be changed first; nothing was started.
        Interrupted: Ctrl-C; everything that had ended is kept.
        StoreFailed: results cannot be kept; what was recorded before is safe.
    """
    with Session(prepare(config), watch) as session:
        return session.play()


class Session:
    """One go at a run, from taking hold of its directory to letting go."""

    def __init__(self, prepared: Prepared, watch: Callable[[Tally], None] | None = None) -> None:
        self.prepared = prepared
        self._watch = watch
        self._config = prepared.config
        self.directory = RunDirectory(prepared.path)
        self._again: list[tuple[float, int, OwedRollout]] = []
        """Rollouts to be played again, by the moment from which they may be."""
        self._tries: dict[tuple[str, int], int] = {}
        """How often those were played in this session."""
        self._under_way: dict[str, OwedRollout] = {}
        self._ended: dict[str, RolloutResult] = {}
        """Plays that are not durable yet, by the id of their task."""
        self._played = 0
        self._in_a_row = 0
        self._alike = AlikeFailures(prepared.config.give_up_after)
        self._noted = 0.0
        self._told = 0.0
        self._pressure: Callable[[], tuple[int, int]] | None = None
        self._pool: SessionPool | None = None
        self._machines_before: dict[str, float] = {}
        """What came of the machines of earlier sessions."""
        self._began = False
        """Whether rollouts were handed out: what ends earlier leaves no trace."""
        self.stopped: str = ""
        """Why the rest was not played; empty if it was."""

    def __enter__(self) -> Self:
        self.resumed = self.directory.open(self._config.shown(), self.prepared.identity, fresh=self._config.fresh)
        journal = self.directory.journal
        if self._config.retry_failed:
            journal.reopen([RolloutStatus.FAILED, RolloutStatus.TIMED_OUT])
        self._account_for_the_dead()
        self.directory.forget_live()
        if journal.count_tasks() < self.prepared.benchmark.size:
            journal.add_tasks(StoredTask(item.id, digest_of(item), _body(item)) for item in self.prepared.benchmark)
        journal.set_meta("attempts", str(self._config.attempts))
        if self.prepared.prices is not None:
            journal.set_meta(PRICES, json.dumps(self.prepared.prices))
        summary = self.summary()
        self.tally = Tally.resumed(self.prepared.path.name, self.prepared.path, summary, final_failures(journal))
        self.owed = summary.owed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not self._began:
            self.directory.undo()
        else:
            self.directory.close()

    def watch(self, tell: Callable[[Tally], None]) -> None:
        """Have somebody told how far it is, a few times a second."""
        self._watch = tell

    def summary(self) -> Summary:
        """Return the statistics of the run as it is now."""
        return summarise(self.directory.journal, self._config.attempts)

    def play(self) -> Summary:
        """Play what is owed.

        Raises:
            Interrupted: Ctrl-C.
            StoreFailed: results cannot be kept.
            UsageError, MachineFailed, PoolFailed: the machines that the environment needs cannot be had. On leaving the
                `with`, the run's directory is as it was before.
        """
        if self.owed:
            number = self.directory.journal.begin_session()
            try:
                with self._machines() as settings, self._gate(settings) as shared:
                    self._player = Player(shared)
                    self._drive(number)
            except Interrupted:
                self.directory.finish(self.summary())
                raise
            finally:
                self._note_session(number, force=True)
        summary = self.summary()
        self.directory.finish(summary)
        return summary

    @contextlib.contextmanager
    def _machines(self) -> Iterator[RolloutSettings]:
        """Have machines, if the environment needs some; yield what workers need to know to play."""
        settings = self.prepared.play
        if self.prepared.machines is None:
            yield settings
            return
        self._say("starting machines")
        self._machines_before = json.loads(self.directory.journal.meta(MACHINES) or "{}")
        with SessionPool(self._config, self.prepared.machines, self.owed) as pool:
            self._pool = pool
            self._say("")
            try:
                yield replace(settings, machines=pool.place)
            finally:
                self._note_machines()
                self._pool = None
                self._say("ending machines")
        self._say("")

    @contextlib.contextmanager
    def _gate(self, settings: RolloutSettings) -> Iterator[RolloutSettings]:
        """Have workers share the limit of the model's endpoint; one worker, or a model without endpoint, has no need to."""
        if self.prepared.engine.workers == 1 or self._config.model in MODELS.names():
            yield settings
            return
        from paragent.models.rate_limit.server import RateLimitServer

        with RateLimitServer(self._config.num_rollouts, self._config.own_address) as rate_limit:
            self._pressure = rate_limit.pressure
            model, judge = (replace(one, rate_limit=rate_limit.address) for one in (settings.model, settings.judge))
            yield replace(settings, model=model, judge=judge)

    def _drive(self, number: int) -> None:
        run = Run(self.prepared.engine, None, iter(()))
        owed = self.directory.journal.owed(self._config.attempts)
        run.open()
        self._began = True
        try:
            more = self._feed(run, owed)
            while run.outstanding or (self._again and not self.stopped):
                if not run.outstanding:
                    time.sleep(self._patience())
                run.collect(self._patience())
                self._take(run)
                more = self._feed(run, owed) if more or self._again else False
                self._keep()
                self._tell(number)
        except KeyboardInterrupt:
            self._stop(run)
            raise Interrupted({}) from None
        finally:
            run.close()
            self._account_for_the_dead()

    def _feed(self, run: Run, owed: Iterator[OwedRollout]) -> bool:
        """Keep N rollouts under way; return whether more may be owed."""
        room = min(run.room, self._config.num_rollouts - run.outstanding)
        tasks: list[Task] = []
        exhausted = False
        while len(tasks) < room and not self.stopped:
            if self._again and self._again[0][0] <= time.monotonic():
                rollout = heapq.heappop(self._again)[2]
            elif (following := next(owed, None)) is not None:
                rollout = following
            else:
                exhausted = True
                break
            tasks.append(self._task(rollout))
        run.feed(tasks)
        return not exhausted and not self.stopped

    def _task(self, rollout: OwedRollout) -> Task:
        self._played += 1
        label = rollout.task if rollout.attempt == 1 else f"{rollout.task}#{rollout.attempt}"
        task = Task({"item": rollout.body, "attempt": rollout.attempt}, self._player, id=f"{self._played}:{label}")
        self._under_way[task.id] = rollout
        return task

    def _take(self, run: Run) -> None:
        """Turn responses into plays and decide which of them are final; Ctrl-C loses none of them, nor what they cost."""
        for number, response in list(run.ready.items()):
            rollout = self._under_way.get(response.id)
            if rollout is not None and (play := _play_of(response, rollout)) is not None:
                if play.decides:
                    self._decide(play, rollout)
                self._ended[response.id] = play
            self._under_way.pop(response.id, None)
            del run.ready[number]

    def _decide(self, play: RolloutResult, rollout: OwedRollout) -> None:
        key = (play.task, play.attempt)
        if play.status is not RolloutStatus.INFRASTRUCTURE:
            self.stopped = self.stopped or self._alike.note(play)
            self._in_a_row = 0
            self._tries.pop(key, None)
            return
        if play.kind in FATAL:
            self.stopped = self.stopped or play.error
            return
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        if play.kind == "worker" or tries > _REPLAYS or self.stopped:
            self._tries.pop(key, None)
            if play.kind == "endpoint":
                self._in_a_row += 1
                if self._in_a_row >= max(_BREAKER, self._config.num_rollouts) and not self.stopped:
                    self.stopped = f"the last {self._in_a_row} rollouts all ended with: {play.error}"
            return
        play.decides = False
        heapq.heappush(self._again, (time.monotonic() + _REPLAY_PAUSE * tries, self._played, rollout))
        self._played += 1

    def _keep(self) -> None:
        """Make results durable, then count them."""
        plays = list(self._ended.values())
        if plays:
            with _uninterrupted():
                self.directory.keep_files(plays)
                self.directory.journal.record(plays)
                self.directory.append_results(plays)
                for key, play in list(self._ended.items()):
                    del self._ended[key]
                    self.tally.count(play)

    def _tell(self, number: int) -> None:
        """Note how long the session lasts, and tell whoever watches how far it is."""
        self._note_session(number)
        self.tally.under_way = len(self._under_way)
        if self._watch and self.tally.seconds - self._told > _TELL:
            self._told = self.tally.seconds
            self.tally.sighting = seen = read_boards(self.directory.live)
            if self._pressure:
                seen.in_flight, seen.may_be_in_flight = self._pressure()
            self.tally.machines = self._pool.look() if self._pool else None
            self._watch(self.tally)

    def _account_for_the_dead(self) -> None:
        """Record what rollouts had used whose worker died, so that nothing that was paid for is missing from the account."""
        journal, live = self.directory.journal, self.directory.live
        with _uninterrupted():
            plays = [
                _lost_play(one)
                for one in left_by_the_dead(live)
                if not journal.has_play(one.task, one.attempt, one.worker, since=one.started, requests=one.requests)
            ]
            if plays:
                journal.record(plays)

    def _patience(self) -> float:
        if not self._again:
            return _TURN
        return min(_TURN, max(0.01, self._again[0][0] - time.monotonic()))

    def _stop(self, run: Run) -> None:
        """End what is under way; what comes in meanwhile is kept, the rest stays owed."""
        self.stopped = "interrupted"
        self._say(f"stopping {counted(run.outstanding, 'rollout')}; everything that ended is kept")
        self._take(run)
        self._keep()
        run.cancel()
        self._take(run)
        for key, play in list(self._ended.items()):
            if play.status is RolloutStatus.INFRASTRUCTURE:
                play.decides = False  # the interrupt caused it, so the rollout stays owed; what it used is counted
                if not play.requests:
                    del self._ended[key]
        self._keep()

    def _say(self, note: str) -> None:
        """Tell whoever watches what is being done besides playing."""
        self.tally.note = note
        if self._watch:
            self._watch(self.tally)

    def _note_machines(self) -> None:
        """Keep what came of the machines so far, earlier sessions included."""
        figures = self._pool.figures() if self._pool else {}
        if figures:
            whole = {name: round(self._machines_before.get(name, 0) + value, 3) for name, value in figures.items()}
            self.directory.journal.set_meta(MACHINES, json.dumps(whole))

    def _note_session(self, number: int, *, force: bool = False) -> None:
        seconds = self.tally.seconds
        if force or seconds - self._noted > _SESSION_NOTE:
            self._noted = seconds
            self._note_machines()
            self.directory.journal.note_session(number, seconds, self.tally.done - self.tally.before)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM where the program handles them; their handlers run at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {
        number: handler for number, handler in found.items() if callable(handler)
    }  # not those that end the process
    held: list[signal.Signals] = []
    holding = True

    def hold(number: int, frame: FrameType | None) -> None:
        if holding:
            held.append(signal.Signals(number))
        else:
            handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        holding = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(held):
        signal.raise_signal(number)


def _body(item: BenchmarkTask) -> dict[str, Any]:
    return asdict(item)


def _play_of(response: TaskResponse, rollout: OwedRollout) -> RolloutResult | None:
    """Return the play that a response tells of; None for one that was cancelled before it had used anything."""
    if response.status is TaskStatus.SUCCEEDED:
        return RolloutResult(**response.answer)
    play = RolloutResult(
        rollout.task, rollout.attempt, RolloutStatus.FAILED, error=response.msg, worker=response.worker
    )
    play.seconds, play.ended = response.time_cost, time.time()
    _charge(play, response.usage)
    if response.status is TaskStatus.CANCELLED:
        play.status, play.kind, play.decides = RolloutStatus.INFRASTRUCTURE, "cancelled", False
        return play if play.requests else None
    if response.status is TaskStatus.LOST:
        play.status, play.kind = RolloutStatus.INFRASTRUCTURE, "worker"
    elif response.status is TaskStatus.TIMED_OUT:
        play.status, play.kind = RolloutStatus.TIMED_OUT, "time limit"
    else:
        play.kind = response.error.type if response.error else "unknown"
    return play


def _charge(play: RolloutResult, usage: Mapping[str, float]) -> None:
    """Note what a play that did not come to its end had used, as `RolloutEpisode` recorded it."""
    play.requests = int(usage.get("requests", 0))
    unknown = bool(usage.get("unknown"))
    play.prompt_tokens, play.completion_tokens = (
        None if unknown else int(usage.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")
    )
    play.judge_prompt_tokens, play.judge_completion_tokens = (
        int(usage.get(name, 0)) for name in ("judge_prompt_tokens", "judge_completion_tokens")
    )


def _lost_play(left: Unfinished) -> RolloutResult:
    """Return the play of a worker that died, for the account alone."""
    play = RolloutResult(
        left.task, left.attempt, RolloutStatus.INFRASTRUCTURE, decides=False, kind="worker", worker=left.worker
    )
    play.error, play.ended = "its worker died", time.time()
    play.requests, play.prompt_tokens = left.requests, left.prompt_tokens
    play.completion_tokens = left.completion_tokens
    play.judge_prompt_tokens, play.judge_completion_tokens = left.judge_prompt_tokens, left.judge_completion_tokens
    return play
