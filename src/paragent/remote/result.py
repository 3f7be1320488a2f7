"""Lazy results of remote calls: a caller gets a `Result` at once and waits only when it uses the value."""

from __future__ import annotations

import contextlib
import enum
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from paragent.errors import CallCancelled, UsageError
from paragent.remote.unused_errors import warn_unused
from paragent.remote.values import decode, decode_error

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterable, Iterator

    from paragent.remote.link import Link

    Wakeups = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]

__all__ = ["RemoteCall", "Result", "State", "call_of", "failed_call", "value_of", "wait", "wake_loops"]


class State(enum.IntEnum):
    """State of a call.

    PENDING -> ENCODED -> READY, or PENDING -> HELD -> ENCODED -> READY, or PENDING -> FAILED -> RAISED, or PENDING -> RAISED.
    The link sets the state when an answer arrives or the call is aborted. Reading the value sets READY, and RAISED after FAILED.
    """

    PENDING = 0
    ENCODED = 1
    """The value has arrived and is not decoded yet."""
    HELD = 2
    """The value stays on the server, because it is too large to be sent without being asked for."""
    FAILED = 3
    """An error has arrived and is not decoded yet."""
    READY = 4
    """The value is decoded."""
    RAISED = 5
    """The error is decoded, or the call ended without an answer: it was cancelled, timed out, or the server was lost."""


PENDING, ENCODED, HELD, FAILED, READY, RAISED = (int(state) for state in State)
"""The states as integers: comparing them is faster than comparing members of an enum."""

_SHOWN = {
    PENDING: "pending",
    ENCODED: "arrived",
    HELD: "arrived, kept on the server until it is used",
    FAILED: "failed",
    RAISED: "failed",
}
"""What `repr` of a lazy result shows; the value itself once it is decoded."""

_watchers_lock = threading.Lock()
"""Protects the watchers of every call. One lock serves all, as few calls have a watcher and it is held briefly."""


