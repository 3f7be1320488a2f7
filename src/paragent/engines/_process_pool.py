"""An engine made of supervised workers: one thread selects on all of them and shares out the calls."""

from __future__ import annotations

import abc
import contextlib
import os
import selectors
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from paragent._internal.threads import start_thread
from paragent.engines._scheduler import Dispatch, Limits, Seat, Weight
from paragent.engines.base import RuntimeEngine, thread_failure
from paragent.errors import EngineFailed
from paragent.tasks import Ending, Outcome
from paragent.worker.output import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.engines._worker_handle import Tidings
    from paragent.engines.base import Call

__all__ = ["Member", "PooledRuntime"]

_THREAD = "paragent-engine"
_FAILED_STARTS = 3
"""Workers in a row that end before they are ready: then there is no point in starting more. One whose connection broke does
not count; the calls it held are lost, and their attempts are what bounds that."""
_STUCK = 0.02
"""Seconds without an outcome after which a worker is asked to give back what it has not started, if another is idle."""
_STOP_PATIENCE = 1.0
_HEAD_START = 0.1
"""Seconds to let the engine's thread start workers before the caller goes on and takes the interpreter from it; it needs a few
milliseconds."""


class Member(Protocol):
    """A worker as a pool sees it; `Supervisor` is the one for processes of this machine."""

    place: str
    recalling: bool
    answered: bool
    alarm: float | None

    def sources(self) -> list[int]: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def wants_to_write(self) -> bool: ...
    def give(self, calls: Sequence[Call]) -> None: ...
    def recall(self) -> None: ...
    def cancel(self) -> None: ...
    def kill(self, cause: str, *, cancelled: bool = False) -> Tidings: ...
    def renew(self) -> bool: ...
    def stop(self) -> None: ...
    def release(self, patience: float) -> None: ...
    def news(self) -> Tidings: ...


