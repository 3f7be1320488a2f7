"""Carrying out one call: in a thread, or on the event loop on which all async methods of the server run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import MethodType
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import run_loop, start_thread
from paragent.errors import CallCancelled, LimitExceeded, ProtocolError
from paragent.remote.placement import limit_thread
from paragent.remote.protocol import CallError, CallResult, StreamItems
from paragent.remote.server.actors import Interruption
from paragent.remote.server.event_loop import new_event_loop
from paragent.remote.values import PLAIN, encode_error, encode_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.actors import Call
    from paragent.remote.server.flow_control import Credit
    from paragent.remote.server.policy import Policy

__all__ = ["Player", "arguments_of", "fail", "perform_sync", "read_attribute"]

_SLICE = 256
"""Async calls that begin at a time, about a millisecond's work, before those under way have their turn again. A crowd that
waits one second each then takes the memory of what can begin in a second, however many were asked."""


def perform_sync(call: Call, policy: Policy) -> None:
    """Carry out a call of a sync method or generator in this thread, and tell its caller.

    Raises:
        Interruption: the call was cancelled meanwhile; its caller is not told.
    """
    try:
        function = getattr(call.agent.thing, call.name)
        args, kwargs = arguments_of(call, policy)
        assert call.method is not None
        if call.method.streams:
            copy_context().run(_stream, call, function, args, kwargs)
            outcome = None
        else:
            outcome = copy_context().run(function, *args, **kwargs)
        value = encode_result(outcome, "the result of", call.name)
    except Interruption:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the agent raises is the outcome of the call
        fail(call, error)
    else:
        call.session.tell(call, CallResult, value)


def read_attribute(call: Call, policy: Policy) -> None:
    """Tell the caller the value of an attribute; the name of such a call is `?` and the attribute's."""
    name = call.name[1:]
    try:
        if name == "__class__":
            value: Any = type(call.agent.thing).__qualname__
        else:
            value = getattr(call.agent.thing, name)
            if isinstance(value, MethodType):
                # A method is bound to its agent, so sending it would send the whole state, private attributes included.
                raise AttributeError(f"{name!r} is a method: call it")
            if not policy.accept_code:
                from paragent.remote.data import dump  # not at the top: servers that accept code do not need it

                dump(value)  # raises: other objects may hold the agent too, as a partial of one of its methods does
        encoded = encode_result(value, "the attribute", name)
    except Interruption:
        raise
    except BaseException as error:  # noqa: BLE001 - a property may raise anything
        fail(call, error)
    else:
        call.session.tell(call, CallResult, encoded)


def fail(call: Call, error: BaseException) -> None:
    """Tell the caller that a call failed."""
    call.session.tell(call, CallError, encode_error(error, plain=call.session.plain_errors))


