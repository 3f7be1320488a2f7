"""Lazy results of remote calls: a caller gets a `Result` at once and waits only when it uses the value."""

from __future__ import annotations

import contextlib
import enum
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from paragent._internal.representations import short_value
from paragent._internal.threads import wait_in_slices
from paragent.errors import CallCancelled, UsageError
from paragent.remote.callbacks import Callback, start_callbacks
from paragent.remote.unused_errors import warn_unused
from paragent.remote.values import decode, decode_error, note_missing

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Generator, Iterator

    from paragent.remote.link import Link

    Wakeups = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]

__all__ = ["RemoteCall", "Result", "State", "call_of", "failed_call", "value_of", "wake_loops"]

T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")


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
    ENCODED: "done",
    HELD: "done, kept on the server until it is used",
    FAILED: "failed",
    READY: "done",
    RAISED: "failed",
}
"""What `repr` of a lazy result shows, before the value or the error once it is decoded."""

_lock = threading.RLock()
"""Protects the watchers of every call, and state and value while they change from encoded to decoded. One lock serves all calls,
as it is held briefly. Reentrant, because finalizers of users may run meanwhile and use results."""


def _renew_lock() -> None:
    """In a forked process: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class RemoteCall:
    """State of one call: pending, or how it ended.

    Any thread may read and wait. The call is settled once, by the I/O loop of its link or by the thread that loses the link.
    """

    __slots__ = ("__weakref__", "keeps", "label", "link", "number", "size", "state", "unused", "value", "watchers")

    def __init__(self, link: Link | None = None, number: int = 0, label: str = "") -> None:
        self.link, self.number = link, number
        self.label = label
        """The class and the method, for `repr`."""
        self.size = 0
        """Bytes that the call counts for in the window of its link."""
        self.state = PENDING
        self.value: Any = None
        """Depends on the state: an encoded value or error, the value itself, the exception, or what pins the result."""
        self.keeps: list[Any] | None = None
        """Results and proxies among the arguments: they must live until the call has ended."""
        self.unused: bool | None = None
        """True: the result was dropped before the call had ended. False: another call uses the result. None: neither."""
        self.watchers: list[Any] | None = None

    # --- waiting ------------------------------------------------------------------------------------------------------

    def ended(self) -> bool:
        """Return whether the call has ended."""
        if self.state == PENDING and self.link is not None:
            self.link.fail_if_lost()  # in a forked process nothing else ends it
        return self.state != PENDING

    def watch(self, watcher: Callable[[], object] | tuple[Any, Any]) -> bool:
        """Have `watcher` called, or the future of `(loop, future)` woken, when the call ends; return False if it has ended."""
        with _lock:
            if self.watchers is None:
                self.watchers = [watcher]
            else:
                self.watchers.append(watcher)
        # Checked after adding the watcher: `settle` looks for watchers after it has set the state.
        if self.state == PENDING:
            return True
        self.unwatch(watcher)
        return False

    def unwatch(self, watcher: Callable[[], object] | tuple[Any, Any]) -> None:
        """Undo `watch`, so that a caller that waits again and again leaves nothing behind."""
        with _lock:
            if self.watchers is not None and watcher in self.watchers:
                self.watchers.remove(watcher)

    def wait(self, timeout: float | None) -> None:
        """Block until the call has ended.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds.
            ValueError: `timeout` is NaN.
        """
        if self.ended():
            return
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not NaN")
        ended = threading.Lock()
        ended.acquire()
        if self.watch(ended.release) and not wait_in_slices(lambda seconds: ended.acquire(timeout=seconds), timeout):
            self.unwatch(ended.release)
            raise TimeoutError(f"no result within {timeout} s; the call continues, cancel() ends it")

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until the call has ended, on the running event loop; cancelling the waiting task cancels the call."""
        import asyncio

        if self.ended():
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
        if self.watchers is None:
            return
        with _lock:
            watchers, self.watchers = self.watchers, None
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
        with _lock:
            if self.state == HELD:
                self.value, self.state = fetched.value, fetched.state

    def cancel(self) -> bool:
        """Cancel the call; return False if it had already ended."""
        if self.ended() or self.link is None:
            return False
        return self.link.cancel(self)

    def outcome(self) -> tuple[int, Any]:
        """Return the state and the value that belongs to it, while other threads may decode the value."""
        with _lock:
            return self.state, self.value

    def open(self) -> Any:
        """Return the value of a call that has ended, or raise its error. All threads get the same object."""
        with _lock:
            state, value = self.state, self.value
        if state in (ENCODED, FAILED):
            opened = decode(value) if state == ENCODED else decode_error(value)
            with _lock:
                if self.state == state:
                    self.value, self.state = opened, READY if state == ENCODED else RAISED
                state, value = self.state, self.value
        if state == RAISED:
            raise BaseException.with_traceback(value, None)
        return value


def failed_call(error: BaseException, label: str = "") -> RemoteCall:
    """Return a call that has already ended with `error`."""
    call = RemoteCall(label=label)
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