class RemoteCall:
    """State of one call: pending, or how it ended.

    Any thread may read and wait. The call is settled once, by the I/O loop of its link or by the thread that loses the link.
    """

    __slots__ = ("__weakref__", "_watchers", "keeps", "link", "number", "size", "state", "unused", "value")

    def __init__(self, link: Link | None = None, number: int = 0) -> None:
        self.link, self.number = link, number
        self.size = 0
        """Bytes that the call counts for in the window of its link."""
        self.state = PENDING
        self.value: Any = None
        """Depends on the state: an encoded value or error, the value itself, the exception, or what pins the result."""
        self.keeps: list[Any] | None = None
        """Results and proxies among the arguments: they must live until the call has ended."""
        self.unused: bool | None = None
        """True: the result was dropped before the call had ended. False: another call uses the result. None: neither."""
        self._watchers: list[Any] | None = None

    # --- waiting ------------------------------------------------------------------------------------------------------

    def watch(self, watcher: Callable[[], object] | tuple[Any, Any]) -> bool:
        """Have `watcher` called, or the future of `(loop, future)` woken, when the call ends; return False if it has ended."""
        with _watchers_lock:
            if self._watchers is None:
                self._watchers = [watcher]
            else:
                self._watchers.append(watcher)
        # Checked after adding the watcher: `settle` looks for watchers after it has set the state.
        return self.state == PENDING

    def wait(self, timeout: float | None) -> None:
        """Block until the call has ended.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds.
            ValueError: `timeout` is NaN.
        """
        if self.state != PENDING:
            return
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not NaN")
        longest = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        ended = threading.Lock()
        ended.acquire()
        if self.watch(ended.release) and not ended.acquire(timeout=longest):
            raise TimeoutError(f"no result within {timeout} s; the call continues, cancel() ends it")

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until the call has ended, on the running event loop; cancelling the waiting task cancels the call."""
        import asyncio

        if self.state != PENDING:
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self.watch((loop, future)):
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise

    # --- the outcome --------------------------------------------------------------------------------------------------

    def settle(self, state: int, value: Any, wakeups: Wakeups) -> None:
        """Record the outcome and wake the watchers; futures of event loops are added to `wakeups`."""
        self.value = value
        self.state = state
        self.keeps = None
        if state == FAILED and self.unused:
            warn_unused(value)
        if self._watchers is None:
            return
        with _watchers_lock:
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            if type(watcher) is tuple:
                wakeups.setdefault(watcher[0], []).append(watcher[1])
            else:
                with contextlib.suppress(RuntimeError):  # releases the lock of a waiter that has timed out meanwhile
                    watcher()

    def fetch(self) -> RemoteCall:
        """Ask the server for the value of a call whose state is HELD."""
        assert self.link is not None
        return self.link.fetch(None, self.number)

    def take_over(self, fetched: RemoteCall) -> None:
        """Replace the state HELD by the outcome of `fetch`."""
        if self.state == HELD:
            self.value, self.state = fetched.value, fetched.state

    def cancel(self) -> bool:
        """Cancel the call; return False if it had already ended."""
        if self.state != PENDING or self.link is None:
            return False
        return self.link.cancel(self)

    def open(self) -> Any:
        """Return the value of a call that has ended, or raise its error."""
        state, value = self.state, self.value
        if state == ENCODED:
            value = decode(value)
            self.value, self.state = value, READY
            return value
        if state == FAILED:
            self.value, self.state = value, state = decode_error(value), RAISED
        if state == RAISED:
            raise BaseException.with_traceback(value, None)
        return value


def failed_call(error: BaseException) -> RemoteCall:
    """Return a call that has already ended with `error`."""
    call = RemoteCall()
    call.value, call.state = error, RAISED
    return call


def wake_loops(wakeups: Wakeups) -> None:
    """Wake the futures that `settle` has collected, interrupting each event loop once."""
    for loop, futures in wakeups.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(_set_results, futures)


def _set_results(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Result:
    """Result of a call to a remote agent. The call returns it at once, while the agent works.

    Using the value waits for it: its attributes and items, `==` and other comparisons, `len`, `bool`, `str`, iteration. If
    the agent raised an error, using the value raises it. `await` returns the value itself. The hash depends on the identity
    of the result, so results can be kept in sets without waiting.
    """

    __slots__ = ("__paragent_call__", "__weakref__")

    def __init__(self, call: RemoteCall) -> None:
        # Not a plain name: other attributes are those of the value.
        self.__paragent_call__ = call

    def __del__(self) -> None:
        call = self.__paragent_call__
        if call.unused is None:
            if call.state == PENDING:
                call.unused = True  # `settle` warns if the call fails
            elif call.state == FAILED:
                warn_unused(call.value)

    def done(self) -> bool:
        """Return whether the call has ended: with a value, an error or by cancellation."""
        return self.__paragent_call__.state != PENDING

    def result(self, timeout: float | None = None) -> Any:
        """Return the value; wait up to `timeout` seconds for it. The call continues after a timeout.

        Raises:
            TimeoutError: the call has not ended within `timeout` seconds.
            CallCancelled: the call was cancelled.
            CallTimedOut: the call has exceeded its own deadline.
            ServerLost: the server is lost.
            Exception: the error that the agent raised; its cause shows the remote traceback.
        """
        call = self.__paragent_call__
        state, value = call.state, call.value
        if state == READY or (state == ENCODED and type(value) is not tuple):
            return value
        deadline = None if timeout is None else time.monotonic() + timeout
        call.wait(timeout)
        if call.state == HELD:
            fetched = call.fetch()
            fetched.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            call.take_over(fetched)
        return call.open()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the call ended with, or None; waits as `result` does."""
        try:
            self.result(timeout)
        except BaseException as error:
            if error is not self.__paragent_call__.value:
                raise
            raised: BaseException = error
            return raised
        return None

    def cancel(self) -> bool:
        """Cancel the call; return False if it had already ended.

        In an async method `asyncio.CancelledError` is raised. In a sync method an exception is raised at its next step in
        Python code.
        """
        return self.__paragent_call__.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        call = self.__paragent_call__
        yield from call.__await__()
        if call.state == HELD:
            fetched = call.fetch()
            yield from fetched.__await__()
            call.take_over(fetched)
        return call.open()

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
        state, value = self.__paragent_call__.state, self.__paragent_call__.value
        here = state == READY or (state == ENCODED and type(value) is not tuple)
        return repr(value) if here else f"<Result: {_SHOWN[state]}>"

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


def call_of(result: Result) -> RemoteCall:
    """Return the call that a lazy result belongs to."""
    return result.__paragent_call__


def value_of(thing: Any) -> Any:
    """Return the value of a lazy result, waiting for it; anything else as it is."""
    return thing.result() if type(thing) is Result else thing


def cancelled() -> CallCancelled:
    """Return the error of a call that its caller has cancelled."""
    return CallCancelled("the call was cancelled")


def wait(results: Iterable[Result], timeout: float | None = None) -> tuple[list[Result], list[Result]]:
    """Wait until all calls have ended or `timeout` seconds have passed; return `(done, not done)` in the given order.

    A call that failed is done; its error is not raised here.

    Raises:
        UsageError: one of them is not a lazy result.
    """
    waited = list(results)
    deadline = None if timeout is None else time.monotonic() + timeout
    for result in waited:
        if type(result) is not Result:
            raise UsageError(f"paragent.wait takes what calls to remote agents return, not {result!r}")
        try:
            call_of(result).wait(None if deadline is None else deadline - time.monotonic())
        except TimeoutError:
            break
    done = [result for result in waited if result.done()]
    return done, [result for result in waited if not result.done()] if len(done) < len(waited) else []