def arguments_of(call: Call, policy: Policy) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a call, and those by keyword, as its code gets them.

    Raises:
        ParagentError: as `Policy.decode`.
    """
    args = call.args
    for value in args:
        if type(value) not in PLAIN:
            args = [policy.decode(value) for value in args]
            break
    return args, policy.keywords(call.kwargs) if call.kwargs else _NOTHING


_NOTHING: dict[str, Any] = {}
"""The keyword arguments of most calls; what is called gets a copy of its own."""


def _stream(call: Call, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
    credit = _credit_of(call)
    with contextlib.closing(function(*args, **kwargs)) as items:
        while credit.take():
            try:
                item = next(items)
            except StopIteration:
                return
            call.session.tell(call, StreamItems, [encode_result(item, "an item of", call.name)])
    raise CallCancelled("the reader of the stream has closed it")


def _credit_of(call: Call) -> Credit:
    """Return the credit of a stream.

    Raises:
        ProtocolError: the client has called a generator method without one.
    """
    if call.credit is None:
        raise ProtocolError(f"{call.name!r} is a generator method, and the call has no credit for its items")
    return call.credit


class Player:
    """The event loop of all async methods, in a thread of its own so that no method can keep the network waiting.

    Args:
        policy: how arguments are read.
        then: called on this loop when a call has ended; may return the agent's next call if it belongs here too.
        failed: called if the loop ends all the same.
    """

    def __init__(
        self,
        policy: Policy,
        then: Callable[[Call], Call | None],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self._policy = policy
        self._then = then
        self._failed = failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Call] = deque()
        """Calls that have not begun."""
        self._called = False
        """Whether `_begin` is about to look at them."""
        self._submitting = threading.Lock()
        """Protects `_loop`, so that it starts once, and `_called`."""
        self._fresh: list[Call] = []
        """Calls whose task has perhaps not taken its first step; used by the loop's thread only."""

    def submit(self, calls: list[Call]) -> None:
        """Have calls carried out; from any thread."""
        self._waiting.extend(calls)
        with self._submitting:
            opened = self._loop is not None or self._open()
            called, self._called = self._called, opened
        if not opened:
            self._refuse()
        elif not called:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._begin)

    def _open(self) -> bool:
        """Start the loop; return False if the system has no room for it or its thread. The next call tries again."""
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

    def _refuse(self) -> None:
        while self._waiting:
            call: Call | None = self._waiting.popleft()
            while call is not None:
                fail(call, LimitExceeded("the server cannot start a thread for async methods: the system has no room"))
                call = self._then(call)

    def cancel(self, call: Call) -> None:
        """Cancel the task of a call, if it runs; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: Call) -> None:
        # A task that is cancelled before its first step never takes one, and its caller would never be answered. `_play` sees
        # with its first step that the call is cancelled.
        if isinstance(call.runs, asyncio.Task) and call.begun:
            call.runs.cancel()

    def _begin(self) -> None:
        """Begin with some of the calls that wait; with more of them after everything under way has had its turn."""
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), _SLICE)):
                self._start(waiting.popleft())
        finally:
            with self._submitting:
                self._called = bool(waiting)
                if self._called:
                    assert self._loop is not None
                    self._loop.call_soon(self._begin)

    def _start(self, call: Call | None) -> None:
        while call is not None:
            if call.session.backlog.full and call.session.backlog.park(call):
                return
            method = call.method
            assert method is not None
            if not method.prompt or call.cancelled is not None:
                call.runs = asyncio.Task(self._play(call), loop=self._loop, name=call.name)
                self._fresh.append(call)
                if len(self._fresh) == 1:
                    assert self._loop is not None
                    self._loop.call_soon(self._check)
                return
            self._step(call)
            call = self._then(call)

    def _check(self) -> None:
        """Answer calls whose task was cancelled before its first step: some code cancels every task that it finds."""
        unbegun = [call for call in self._fresh if not call.begun]
        self._fresh = [call for call in unbegun if not (isinstance(call.runs, asyncio.Task) and call.runs.done())]
        if self._fresh:
            assert self._loop is not None
            self._loop.call_soon(self._check)
        for call in unbegun:
            if isinstance(call.runs, asyncio.Task) and call.runs.done():
                call.runs = None
                fail(call, call.cancelled or CallCancelled("the call was cancelled"))
                self._start(self._then(call))

    def _step(self, call: Call) -> None:
        """Carry out an async method that never awaits: its coroutine ends with its first step."""
        call.begun = True
        try:
            args, kwargs = arguments_of(call, self._policy)
            coroutine = getattr(call.agent.thing, call.name)(*args, **kwargs)
            try:
                coroutine.send(None)
            except StopIteration as end:
                call.session.tell(call, CallResult, encode_result(end.value, "the result of", call.name))
        except BaseException as error:  # noqa: BLE001 - whatever the agent raises is the outcome of the call
            fail(call, error)

    async def _play(self, call: Call) -> None:
        call.begun = True
        try:
            if call.cancelled is not None:
                raise call.cancelled
            args, kwargs = arguments_of(call, self._policy)
            result = getattr(call.agent.thing, call.name)(*args, **kwargs)
            assert call.method is not None
            if call.method.streams:
                await self._stream(call, result)
                outcome = None
            else:
                outcome = await result
            call.session.tell(call, CallResult, encode_result(outcome, "the result of", call.name))
        except asyncio.CancelledError:
            fail(call, call.cancelled or CallCancelled("the call was cancelled"))
        except BaseException as error:  # noqa: BLE001 - whatever the agent raises is the outcome of the call
            fail(call, error)
        call.runs = None
        following = self._then(call)
        if following is not None:
            self._start(following)

    async def _stream(self, call: Call, items: Any) -> None:
        credit = _credit_of(call)
        async with contextlib.aclosing(items):
            while await credit.take_async():
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                call.session.tell(call, StreamItems, [encode_result(item, "an item of", call.name)])
        raise CallCancelled("the reader of the stream has closed it")
