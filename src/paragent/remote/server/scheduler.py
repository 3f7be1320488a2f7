"""Scheduler: moves calls from the queues of agents to the thread pool or the event loop."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from paragent.errors import AgentStopped, CallCancelled
from paragent.remote.placement import limit_thread
from paragent.remote.protocol import CallError
from paragent.remote.server.actors import (
    Actor,
    ActorCall,
    CallInterrupted,
    add_concurrent,
    claim,
    enqueue,
    next_call,
    take_concurrent,
)
from paragent.remote.server.executor import AsyncExecutor, ThreadPool, execute_sync, fail, read_attribute

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.transport.limits import Limits

__all__ = ["CONSTRUCT", "FREE", "Scheduler"]


CONSTRUCT = "__init__"
"""Name of the call that creates an agent; clients cannot call it because it is not public."""
FREE = "__del__"
"""Name of the call that frees an agent after its earlier calls."""


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
        ready = enqueue(call.agent, call, self.mutex)
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
        if call.method is not None and call.method.concurrent:
            add_concurrent(call.agent, call, self.mutex)
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
        agent.served += 1
        if call.method is not None and call.method.concurrent:
            if agent.concurrent_calls is not None:
                agent.concurrent_calls.discard(call)
            return None
        while True:
            following = next_call(agent, self.mutex)
            if following is None:
                return None
            if _answer_if_impossible(following):
                continue
            method = following.method
            if method is not None and method.concurrent:
                self.launch(following)
                continue
            here = call.method is not None and call.method.on_loop
            if (method is not None and method.on_loop) is here:
                return following
            self.launch(following)
            return None

    def _execute(self, call: ActorCall | None) -> None:
        """Execute a call and the agent's next sync calls in this thread."""
        while call is not None:
            if call.session.backlog.full and call.session.backlog.park(call):
                return
            self._run(call)
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
        elif call.name == FREE:
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
    if call.name in (CONSTRUCT, FREE) or (agent.methods is None and agent.failed is None and not agent.stopped):
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
