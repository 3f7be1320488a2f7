"""Scheduler: moves calls from the queues of agents to the thread pool or the event loop, and cancels calls."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent.errors import AgentStopped, CallCancelled, CallTimedOut
from paragent.remote.placement import limit_thread
from paragent.remote.protocol import CallError
from paragent.remote.server.actors import (
    Actor,
    ActorCall,
    CallInterrupted,
    add_concurrent,
    claim,
    claim_to_free,
    enqueue,
    interrupt,
    next_call,
    running_calls,
    take_concurrent,
)
from paragent.remote.server.executor import AsyncExecutor, ThreadPool, execute_sync, fail, read_attribute

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.remote.server.registry import AgentRegistry
    from paragent.remote.server.session import ClientSession
    from paragent.transport.limits import Limits

__all__ = ["CONSTRUCT", "Canceller", "Scheduler"]


CONSTRUCT = "__init__"
"""Name of the call that creates an agent; clients cannot call it because it is not public."""
_FREE = "__del__"
"""Name of the call that frees an agent."""


class Scheduler:
    """Starts calls, one at a time for each agent except calls of `@concurrent` methods.

    Args:
        policy: decodes arguments.
        limits: the maximum number of threads.
        loop: the I/O loop; the scheduler must be created on it.
        construct: creates the agent of a call named `CONSTRUCT`.
        free: frees an agent.
        failed: called if a thread that executes calls ends unexpectedly.
    """

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        construct: Callable[[ActorCall], None],
        free: Callable[[Actor], None],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self.mutex = threading.Lock()
        """Protects queues and `busy` of agents, and `runner` of calls."""
        self.thread_pool = ThreadPool(self._execute, limits.threads, loop, failed, lambda: limit_thread(policy.trusted))
        self.async_executor = AsyncExecutor(policy, self._after, failed)
        self.batch: tuple[list[ActorCall], list[ActorCall]] | None = None
        """While a frame is handled: its calls for the thread pool and for the event loop, which start together."""
        self._policy = policy
        self._construct, self._free = construct, free
        self._io_thread = threading.get_ident()

    def begin_batch(self) -> None:
        """Collect the calls that start until `end_batch`."""
        self.batch = ([], [])

    def end_batch(self) -> None:
        """Start the collected calls."""
        assert self.batch is not None
        sync_calls, async_calls = self.batch
        self.batch = None
        if sync_calls:
            self.thread_pool.submit(sync_calls)
        if async_calls:
            self.async_executor.submit(async_calls)

    def begin(self, call: ActorCall) -> None:
        """Start the constructor of a new agent together with the other calls of the frame."""
        assert self.batch is not None
        call.agent.busy = call
        self.batch[False].append(call)

    def enqueue(self, call: ActorCall) -> None:
        """Queue a call of an agent, and start it if possible."""
        agent = call.agent
        constructing = agent.methods is None
        ready = enqueue(agent, call, self.mutex)
        if ready is None and constructing:
            self.wake(agent)  # the constructor may have ended meanwhile, and the method may be concurrent
            return
        ready = ready or claim(agent, self.mutex)
        if ready is not None:
            self._start(ready)

    def wake(self, agent: Actor) -> None:
        """Start the calls of an agent that can run now, after an argument arrived or the constructor ended."""
        for call in take_concurrent(agent, self.mutex):
            self._start(call)
        ready = claim(agent, self.mutex)
        if ready is not None:
            self._start(ready)

    def launch(self, call: ActorCall) -> None:
        """Pass a call to its executor, together with the other calls of the frame if there is one."""
        on_loop = call.method is not None and call.method.on_loop
        if self.batch is not None and threading.get_ident() == self._io_thread:
            self.batch[on_loop].append(call)
        elif on_loop:
            self.async_executor.submit([call])
        else:
            self.thread_pool.submit([call])

    def _start(self, call: ActorCall) -> None:
        """Start a call of a free agent, or answer it if it cannot be executed."""
        ready = self._after(call) if _answer_if_impossible(call) else call
        if ready is not None:
            self.launch(ready)

    def _after(self, call: ActorCall) -> ActorCall | None:
        """Free the agent of a call that has ended; return its next call if the same executor runs it."""
        agent = call.agent
        if call.number:  # else it created or freed the agent
            agent.served += 1
        if call.method is not None and call.method.concurrent:
            if agent.concurrent_calls is not None:
                agent.concurrent_calls.discard(call)
            self.free_if_unused(agent)
            return None
        while True:
            following = next_call(agent, self.mutex)
            if following is None:
                self.free_if_unused(agent)
                return None
            if _answer_if_impossible(following):
                continue
            method = following.method
            if method is not None and method.concurrent:
                add_concurrent(agent, following, self.mutex)
                self.launch(following)
                continue
            here = call.method is not None and call.method.on_loop
            if (method is not None and method.on_loop) is here:
                return following
            self.launch(following)
            return None

    def free_if_unused(self, agent: Actor) -> None:
        """Free an agent that nobody holds and that has no pending call; in the thread pool, as this runs the user's code."""
        if claim_to_free(agent, self.mutex):
            self.launch(ActorCall(agent.owner, 0, agent, _FREE, ()))

    def _execute(self, call: ActorCall | None) -> None:
        """Execute a call and the agent's next sync calls in this thread."""
        since = monotonic()
        while call is not None:
            if call.session.backlog.full and call.session.backlog.park(call):
                return
            self._run(call)
            now = monotonic()
            call.agent.seconds += now - since
            since = now
            call = self._after(call)

    def _run(self, call: ActorCall) -> None:
        """Execute and answer a call in this thread, even if it is interrupted more than once."""
        call.runner = threading.get_ident()
        started = answered = False
        while True:
            try:
                if not started:
                    started = True
                    self._execute_one(call)
                elif not answered:
                    fail(call, call.cancelled or CallCancelled("the call was cancelled"))
                answered = True
                self._end(call)
            except CallInterrupted:
                continue
            return

    def _execute_one(self, call: ActorCall) -> None:
        if call.cancelled is not None:
            fail(call, call.cancelled)
        elif call.name == CONSTRUCT:
            self._construct(call)
            if call.agent.queue:
                self.wake(call.agent)
        elif call.name == _FREE:
            self._free(call.agent)
        elif call.name.startswith("?"):
            read_attribute(call, self._policy)
        else:
            execute_sync(call, self._policy)

    def _end(self, call: ActorCall) -> None:
        """Record that no thread runs the call any more, and let an interruption that came too late arrive here."""
        with self.mutex:
            call.runner = None
        if call.cancelled is not None:
            for _ in range(100):
                time.sleep(0)

    def unpark(self, calls: list[ActorCall]) -> None:
        """Start calls that waited until their client had read results."""
        for call in calls:
            self.launch(call)

    def close(self) -> None:
        """End all threads of the pool."""
        self.thread_pool.close()