class PooledRuntime(RuntimeEngine):
    """Everything of an engine but where its workers come from: a subclass says that in `recruit`."""

    where_errors_are = "Its error output is above"
    """Where to look when workers cannot start."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        once = not config.reuse_process
        self.limits = Limits(
            sync=1 if once else config.sync_limit,
            asynchronous=1 if once else config.async_limit,
            shared=once or config.concurrency is not None,
            once=once,
        )
        self._dispatch = Dispatch(self.limits)
        self._window = self._dispatch.window(config.workers)
        self._weight = Weight()
        self._crew: dict[Seat, Member] = {}
        self._last_news: dict[Seat, float] = {}
        self._failed_starts = 0
        self._cancel_at: float | None = None
        self._inbox: deque[Call] = deque()
        self._arrivals: deque[Member] = deque()
        self._foreseen = 0
        """Calls that were announced before the first of them came."""
        self._foresight = threading.Event()
        """Set when the workers for them have been started."""
        self._cancel_asked: float | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_end, self._woken_end = -1, -1
        self._bell = threading.Lock()
        """Keeps the thread from closing `_wake_end` while somebody else writes to it."""
        self._done: list[Outcome] = []
        self._failure: EngineFailed | None = None
        self._changed = threading.Condition()
        """Protects `_done`, `_failure`, `_closing` and starting the thread; notified when any of them changes."""

    @abc.abstractmethod
    def recruit(self, missing: int) -> list[Member]:
        """Return up to `missing` new workers. Called by the engine's thread whenever there are fewer than are needed.

        Workers that take a while to come are left out here and handed to `enlist` when they are there.
        """

    def enlist(self, member: Member) -> None:
        """Take in a worker that has come by itself; from any thread."""
        self._arrivals.append(member)
        self._wake()

    # --- the contract, called from any thread -------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """As the contract says; grows when calls turn out to be short."""
        return self._window

    def expect(self, calls: int) -> None:
        """Start the first workers, so that they load what they need while the caller still prepares its calls."""
        with self._changed:
            if calls < 1 or self._closing or self._thread is not None:
                return
            self._foreseen = calls
            self._start_thread()
        if not self._failure:
            self._foresight.wait(_HEAD_START)

    def submit(self, calls: Sequence[Call]) -> None:
        """Queue calls for the engine's thread, which is started with the first ones."""
        with self._changed:
            if self._closing:
                raise EngineFailed("the engine is closed; open a new one")
            if self._thread is None and not self._failure:
                self._start_thread()
            if self._failure:
                raise self._failure
        self._inbox.extend(calls)
        self._wake()

    def _start_thread(self) -> None:
        """Start the engine's thread, or note why that is impossible."""
        try:
            self._woken_end, self._wake_end = os.pipe()
            os.set_blocking(self._wake_end, False)
            os.set_blocking(self._woken_end, False)
            self._selector.register(self._woken_end, selectors.EVENT_READ, None)
            self._thread = start_thread(self._run, name=_THREAD, failed=self._thread_failed)
        except (RuntimeError, OSError) as error:
            self._thread_failed(_THREAD, error)
            self._close_bell()

    def wait(self, timeout: float) -> list[Outcome]:
        """Return outcomes as they come, in groups."""
        done: list[Outcome] = []
        try:
            with self._changed:
                if not self._done and not self._failure:
                    self._changed.wait(timeout)
                if not self._done and self._failure:
                    raise self._failure
                done, self._done = self._done, []
        except KeyboardInterrupt:
            with self._changed:
                self._done[:0] = done
            raise
        return done

    def cancel(self, grace: float) -> None:
        """Have the engine's thread stop everything; outcomes follow."""
        self._cancel_asked = grace
        self._wake()

    def close(self) -> None:
        """End all workers: idle ones by asking, busy ones by force."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._wake()
            self._thread.join()

    def _wake(self) -> None:
        with self._bell:
            if self._wake_end >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake_end, b"!")

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - without this thread nobody would ever get an outcome again
            self._thread_failed(_THREAD, error)
        finally:
            self._shut_down()

    def _turn(self) -> None:
        self._take_in()
        self._cancel_if_asked()
        self._staff()
        for seat, calls in self._dispatch.assign(list(self._crew)):
            self._crew[seat].give(calls)
        self._recall_where_stuck()
        workers = self.config.workers
        self._window = self._weight.allows(self._dispatch.window(workers), self._dispatch.capacity(workers))
        ready = self._selector.select(self._patience())
        seats = {key.data for key, _ in ready if key.data is not None}
        if any(key.data is None for key, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken_end, 65536)
        now = time.monotonic()
        seats |= {seat for seat, member in self._crew.items() if member.alarm is not None and member.alarm <= now}
        for seat in seats:
            self._handle(seat, self._crew[seat].news())

    def _take_in(self) -> None:
        arrived = []
        while self._inbox:
            arrived.append(self._inbox.popleft())
        if arrived:
            self._dispatch.add(arrived)
        while self._arrivals:
            self._seat(self._arrivals.popleft())

    def _staff(self) -> None:
        """Start as many workers as there is work for, up to the number that the configuration allows."""
        busy = sum(1 for seat in self._crew if seat.calls)
        wanted = min(self.config.workers, max(self._foreseen, len(self._dispatch) + busy))
        self._foreseen = 0
        missing = wanted - len(self._crew)
        if missing <= 0 or self._failure:
            return
        try:
            members = self.recruit(missing)
        except OSError as error:
            self._fail(EngineFailed(f"cannot start a worker: {error}"))
            return
        for member in members:
            self._seat(member)
        self._foresight.set()

    def _seat(self, member: Member) -> None:
        seat = Seat()
        self._crew[seat] = member
        self._last_news[seat] = time.monotonic()
        self._watch(seat, member)

    def _watch(self, seat: Seat, member: Member) -> None:
        for source in member.sources():
            self._selector.register(source, selectors.EVENT_READ, seat)

    def _patience(self) -> float:
        """Return how long nothing but news needs to be waited for."""
        now = time.monotonic()
        until = [member.alarm - now for member in self._crew.values() if member.alarm is not None]
        if self._cancel_at is not None:
            until.append(self._cancel_at - now)
        if self._dispatch.overfull(list(self._crew)):
            until.append(_STUCK)
        for member in self._crew.values():
            source = member.sources()[0]
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.wants_to_write else 0)
            if self._selector.get_key(source).events != events:
                self._selector.modify(source, events, self._selector.get_key(source).data)
        return max(0.0, min(until, default=60.0))

    def _handle(self, seat: Seat, tidings: Tidings) -> None:
        show(tidings.lines)
        if tidings.died is not None:
            member = self._drop(seat)
            if tidings.never_ready:
                self._failed_starts += 1
            elif member.answered:
                self._failed_starts = 0
            if self._failed_starts >= _FAILED_STARTS:
                self._fail(
                    EngineFailed(
                        f"workers end before they are ready, the last one: {tidings.died}. {self.where_errors_are}"
                    )
                )
        elif tidings.outcomes or tidings.lines:
            self._failed_starts = 0
        if tidings.outcomes:
            self._last_news[seat] = time.monotonic()
            self._dispatch.observe(seat.remove_ended(tidings.outcomes))
            self._weight.observe(tidings.outcomes[0])
            self._publish(tidings.outcomes)
        if self.limits.once and seat.used and not seat.calls and seat in self._crew:
            if self._crew[seat].renew():
                seat.used = False
            else:
                self._drop(seat).release(0.0)

    def _drop(self, seat: Seat) -> Member:
        member = self._crew.pop(seat)
        self._last_news.pop(seat, None)
        for key in [key for key in self._selector.get_map().values() if key.data is seat]:
            self._selector.unregister(key.fileobj)
        return member

    def _recall_where_stuck(self) -> None:
        now = time.monotonic()
        for seat in self._dispatch.overfull(list(self._crew)):
            if not self._crew[seat].recalling and now - self._last_news[seat] > _STUCK:
                self._crew[seat].recall()

    def _cancel_if_asked(self) -> None:
        now = time.monotonic()
        if self._cancel_asked is not None:
            self._cancel_at, self._cancel_asked = now + self._cancel_asked, None
            self._publish([Outcome(call.number, Ending.CANCELLED) for call in self._dispatch.clear()])
            for member in self._crew.values():
                member.cancel()
        if self._cancel_at is None:
            return
        for seat, member in list(self._crew.items()):
            hopeless = seat.calls and not seat.counts[True]
            if hopeless or (seat.calls and now >= self._cancel_at):
                tidings = member.kill("the run was cancelled", cancelled=True)
                self._handle(seat, tidings)
        if now >= self._cancel_at or not any(seat.calls for seat in self._crew):
            self._cancel_at = None

    def _publish(self, outcomes: list[Outcome]) -> None:
        with self._changed:
            self._done += outcomes
            self._changed.notify_all()

    def _thread_failed(self, name: str, error: BaseException) -> None:
        """Fail the engine because one of its threads could not start or ended unexpectedly; from any thread."""
        self._fail(thread_failure(name, error))

    def _fail(self, failure: EngineFailed) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _shut_down(self) -> None:
        for member in self._crew.values():
            if not member.in_flight:
                member.stop()
        while self._arrivals:
            self._arrivals.popleft().release(0.0)
        for seat, member in list(self._crew.items()):
            self._drop(seat)
            member.release(_STOP_PATIENCE if not member.in_flight else 0.0)
        self._selector.close()
        self._close_bell()

    def _close_bell(self) -> None:
        with self._bell:
            for end in (self._woken_end, self._wake_end):
                if end >= 0:
                    os.close(end)
            self._woken_end = self._wake_end = -1
