"""Executors: run sync methods in a pool of threads and async methods on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import MethodType
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent._internal.threads import run_loop, start_thread
from paragent.errors import CallCancelled, LimitExceeded, ProtocolError
from paragent.remote.placement import limit_thread
from paragent.remote.protocol import CallError, CallResult, StreamItems
from paragent.remote.server.actors import CallInterrupted
from paragent.remote.server.event_loop import new_event_loop
from paragent.remote.values import PLAIN, ResultsMissing, encode_error, encode_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.actors import ActorCall
    from paragent.remote.server.flow_control import StreamCredit
    from paragent.remote.server.policy import Policy

__all__ = ["AsyncExecutor", "ThreadPool", "arguments_of", "execute_sync", "fail", "read_attribute"]

_log = logging.getLogger("paragent.remote")

_SLICE = 256
"""Async calls to start (about a millisecond of work) before running calls continue. If very many calls wait one second each, the
server then needs memory only for those that it can start within a second."""


def execute_sync(call: ActorCall, policy: Policy) -> None:
    """Execute a call of a sync method or generator in this thread, and send its outcome.

    Raises:
        CallInterrupted: the call was cancelled; no outcome was sent.
    """
    try:
        function = getattr(call.agent.instance, call.name)
        args, kwargs = arguments_of(call, policy)
        assert call.method is not None
        if call.method.streams:
            copy_context().run(_stream, call, function, args, kwargs)
            outcome = None
        else:
            outcome = copy_context().run(function, *args, **kwargs)
        value = encode_result(outcome, "the result of", call.name)
    except CallInterrupted:
        raise
    except BaseException as error:  # noqa: BLE001 - any error of the agent is the outcome of the call
        fail(call, error)
    else:
        call.session.send_outcome(call, CallResult, value)


def read_attribute(call: ActorCall, policy: Policy) -> None:
    """Send the value of an attribute; the name of such a call is `?` followed by the name of the attribute."""
    name = call.name[1:]
    try:
        if name == "__class__":
            value: Any = type(call.agent.instance).__qualname__
        else:
            value = getattr(call.agent.instance, name)
            if isinstance(value, MethodType):
                # A bound method contains its agent, so sending it would send the agent with its private attributes.
                raise AttributeError(f"{name!r} is a method: call it")
            if not policy.accept_code:
                from paragent.remote.data import dump  # not at the top: servers that accept code do not need it

                # Raises for other objects that may contain the agent, such as a partial of a method, and for proxies: with the
                # session in a proxy, a client of this server could take its place at the other server.
                dump(value, proxies=False)
        encoded = encode_result(value, "the attribute", name)
    except CallInterrupted:
        raise
    except BaseException as error:  # noqa: BLE001 - a property may raise anything
        fail(call, error)
    else:
        call.session.send_outcome(call, CallResult, encoded)


def fail(call: ActorCall, error: BaseException) -> None:
    """Send the error of a call."""
    call.agent.failed_calls += 1
    call.session.send_outcome(call, CallError, encode_error(error, plain=call.session.client.plain_errors))


def arguments_of(call: ActorCall, policy: Policy) -> tuple[Any, dict[str, Any]]:
    """Return the decoded positional and keyword arguments of a call.

    Raises:
        ParagentError: as `Policy.decode`, and as `ClientSession.check_modules`.
    """
    args = call.args
    for value in args:
        if type(value) not in PLAIN:
            break
    else:
        if not call.kwargs:
            return args, _NOTHING
    try:
        args = [policy.decode(value) for value in args]
        return args, policy.keywords(call.kwargs) if call.kwargs else _NOTHING
    finally:  # also if it failed: because of another version of a module, for example
        call.session.check_modules()


_NOTHING: dict[str, Any] = {}
"""Keyword arguments of most calls; Python copies them for the called function."""


def _stream(call: ActorCall, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
    credit = _credit_of(call)
    with contextlib.closing(function(*args, **kwargs)) as items:
        while credit.take():
            try:
                item = next(items)
            except StopIteration:
                return
            call.session.send_outcome(call, StreamItems, [encode_result(item, "an item of", call.name)])
    raise CallCancelled("the reader closed the stream")


def _credit_of(call: ActorCall) -> StreamCredit:
    """Return the credit of a stream.

    Raises:
        ProtocolError: the client has called a generator method without credit.
    """
    if call.credit is None:
        raise ProtocolError(f"{call.name!r} is a generator method, and the call has no credit for its items")
    return call.credit


# --- sync methods -----------------------------------------------------------------------------------------------------

_TICK = 0.002
"""Seconds between checks of queued calls: short compared with calls that block, long compared with quick calls."""
_IDLE = 10.0
"""Seconds after which a thread without work ends."""
_RETRY = 0.1
"""Seconds until the next check after the system could not start a thread."""
_BUSY_SHARE = 0.5
"""If the process used this share of a core or more between two checks, its threads compute and do not block."""


class ThreadPool:
    """Runs `execute` for each work item in a thread, and adds threads while the existing ones block.

    Args:
        execute: executes one work item; must not raise.
        limit: maximum number of threads.
        loop: the I/O loop, which checks the queue regularly.
        failed: called if a thread ends with an exception.
        prepare: called by each thread when it starts.
    """

    def __init__(
        self,
        execute: Callable[[Any], None],
        limit: int,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[str, BaseException], object],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._execute, self._prepare = execute, prepare
        self._limit = limit
        self._loop = loop
        self._failed = failed
        self._ready: deque[Any] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._count_lock = threading.Lock()
        """Protects `_threads` and `_idle`."""
        self.executed = 0
        """Work items that ended. It is counted without a lock, since only whether it changes matters."""
        self._checking = False
        self._last_check = (0, 0.0, 0.0)
        self._refused = False
        """Whether the system could not start the last thread."""
        self._open = True

    @property
    def waiting(self) -> int:
        """Number of queued work items."""
        return len(self._ready)

    @property
    def threads(self) -> int:
        """Number of threads."""
        return self._threads

    def submit(self, work: list[Any]) -> None:
        """Have the work executed, each item by some thread."""
        self._ready.extend(work)
        if self._idle:
            self._tokens.put(None)
        elif not self._threads:
            self._grow(1)
        if not self._checking:
            self._checking = True
            self._loop.call_soon_threadsafe(self._schedule_check)

    def close(self) -> None:
        """Drop queued items, and end each thread after its current one."""
        self._open = False
        self._ready.clear()
        for _ in range(self._threads):
            self._tokens.put(None)

    def _schedule_check(self) -> None:
        self._last_check = (self.executed, time.process_time(), time.monotonic())
        self._loop.call_later(_RETRY if self._refused else _TICK, self._check_queue)

    def _check_queue(self) -> None:
        executed, used, then = self._last_check
        if not self._ready:
            self._checking = False
            if not self._ready:
                return
            self._checking = True
        share = (time.process_time() - used) / (time.monotonic() - then)
        if executed == self.executed or share < _BUSY_SHARE:
            wanted = min(len(self._ready), max(self._threads, 1))
            for _ in range(min(wanted, self._idle)):
                self._tokens.put(None)
            self._grow(min(wanted - self._idle, self._limit - self._threads))
        self._schedule_check()

    def _grow(self, count: int) -> None:
        """Start threads. If the system cannot start one, the next check tries again."""
        for _ in range(count):
            with self._count_lock:
                self._threads += 1
            try:
                start_thread(self._run_thread, name="paragent-sync", failed=self._failed)
            except (RuntimeError, MemoryError) as error:
                with self._count_lock:
                    self._threads -= 1
                if not self._refused:
                    _log.warning(
                        "cannot start more than %d threads for sync methods: %s; calls wait", self._threads, error
                    )
                self._refused = True
                return
            self._refused = False

    def _run_thread(self) -> None:
        self._prepare()
        ready = self._ready
        while self._open:
            try:
                work = ready.popleft()
            except IndexError:
                if not self._wait_for_work():
                    break
                continue
            with contextlib.suppress(CallInterrupted):  # it was raised for a call that had just ended
                self._execute(work)
            self.executed += 1
        with self._count_lock:
            self._threads -= 1

    def _wait_for_work(self) -> bool:
        """Wait for work; return False if none arrived within the idle time."""
        with self._count_lock:
            self._idle += 1
        try:
            # `submit` checks for idle threads after adding work, so this thread checks for work after becoming idle.
            if not self._ready:
                self._tokens.get(timeout=_IDLE)
        except Empty:
            return bool(self._ready)
        finally:
            with self._count_lock:
                self._idle -= 1
        return True


# --- async methods ----------------------------------------------------------------------------------------------------


class AsyncExecutor:
    """Runs async methods on one event loop in its own thread, so that no method can block the I/O loop.

    Args:
        policy: decodes arguments.
        after_call: called on this loop when a call has ended; returns the agent's next call if it is async too.
        failed: called if the loop ends unexpectedly.
    """

    def __init__(
        self,
        policy: Policy,
        after_call: Callable[[ActorCall], ActorCall | None],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self._policy = policy
        self._after_call = after_call
        self._failed = failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[ActorCall] = deque()
        """Calls that have not started."""
        self._scheduled = False
        """Whether `_start_some` is scheduled."""
        self._lock = threading.Lock()
        """Protects the start of `_loop`, and `_scheduled`."""
        self._new: list[ActorCall] = []
        """Calls whose task may not have run its first step yet; used only by the loop's thread."""

    def submit(self, calls: list[ActorCall]) -> None:
        """Execute calls; may be called from any thread."""
        self._waiting.extend(calls)
        with self._lock:
            running = self._loop is not None or self._open()
            scheduled, self._scheduled = self._scheduled, running
        if not running:
            self._fail_waiting()
        elif not scheduled:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._start_some)

    def _open(self) -> bool:
        """Start the loop; return False if the system cannot start its thread. The next call tries again."""
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = new_event_loop()
            start_thread(self._run, loop, name="paragent-agents", failed=self._failed)
        except (RuntimeError, MemoryError, OSError):  # no thread, no memory, no file descriptor
            if loop is not None:
                loop.close()
            return False
        self._loop = loop
        return True

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        trusted = self._policy.trusted
        if trusted is not None:
            limit_thread(trusted)
            loop.set_default_executor(
                ThreadPoolExecutor(
                    thread_name_prefix="paragent-to-thread", initializer=limit_thread, initargs=(trusted,)
                )
            )
        run_loop(loop)

    def _fail_waiting(self) -> None:
        while self._waiting:
            call: ActorCall | None = self._waiting.popleft()
            while call is not None:
                fail(
                    call,
                    LimitExceeded("the server cannot start the thread for async methods: no resources left"),
                )
                call = self._after_call(call)

    def cancel(self, call: ActorCall) -> None:
        """Cancel the task of a call if it runs; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: ActorCall) -> None:
        # A task that is cancelled before its first step never runs, and its caller would get no answer. `_execute` checks for
        # cancellation in its first step instead.
        if isinstance(call.runner, asyncio.Task) and call.started:
            call.runner.cancel()

    def _start_some(self) -> None:
        """Start some of the waiting calls; start more after the running ones have continued."""
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), _SLICE)):
                self._start(waiting.popleft())
        finally:
            with self._lock:
                self._scheduled = bool(waiting)
                if self._scheduled:
                    assert self._loop is not None
                    self._loop.call_soon(self._start_some)

    def _start(self, call: ActorCall | None) -> None:
        while call is not None:
            if call.session.backlog.full and call.session.backlog.park(call):
                return
            method = call.method
            assert method is not None
            if not method.prompt or call.cancelled is not None:
                self._start_task(call)
                return
            if not self._step(call):
                return
            call = self._after_call(call)

    def _start_task(self, call: ActorCall, returned: tuple[Any] | None = None) -> None:
        call.started = False
        call.runner = asyncio.Task(self._execute(call, returned), loop=self._loop, name=call.name)
        self._new.append(call)
        if len(self._new) == 1:
            assert self._loop is not None
            self._loop.call_soon(self._check_new)

    def _check_new(self) -> None:
        """Answer calls whose task was cancelled before its first step: user code may cancel all tasks of the loop."""
        not_started = [call for call in self._new if not call.started]
        self._new = [call for call in not_started if not (isinstance(call.runner, asyncio.Task) and call.runner.done())]
        if self._new:
            assert self._loop is not None
            self._loop.call_soon(self._check_new)
        for call in not_started:
            if isinstance(call.runner, asyncio.Task) and call.runner.done():
                call.runner = None
                fail(call, call.cancelled or CallCancelled("the call was cancelled"))
                self._start(self._after_call(call))

    def _step(self, call: ActorCall) -> bool:
        """Execute an async method that never awaits: its coroutine ends with its first step.

        Return whether the call has ended. If the method returned lazy results, a task waits for them.
        """
        call.started = True
        try:
            args, kwargs = arguments_of(call, self._policy)
            coroutine = getattr(call.agent.instance, call.name)(*args, **kwargs)
            try:
                coroutine.send(None)
            except StopIteration as end:
                try:
                    value = encode_result(end.value, "the result of", call.name, waits=False)
                except ResultsMissing:
                    self._start_task(call, (end.value,))
                    return False
                call.session.send_outcome(call, CallResult, value)
        except BaseException as error:  # noqa: BLE001 - any error of the agent is the outcome of the call
            fail(call, error)
        return True

    async def _execute(self, call: ActorCall, returned: tuple[Any] | None = None) -> None:
        """Execute an async method, unless its only step has already `returned`, and wait for the lazy results in its value."""
        call.started = True
        since = monotonic()
        try:
            if call.cancelled is not None:
                raise call.cancelled
            outcome = await self._outcome_of(call) if returned is None else returned[0]
            call.session.send_outcome(call, CallResult, await _encoded(outcome, "the result of", call.name))
        except asyncio.CancelledError:
            fail(call, call.cancelled or CallCancelled("the call was cancelled"))
        except BaseException as error:  # noqa: BLE001 - any error of the agent is the outcome of the call
            fail(call, error)
        call.runner = None
        call.agent.seconds += monotonic() - since
        following = self._after_call(call)
        if following is not None:
            self._start(following)

    async def _outcome_of(self, call: ActorCall) -> Any:
        args, kwargs = arguments_of(call, self._policy)
        result = getattr(call.agent.instance, call.name)(*args, **kwargs)
        assert call.method is not None
        if not call.method.streams:
            return await result
        await self._stream(call, result)
        return None

    async def _stream(self, call: ActorCall, items: Any) -> None:
        credit = _credit_of(call)
        async with contextlib.aclosing(items):
            while await credit.take_async():
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                call.session.send_outcome(call, StreamItems, [await _encoded(item, "an item of", call.name)])
        raise CallCancelled("the reader closed the stream")


async def _encoded(thing: Any, *what: str) -> Any:
    """Return an encoded result, as `encode_result` does, but wait for the lazy results inside it without blocking the loop."""
    while True:
        try:
            return encode_result(thing, *what, waits=False)
        except ResultsMissing as missing:
            for result in missing.results:
                await result