def _answer_if_impossible(call: ActorCall) -> bool:
    """Answer a call that cannot be executed; return whether it was answered."""
    agent: Any = call.agent
    if call.name == CONSTRUCT or (agent.methods is None and agent.failed is None and not agent.stopped):
        return False
    if call.method is None and agent.methods is not None:
        call.method = agent.methods.get(call.name)
    if call.error is not None:
        call.session.send_outcome(call, CallError, call.error)
    elif call.cancelled is not None:
        fail(call, call.cancelled)
    elif agent.stopped:
        fail(call, AgentStopped("the agent was stopped"))
    elif agent.failed is not None:
        call.session.send_outcome(call, CallError, agent.failed)
    elif call.method is None and not call.name.startswith("?"):
        fail(call, AttributeError(f"{type(agent.instance).__name__!r} agent has no public method {call.name!r}"))
    else:
        return False
    return True


# --- cancellation -----------------------------------------------------------------------------------------------------

_LEAST_INTERVAL = 0.01
"""Minimum seconds between two checks of a stream's deadline."""


class Canceller:
    """Cancels calls and stops agents. Belongs to the I/O loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        registry: AgentRegistry,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scheduler, self._registry, self._loop = scheduler, registry, loop

    def cancel(self, session: ClientSession, number: int) -> None:
        """Cancel a call at its caller's request."""
        call = session.active.get(number)
        if call is not None:
            self.interrupt(call, CallCancelled("the call was cancelled"))

    def is_running(self, session: ClientSession, number: int) -> bool:
        """Return whether a call of this client is executing; a queued call is not."""
        call = session.active.get(number)
        return call is not None and (call.started or type(call.runner) is int)

    def interrupt(self, call: ActorCall, error: BaseException) -> None:
        """End a call with an error. A thread gets an exception, a task is cancelled, a queued call fails when it would start."""
        with self._scheduler.mutex:
            call.cancelled = error
            if type(call.runner) is int:
                interrupt(call.runner)
        if call.credit is not None:
            call.credit.close()
        self._scheduler.async_executor.cancel(call)

    def set_deadline(self, call: ActorCall, seconds: float) -> None:
        """End a call after `seconds`, even if its client is disconnected by then.

        Raises:
            ValueError: `seconds` is NaN.
        """
        call.timer = self._loop.call_later(_checked(seconds), self._expire, call, seconds)

    def _expire(self, call: ActorCall, seconds: float) -> None:
        call.timer = None
        if call.session.active.get(call.number) is call:
            self.interrupt(call, CallTimedOut(f"{_label(call)}: no answer within {seconds} s"))

    def set_item_deadline(self, call: ActorCall, seconds: float) -> None:
        """End a stream when producing an item takes longer than `seconds`; time spent waiting for the reader does not count.

        Raises:
            ValueError: `seconds` is NaN.
        """
        call.timer = self._loop.call_later(max(_checked(seconds), _LEAST_INTERVAL), self._check_item, call, seconds)

    def _check_item(self, call: ActorCall, seconds: float) -> None:
        call.timer = None
        if call.session.active.get(call.number) is not call:
            return
        assert call.credit is not None
        since = call.credit.since
        left = seconds if since is None else since + seconds - monotonic()
        if left > 0 or since is None:
            call.timer = self._loop.call_later(max(left, _LEAST_INTERVAL), self._check_item, call, seconds)
        else:
            self.interrupt(call, CallTimedOut(f"{_label(call)}: no item within {seconds} s"))

    def stop_agent(self, agent: Actor, error: BaseException) -> None:
        """Stop an agent now: queued calls fail, running calls are cancelled."""
        with self._scheduler.mutex:
            agent.stopped = True
            waiting, agent.queue = agent.queue, None
        for call in waiting or ():
            fail(call, error)
        for call in running_calls(agent):
            self.interrupt(call, error)
        agent.owner.agents.pop(agent.number, None)
        self._registry.free(agent)

    def end_session(self, session: ClientSession) -> None:
        """Free everything of a session that ended: cancel its calls, stop its agents unless other sessions hold them."""
        gone = AgentStopped("the client that owned the agent is gone")
        for call in list(session.active.values()):
            self.interrupt(call, CallCancelled("the client is gone"))
        for agent in [*session.borrowed.values(), *session.agents.values()]:
            agent.holders -= 1
            if agent.holders <= 0:
                self.stop_agent(agent, gone)
        self._scheduler.unpark(session.end())


def _label(call: ActorCall) -> str:
    """Return the class and the method of a call, for errors."""
    instance = call.agent.instance
    return call.name if instance is None else f"{type(instance).__name__}.{call.name}"


def _checked(seconds: float) -> float:
    if math.isnan(seconds):
        raise ValueError("a time limit must be a number of seconds, not NaN")
    return seconds
