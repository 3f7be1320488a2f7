"""A lazy result: stands for what a remote call will return, and waits only when it is looked at."""

from __future__ import annotations

import contextlib
import enum
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from paragent.errors import CallCancelled, UsageError
from paragent.remote.values import decode, decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from paragent.remote.client.link import Link

__all__ = ["Result", "State", "Wakes", "value_of", "wait"]


class State(enum.IntEnum):
    """What is known of a result. The link sets all but READY and RAISED, which reading does.

    PENDING -> ENCODED -> READY, or PENDING -> HELD -> ENCODED -> READY, or PENDING -> FAILED -> RAISED.
    """

    PENDING = 0
    ENCODED = 1
    """The value is here, as it came."""
    HELD = 2
    """The value is on the server, too large to be sent unasked."""
    FAILED = 3
    """An error is here, as it came."""
    READY = 4
    RAISED = 5


PENDING, ENCODED, HELD, FAILED, READY, RAISED = (int(state) for state in State)

_watching = threading.Lock()
"""Protects the list of watchers of every result, which is short and rarely there."""

Wakes = "dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]"
"""Futures of other event loops to wake, collected so that each loop is interrupted once for a whole frame."""


class Result:
    """What a call to a remote agent returns, at once, while the agent works.

    Looking at the value waits for it: its attributes and items, `==` and other comparisons, `len`, `bool`, `str`,
    iteration. If the agent raised an error, looking raises it. `await` gives the value itself. The hash is that of the
    result's own identity, so that results can be gathered and kept in sets without waiting.
    """

    __slots__ = ("__weakref__", "_keeps", "_link", "_number", "_size", "_state", "_value", "_watchers")

    def __init__(self, link: Link | None, number: int, size: int = 0) -> None:
        self._link = link
        self._number = number
        self._size = size
        """What the call counts for in the window of its link."""
        self._state = PENDING
        self._value: Any = None
        self._watchers: list[Any] | None = None
        self._keeps: Any = None
        """Results and agents among the arguments: they must live until the call has ended."""

    # --- waiting ------------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Return whether the call has ended, in whichever way."""
        return self._state != PENDING

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, waiting up to `timeout` seconds for it; the call goes on if it takes longer.

        Raises:
            TimeoutError: the time is over.
            CallCancelled: the call was cancelled.
            CallTimedOut: the call itself had a deadline and missed it.
            ServerLost: the server is gone.
            Exception: what the agent raised, with its traceback there as the cause.
        """
        state, value = self._state, self._value
        if state == READY or (state == ENCODED and type(value) is not tuple):
            return value
        deadline = None if timeout is None else time.monotonic() + timeout
        self._wait(timeout)
        if self._state == HELD:
            held = self._fetch()
            held._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._take_over(held)
        return self._open()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the call ended with, or None; waits as `result` does."""
        try:
            self.result(timeout)
        except BaseException as error:
            if error is not self._value:
                raise
            raised: BaseException = error
            return raised
        return None

    def cancel(self) -> bool:
        """Cancel the call, wherever it is; return False if it had already ended.

        An async method meets `asyncio.CancelledError`, a sync one an exception at its next step in Python code.
        """
        if self._state != PENDING or self._link is None:
            return False
        return self._link.cancel(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if self._state == PENDING:
            yield from self._pause()
        if self._state == HELD:
            held = self._fetch()
            if held._state == PENDING:
                yield from held._pause()
            self._take_over(held)
        return self._open()

    def _pause(self) -> Generator[Any, None, None]:
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._watch((loop, future)):
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise

    def _wait(self, timeout: float | None) -> None:
        if self._state != PENDING:
            return
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not NaN")
        longest = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        gate = threading.Lock()
        gate.acquire()
        if self._watch(gate.release) and not gate.acquire(timeout=longest):
            raise TimeoutError(f"no result within {timeout} s; the call goes on, cancel() ends it")

    def _watch(self, watcher: Any) -> bool:
        """Have `watcher` called, or its future woken, when the call has ended; return False if it already has."""
        with _watching:
            if self._watchers is None:
                self._watchers = [watcher]
            else:
                self._watchers.append(watcher)
        # Checked after the watcher is in its place: the thread that settles looks for watchers after it has settled.
        return self._state == PENDING

    # --- what the link does -------------------------------------------------------------------------------------------

    def _settle(self, state: int, value: Any, wakes: Any) -> None:
        """Take the outcome; called once, by the thread of the link."""
        self._value = value
        self._state = state
        self._keeps = None
        if self._watchers is None:
            return
        with _watching:
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            if type(watcher) is tuple:
                wakes.setdefault(watcher[0], []).append(watcher[1])
            else:
                _call(watcher)

    def _fetch(self) -> Result:
        assert self._link is not None
        return self._link.fetch(None, self._number)

    def _take_over(self, other: Result) -> None:
        if self._state == HELD:
            self._value, self._state = other._value, other._state

    def _open(self) -> Any:
        """Return the value of a call that has ended, or raise its error."""
        state, value = self._state, self._value
        if state == ENCODED:
            value = decode(value)
            self._value, self._state = value, READY
            return value
        if state == FAILED:
            self._value, self._state = value, state = decode_error(value), RAISED
        if state == RAISED:
            raise BaseException.with_traceback(value, None)
        return value

    # --- standing for the value ---------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"a lazy result has no {name}; its value may: call .result()")
        return getattr(self.result(), name)

    def __getitem__(self, key: Any) -> Any:
        return self.result()[key]

    def __contains__(self, item: Any) -> bool:
        return item in self.result()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.result())

    def __len__(self) -> int:
        return len(self.result())

    def __bool__(self) -> bool:
        return bool(self.result())

    def __int__(self) -> int:
        return int(self.result())

    def __float__(self) -> float:
        return float(self.result())

    def __str__(self) -> str:
        return str(self.result())

    def __format__(self, spec: str) -> str:
        return format(self.result(), spec)

    def __repr__(self) -> str:
        state = State(self._state)
        return repr(self._value) if state is State.READY else f"<Result {state.name.lower()}>"

    def __eq__(self, other: object) -> bool:
        return bool(self.result() == value_of(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.result() != value_of(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.result() < value_of(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.result() <= value_of(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.result() > value_of(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.result() >= value_of(other))

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return value_of, (self.result(),)


def value_of(thing: Any) -> Any:
    """Return the value of a lazy result, waiting for it; anything else as it is."""
    return thing.result() if type(thing) is Result else thing


def _call(watcher: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # a gate whose waiter has given up meanwhile and was opened twice
        watcher()


def failed(error: BaseException) -> Result:
    """Return a result that has already ended with `error`."""
    result = Result(None, 0)
    result._value, result._state = error, RAISED
    return result


def cancelled() -> CallCancelled:
    """Return the error of a call that was cancelled by its caller."""
    return CallCancelled("the call was cancelled")


def wait(results: Iterable[Result], timeout: float | None = None) -> tuple[list[Result], list[Result]]:
    """Wait until every result is there or `timeout` seconds have passed; return `(done, not done)` in the given order.

    A call that failed is done; nothing is raised for it here.

    Raises:
        UsageError: something among them is no lazy result.
    """
    waited = list(results)
    deadline = None if timeout is None else time.monotonic() + timeout
    for result in waited:
        if type(result) is not Result:
            raise UsageError(f"paragent.wait takes what calls to remote agents return, not {result!r}")
        if result._state == PENDING:
            try:
                result._wait(None if deadline is None else deadline - time.monotonic())
            except TimeoutError:
                break
    done = [result for result in waited if result._state != PENDING]
    return done, [result for result in waited if result._state == PENDING] if len(done) < len(waited) else []