class Result(Generic[T_co]):
    """Result of a call to a remote agent. The call returns it at once, while the agent works.

    Using the value waits for it: its attributes and items, `==` and other comparisons, `len`, `bool`, `str`, iteration. If
    the agent raised an error, using the value raises it. `await` returns the value itself. The hash depends on the identity
    of the result, so results can be kept in sets without waiting.

    Type checkers see what the method returns, and not a `Result`. `Result.of(agent.reply(x))` tells them that it is a
    `Result[Msg]`; attributes of the value are then those of `.result()`.
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

    @overload
    @staticmethod
    def of(value: Result[V]) -> Result[V]: ...
    @overload
    @staticmethod
    def of(value: Coroutine[Any, Any, V]) -> Result[V]: ...
    @overload
    @staticmethod
    def of(value: V) -> Result[V]: ...
    @staticmethod
    def of(value: Any) -> Any:
        """Return what a call to a remote agent returned, as it is. Type checkers then know that it is a `Result`.

        Raises:
            UsageError: it is not a lazy result: for example, the agent is in this process.
        """
        return checked_result(value, "Result.of")

    def done(self) -> bool:
        """Return whether the call has ended: with a value, an error or by cancellation."""
        return self.__paragent_call__.ended()

    def running(self) -> bool:
        """Return whether the call has not ended; it may still wait for its turn."""
        return not self.__paragent_call__.ended()

    def cancelled(self) -> bool:
        """Return whether the call has ended with `CallCancelled`; a call that timed out has not."""
        return self.__paragent_call__.state in (FAILED, RAISED) and isinstance(self.exception(), CallCancelled)

    def result(self, timeout: float | None = None) -> T_co:
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
            return value  # type: ignore[no-any-return]
        deadline = None if timeout is None else time.monotonic() + timeout
        call.wait(timeout)
        if call.state == HELD:
            fetched = call.fetch()
            fetched.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            call.take_over(fetched)
        return call.open()  # type: ignore[no-any-return]

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

    def add_done_callback(self, function: Callable[[Result[T_co]], object]) -> None:
        """Have `function(result)` called when the call has ended: with a value, an error or by cancellation.

        All callbacks of the program run in one thread, in the order in which calls end. If the call has already ended, the
        function is called at once, in this thread. An exception in it is logged (logger `paragent.remote`).

        Raises:
            UsageError: `asyncio.wait` calls it, whose callback must run on its event loop.
        """
        if getattr(function, "__module__", "") == "asyncio.tasks":
            raise UsageError(
                "asyncio.wait needs asyncio's own futures: pass asyncio.ensure_future(result), or use paragent.wait"
            )
        start_callbacks()
        callback = Callback(function, self)
        if self.done() or not self.__paragent_call__.watch(callback.run_later):
            callback.run()

    def as_argument(self) -> T_co:
        """Return this result itself, without waiting. Type checkers see its value: to pass it to a method of an agent."""
        return self  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T_co]:
        call = self.__paragent_call__
        yield from call.__await__()
        if call.state == HELD:
            fetched = call.fetch()
            yield from fetched.__await__()
            call.take_over(fetched)
        return call.open()  # type: ignore[no-any-return]

    # --- standing for the value ---------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # type checkers report a misspelled method of a result

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") and name.endswith("__"):
                raise AttributeError(f"a lazy result has no {name}; its value may: call .result()")
            return getattr(self.result(), name)

    def __getitem__(self, key: Any) -> Any:
        return value_of(self)[key]

    def __contains__(self, item: Any) -> bool:
        return item in value_of(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(value_of(self))

    def __len__(self) -> int:
        return len(value_of(self))

    def __bool__(self) -> bool:
        return bool(self.result())

    def __int__(self) -> int:
        return int(value_of(self))

    def __float__(self) -> float:
        return float(value_of(self))

    def __str__(self) -> str:
        return str(self.result())

    def __format__(self, spec: str) -> str:
        return format(self.result(), spec)

    def __repr__(self) -> str:
        call = self.__paragent_call__
        state, value = call.state, call.value
        name = f"Result of {call.label}" if call.label else "Result"
        if state == RAISED and isinstance(value, CallCancelled):
            return f"<{name}: cancelled>"
        here = state in (READY, RAISED) or (state == ENCODED and type(value) is not tuple)
        return f"<{name}: {_SHOWN[state]}{f', {short_value(value)}' if here else ''}>"

    def __eq__(self, other: object) -> bool:
        return bool(self.result() == value_of(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.result() != value_of(other))

    def __lt__(self, other: Any) -> bool:
        return bool(value_of(self) < value_of(other))

    def __le__(self, other: Any) -> bool:
        return bool(value_of(self) <= value_of(other))

    def __gt__(self, other: Any) -> bool:
        return bool(value_of(self) > value_of(other))

    def __ge__(self, other: Any) -> bool:
        return bool(value_of(self) >= value_of(other))

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.__paragent_call__.state not in (READY, ENCODED) and note_missing(self):
            return value_of, (None,)
        return value_of, (self.result(),)


def call_of(result: Result[Any]) -> RemoteCall:
    """Return the call that a lazy result belongs to."""
    return result.__paragent_call__


def value_of(thing: Any) -> Any:
    """Return the value of a lazy result, waiting for it; anything else as it is."""
    return thing.result() if type(thing) is Result else thing


def checked_result(value: Any, taker: str) -> Result[Any]:
    """Return a value that must be a lazy result.

    Raises:
        UsageError: it is something else; the message says that `taker` does not take it.
    """
    if type(value) is Result:
        return value
    if hasattr(value, "close") and hasattr(value, "cr_await"):
        value.close()  # a coroutine of a local agent, which would warn that nothing awaited it
    raise UsageError(
        f"{taker} takes what calls to remote agents return, not {value!r}; an agent is remote if it is created with to_dist="
    )


def cancelled() -> CallCancelled:
    """Return the error of a call that its caller has cancelled."""
    return CallCancelled("the call was cancelled")
